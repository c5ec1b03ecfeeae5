"""What stands in a checkpoint's files, so that a disk which gives back something else is found out.

``manifest.json`` lies beside the files and is the last of them to be written.  It names each file with
its length and its SHA-256.  Files that it does not name are nobody's business.
"""

import errno
import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.disk import write_durably

NAME = "manifest.json"
_SPOILT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}
"""What the system says of a file that is not there, or that the disk cannot give back.  Everything else, as a missing
permission, says nothing about the file."""


class Contents(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    files: dict[str, list[Contents]]
    """By path below the checkpoint; the last contents were put in the place of those before."""


def describe(folder: Path) -> None:
    """Write the manifest of everything that lies in ``folder``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = Manifest(files={str(path.relative_to(folder)): [_contents(path)] for path in files})
    (folder / NAME).write_text(manifest.model_dump_json(indent=1))


def is_described(folder: Path) -> bool:
    return (folder / NAME).exists()


def replace(folder: Path, name: str, content: bytes) -> None:
    """Give a file of the checkpoint another content; killed anywhere, the manifest holds."""
    if is_described(folder):
        manifest = Manifest.model_validate_json((folder / NAME).read_bytes())
        after = Contents(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        manifest.files[name].append(after)
        write_durably(folder / NAME, manifest.model_dump_json(indent=1).encode())
    write_durably(folder / name, content)


def damage_in(folder: Path) -> str | None:
    """Return which file is not what was written, and how.  Raises OSError if that cannot be known."""
    try:
        manifest = Manifest.model_validate_json((folder / NAME).read_bytes())
    except ValidationError as error:
        return f"{NAME} cannot be read ({error.errors(include_input=False)[0]['msg']})"
    except OSError as error:
        return spoilt(NAME, error)
    for name, wanted in manifest.files.items():
        try:
            found = _contents(folder / name)
        except OSError as error:
            return spoilt(name, error)
        if found not in wanted:
            return _difference(name, found, wanted[-1])
    return None


def spoilt(name: str, error: OSError) -> str:
    """Return how a file is damaged that could not be read.  Raises ``error`` if that says nothing about the file."""
    if error.errno not in _SPOILT:
        raise error
    return f"{name} is missing" if error.errno == errno.ENOENT else f"{name} cannot be read ({error.strerror})"


def _difference(name: str, found: Contents, wanted: Contents) -> str:
    if found.size_bytes != wanted.size_bytes:
        return f"{name} has {found.size_bytes} bytes, of {wanted.size_bytes} that were written"
    return f"{name} has other bytes than were written (SHA-256 {found.sha256[:12]}..., not {wanted.sha256[:12]}...)"


def _contents(path: Path) -> Contents:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Contents(size_bytes=file.tell(), sha256=digest.hexdigest())
