"""An environment package as its author hands it over: a folder or a wheel, read and never run.

A folder has a ``pyproject.toml`` and its modules in ``src``.  Both kinds are somebody else's, and perhaps made to harm:
links, devices, names that lead elsewhere and what is too much are faults, all of which are named at once.
"""

import hashlib
import io
import re
import stat
import zipfile
from configparser import ConfigParser
from configparser import Error as BadIni
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from engine.environments.terminal.folder_files import FolderLimits, content_of, listed
from engine.spec.problems import Problem
from engine.spec.toml_document import BadToml, toml_document

GROUP = "palestra.environments"
"""The entry points that name environments."""
LIMITS = FolderLimits(entries=5000, file_bytes=32 * 2**20, size_bytes=128 * 2**20)
PROJECT_BYTES = 2**20
LAYOUT = "a package is a folder with a pyproject.toml and its modules in src/, or a wheel"
ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class PackageRefused(Exception):
    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True)
class PackageSource:
    """What a package is, before anything of it is installed."""

    name: str
    version: str
    dependencies: tuple[str, ...]
    entries: tuple[tuple[str, str], ...]
    """(name, ``module:Name``) of its environments."""
    files: tuple[tuple[str, bytes], ...]
    """Its modules, by their path below the folder that they are imported from."""

    @property
    def digest(self) -> str:
        whole = hashlib.sha256(repr((self.name, self.version, self.dependencies, self.entries)).encode())
        for path, content in sorted(self.files):
            whole.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
        return f"sha256:{whole.hexdigest()}"


def package_at(path: Path) -> PackageSource:
    """Raises PackageRefused."""
    if path.is_symlink() or not path.exists():
        raise _refused(
            "", str(path), "a link" if path.is_symlink() else "there is nothing", f"name it itself: {LAYOUT}"
        )
    source = _folder(path) if path.is_dir() else _wheel(path)
    if problems := _problems_of(source):
        raise PackageRefused(problems)
    return source


def _folder(path: Path) -> PackageSource:
    project = _project(path / "pyproject.toml")
    modules = path / "src"
    if modules.is_symlink() or not modules.is_dir():
        raise _refused("src", str(modules), "no folder", LAYOUT)
    listing = listed(modules, LIMITS)
    if listing.faults:
        raise PackageRefused(listing.faults)
    files = [(file.path, content_of(modules, file)) for file in listing.files if "__pycache__" not in file.path]
    described = _table(project, "project")
    return PackageSource(
        name=_text(described, "name"),
        version=_text(described, "version"),
        dependencies=_texts(described, "dependencies"),
        entries=tuple(sorted(_entries(described).items())),
        files=tuple(files),
    )


def _project(path: Path) -> dict[str, Any]:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > PROJECT_BYTES:
        raise _refused("pyproject.toml", str(path), f"no plain file of at most {PROJECT_BYTES} bytes", LAYOUT)
    try:
        return toml_document(path.read_text("utf-8"), longest=PROJECT_BYTES)
    except UnicodeDecodeError as error:
        raise _refused("pyproject.toml", str(path), f"no UTF-8: {error}", "save it as UTF-8") from error
    except BadToml as bad:
        raise PackageRefused([bad.problem("pyproject.toml")]) from bad


def _table(fields: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(value := fields.get(name, {}), dict):
        raise _refused(name, value, "no table", f"write [{name}]")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    if not isinstance(value := fields.get(name), str):
        raise _refused(f"project.{name}", value, "no text", "add it: it names the package in every message")
    return value


def _texts(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name, [])
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise _refused(f"project.{name}", value, "no list of texts", 'give one, e.g. ["numpy>=2"]')
    return tuple(value)


def _entries(described: dict[str, Any]) -> dict[str, str]:
    entries = _table(_table(described, "entry-points"), GROUP)
    return {name: entry for name, entry in entries.items() if isinstance(entry, str)}


def _wheel(path: Path) -> PackageSource:
    try:
        with zipfile.ZipFile(path) as archive:
            files = dict(_members(archive))
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise _refused("", str(path), f"no wheel: {error}", LAYOUT) from error
    metadata = [name for name in files if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    if len(metadata) != 1:
        raise _refused("", str(path), "no wheel: it has not one .dist-info/METADATA", LAYOUT)
    described = HeaderParser().parse(io.StringIO(files[metadata[0]].decode("utf-8", "replace")))
    return PackageSource(
        name=str(described.get("Name", "")),
        version=str(described.get("Version", "")),
        dependencies=tuple(map(str, described.get_all("Requires-Dist", []))),
        entries=_wheel_entries(files.get(metadata[0].replace("METADATA", "entry_points.txt"), b"")),
        files=tuple(sorted(files.items())),
    )


def _members(archive: zipfile.ZipFile) -> list[tuple[str, bytes]]:
    """Every file.  What an entry claims of its size is not believed: so much is read, and no more."""
    members: list[tuple[str, bytes]] = []
    left = LIMITS.size_bytes
    infos = archive.infolist()
    if len(infos) > LIMITS.entries:
        raise _refused("", archive.filename, f"more than {LIMITS.entries} files", "make the package smaller")
    for info in infos:
        if info.is_dir():
            continue
        if (fault := _member_fault(info)) is not None:
            raise _refused("", info.filename, fault, "build the wheel again: python -m pip wheel --no-deps .")
        with archive.open(info) as file:
            content = file.read(min(LIMITS.file_bytes, left) + 1)
        left -= len(content)
        if len(content) > LIMITS.file_bytes or left < 0:
            raise _refused("", info.filename, "the wheel is too large", f"keep it under {LIMITS.size_bytes} bytes")
        members.append((info.filename, content))
    return members


def _member_fault(info: zipfile.ZipInfo) -> str | None:
    path = PurePosixPath(info.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in info.filename or not info.filename.isprintable():
        return "a name that leads elsewhere"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a symbolic link"
    return "data for other folders" if path.parts[0].endswith(".data") else None


def _wheel_entries(text: bytes) -> tuple[tuple[str, str], ...]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text.decode("utf-8", "replace"))
    except BadIni as error:
        raise _refused("entry_points.txt", "", f"it cannot be read: {error}", "build the wheel again") from error
    return tuple(sorted(parser.items(GROUP))) if parser.has_section(GROUP) else ()


def _problems_of(source: PackageSource) -> list[Problem]:
    problems = [
        Problem(f"project.{field}", value, "no plain name", "use letters, digits and . _ -")
        for field, value in (("name", source.name), ("version", source.version.replace("+", ".")))
        if not NAME.fullmatch(value)
    ]
    problems += [
        Problem(f"project.entry-points.{name}", entry, "no import path", 'write it as "package.module:Name"')
        for name, entry in source.entries
        if not ENTRY.fullmatch(entry)
    ]
    return [*problems, *(fault for text in source.dependencies if (fault := _dependency_fault(text)) is not None)]


def _dependency_fault(text: str) -> Problem | None:
    """Anything that pip could take for an option, a file or an address is refused."""
    field, remedy = "project.dependencies", 'name a package of the index, e.g. "numpy>=2"'
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        return Problem(field, text, f"no requirement: {error}".splitlines()[0], remedy)
    return None if requirement.url is None else Problem(field, text, "an address", remedy)


def _refused(field: str, value: Any, message: str, remedy: str) -> PackageRefused:
    return PackageRefused([Problem(field, value, message, remedy)])
