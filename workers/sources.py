"""What a version is made of, as files that can be read from any place: a folder, parts of an upload, a tar in them.

All of it is hostile.  A folder's file is taken only if what was opened lies below the folder's root, whatever links
said; an archive may hold plain files in one folder and nothing else; no name but a model file's is taken.
"""

import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from django.conf import settings

from engine.spec.problems import Problem
from webapp.catalog.checked_models import CheckedVersion
from webapp.catalog.dataset_file_names import SUFFIXES, problem_with_dataset_file
from webapp.catalog.file_names import MOST_FILES, is_left_out, problem_with
from webapp.catalog.models import DatasetVersion, ModelVersion, Upload
from webapp.catalog.origin import CheckpointOrigin, FolderOrigin
from webapp.catalog.storage import part_file
from webapp.catalog.uploads import PART_BYTES

TAR = ".tar"
_LARGEST_HEADER_BYTES = 2**20
"""The largest header of an archive's entry.  A longer one is no name, and would be read into memory."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd", b"PK": "zip"}


class SourceRefused(Exception):
    """What was given cannot become a version; the problem says which file, and what to do."""

    def __init__(self, field: str, value: str, message: str, remedy: str) -> None:
        self.problem = Problem(field, value, message, remedy)
        super().__init__(str(self.problem))


@dataclass(frozen=True)
class SourceFile:
    name: str
    size: int
    read: Callable[[int, int], bytes]
    """Offset and length; raises SourceRefused where so much is no longer there."""


def source_files(version: ModelVersion) -> list[SourceFile]:
    """The files of the model, by name.  Raises SourceRefused."""
    match version.made_from:
        case FolderOrigin(path=path):
            files, field = _imported(path), "folder"
        case CheckpointOrigin(run=run, step=step):
            checkpoint = Path(settings.PALESTRA_RUNS) / run / "checkpoints" / f"step-{step:06d}"
            files, field = _files_in(checkpoint / "model", checkpoint, "step"), "step"
        case _:
            files, field = _uploaded(version.upload), "files"
    return checked(files, field)


def dataset_files(version: DatasetVersion) -> list[SourceFile]:
    """The files of which the dataset is made, by name.  Raises SourceRefused."""
    match version.made_from:
        case FolderOrigin(path=path):
            field = "folder"
            known = (file for file in _imported(path) if file.name.lower().endswith(SUFFIXES))
        case _:
            field = "files"
            known = (_of_parts(version.upload, *announced) for announced in _announced(version.upload))
    return checked(known, field, problem_with_dataset_file, "rows", f"a file that ends in {', '.join(SUFFIXES)}")


def checked_files(version: CheckedVersion) -> list[SourceFile]:
    """The file of which a checked version is made; none for a folder of the server, which is read where it lies.

    Raises SourceRefused.
    """
    match version.made_from:
        case FolderOrigin(path=path):
            root = Path(settings.PALESTRA_IMPORTS)
            if not (root / path).resolve().is_relative_to(root):
                raise SourceRefused("folder", path, "it lies outside of the import root", "name one that lies in it")
            return [] if (root / path).is_dir() else [_file_in(root / path, root, "folder")]
        case _:
            return [_of_parts(version.upload, *announced) for announced in _announced(version.upload)]


def _imported(path: str) -> Iterator[SourceFile]:
    """The files of a folder below the import root, or the one file that is named."""
    root = Path(settings.PALESTRA_IMPORTS)
    named = root / path
    return iter([_file_in(named, root, "folder")]) if named.is_file() else _files_in(named, root, "folder")


def checked(
    files: Iterable[SourceFile],
    field: str,
    problem_with: Callable[[str, int, str], Problem | None] = problem_with,
    of: str = "a model",
    needed: str = "the folder that holds a config.json",
) -> list[SourceFile]:
    """Raises SourceRefused for a file that no version may have, for two of one name, and for too many."""
    found: dict[str, SourceFile] = {}
    for file in files:
        if is_left_out(file.name):
            continue
        if (problem := problem_with(file.name, file.size, field)) is not None:
            raise SourceRefused(problem.field, problem.value, problem.message, problem.remedy)
        if file.name in found:
            raise SourceRefused(field, file.name, f"there are two files named {file.name}", "leave one of them out")
        found[file.name] = file
        if len(found) > MOST_FILES:
            message = f"it has more than {MOST_FILES} files"
            raise SourceRefused(field, file.name, message, "give fewer")
    if not found:
        raise SourceRefused(field, "", f"it holds no file of {of}", f"give {needed}")
    return [found[name] for name in sorted(found)]


# A folder
def _files_in(folder: Path, root: Path, field: str) -> Iterator[SourceFile]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        message = f"it cannot be read: {error.strerror}"
        raise SourceRefused(field, folder.name, message, "name one that is there and may be read") from error
    for name in names:
        if not is_left_out(name):
            yield _file_in(folder / name, root, field)


def _file_in(path: Path, root: Path, field: str) -> SourceFile:
    descriptor = _opened(path, root, field)
    try:
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)

    def read(offset: int, length: int) -> bytes:
        opened = _opened(path, root, field)
        try:
            return _whole(os.pread(opened, length, offset), length, path.name, field)
        finally:
            os.close(opened)

    return SourceFile(path.name, size, read)


def _opened(path: Path, root: Path, field: str) -> int:
    """A descriptor of a plain file.  Where it lies is asked of what was opened, so nobody can change it in between."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        message = f"{path.name} cannot be read: {error.strerror}"
        raise SourceRefused(field, path.name, message, "mend or remove it") from error
    kind = os.fstat(descriptor).st_mode
    lies = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    if stat.S_ISREG(kind) and lies.is_relative_to(root.resolve()):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        message, remedy = f"{path.name} is a folder, and a model's folder is flat", "give one without folders in it"
    elif stat.S_ISREG(kind):
        message, remedy = f"{path.name} leads out of the folder that is imported from", "put the file itself there"
    else:
        message, remedy = f"{path.name} is no plain file", "remove it"
    raise SourceRefused(field, path.name, message, remedy)


def _whole(data: bytes, length: int, name: str, field: str) -> bytes:
    if len(data) != length:
        raise SourceRefused(field, name, f"{name} has become shorter while it was read", "import it again")
    return data


# An upload
def _uploaded(upload: Upload) -> Iterator[SourceFile]:
    for announced in _announced(upload):
        file = _of_parts(upload, *announced)
        if file.name.lower().endswith(TAR):
            yield from archived(file)
        else:
            yield file


def _announced(upload: Upload) -> Iterator[tuple[int, str, int]]:
    """Place, name and bytes of each file."""
    return ((place, file["name"], int(file["bytes"])) for place, file in enumerate(upload.files))


def _of_parts(upload: Upload, place: int, name: str, size: int) -> SourceFile:
    digests = dict(upload.parts.filter(file=place).values_list("number", "sha256"))

    def read(offset: int, length: int) -> bytes:
        pieces = []
        while length > 0:
            number, within = divmod(offset, PART_BYTES)
            wanted = min(length, PART_BYTES - within)
            try:
                with part_file(upload.id, place, number, digests[number]).open("rb") as opened:
                    piece = os.pread(opened.fileno(), wanted, within)
            except (OSError, KeyError) as error:
                message = f"part {number} of {name} is not there any more"
                raise SourceRefused("files", name, message, "upload the files again") from error
            pieces.append(_whole(piece, wanted, name, "files"))
            offset, length = offset + wanted, length - wanted
        return b"".join(pieces)

    return SourceFile(name, size, read)


# A tar
class _Bounded:
    """The archive for ``tarfile``, which reads headers of whatever length they claim: here of a few pages at most."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._at = file, 0

    def read(self, length: int) -> bytes:
        if not 0 <= length <= _LARGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"an entry's header claims {length} bytes")
        length = min(length, max(0, self._file.size - self._at))
        data = self._file.read(self._at, length) if length else b""
        self._at += len(data)
        return data

    def seek(self, offset: int) -> int:
        if not 0 <= offset <= self._file.size:
            raise tarfile.ReadError("an entry ends beyond the archive")
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at


def archived(file: SourceFile) -> list[SourceFile]:
    """The plain files of an uncompressed tar, whose one common folder, if any, is taken off.  Raises SourceRefused."""
    start = file.read(0, min(2, file.size))
    if kind := _COMPRESSED.get(start):
        message = f"{file.name} is compressed ({kind}); safetensors hardly shrink, so only a plain tar is taken"
        raise SourceRefused("files", file.name, message, "make it with: tar -cf model.tar -C FOLDER .")
    try:
        with tarfile.open(fileobj=cast(IO[bytes], _Bounded(file)), mode="r:") as archive:
            members = list(_members(archive, file))
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, OSError) as error:
        message = f"{file.name} is no tar that can be read ({str(error)[:200] or type(error).__name__})"
        raise SourceRefused("files", file.name, message, "make it with: tar -cf model.tar -C FOLDER .") from error
    folders = {name.rpartition("/")[0] for name, _, _ in members}
    if len(folders) > 1:
        message = f"{file.name} holds files of several folders: {', '.join(sorted(folders)[:4])}"
        raise SourceRefused("files", file.name, message, "put the files of one model into it, in one folder")
    return [_within(file, name.rpartition("/")[2], offset, size) for name, offset, size in members]


def _members(archive: tarfile.TarFile, file: SourceFile) -> Iterator[tuple[str, int, int]]:
    """Path, offset and size of each plain file that is not hidden."""
    seen, behind = 0, -1
    while (member := archive.next()) is not None:
        seen += 1
        parts = [part for part in member.name.split("/") if part != "."]
        shown = member.name[:200]
        if seen > 2 * MOST_FILES or member.offset_data <= behind:
            raise _unwelcome(file, shown, "has too many entries, or entries within entries")
        behind = member.offset_data
        if member.name.startswith("/") or ".." in parts or "\0" in member.name:
            raise _unwelcome(file, shown, f"names {shown}, which lies outside of it")
        if member.isdir():
            continue
        if not parts:
            raise _unwelcome(file, shown, "holds a file without a name")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise _unwelcome(file, shown, f"holds {shown}, which is a link, a device or another thing than a file")
        if member.size < 0 or member.offset_data + member.size > file.size:
            raise _unwelcome(file, shown, f"ends before {shown} does")
        if not is_left_out(parts[-1]):
            yield "/".join(parts), member.offset_data, member.size


def _unwelcome(file: SourceFile, shown: str, how: str) -> SourceRefused:
    return SourceRefused("files", shown, f"{file.name} {how}", "put plain files of one model into it, and nothing else")


def _within(file: SourceFile, name: str, begins: int, size: int) -> SourceFile:
    return SourceFile(name, size, lambda offset, length: file.read(begins + offset, length))
