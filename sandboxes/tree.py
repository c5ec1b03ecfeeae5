"""Files and folders of /work as values: what one sandbox gives, and another one gets.

Only regular files and folders, by paths that stay below /work; no owner, time, link or special permission comes along.
Everything here is checked again on this side, because what a sandbox says of its paths is hostile.
"""

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

MOST_ENTRIES = 10_000
MOST_BYTES = 32 * 2**20
LONGEST_PATH_BYTES = 1024
HOME = "/work"


class TreeRefused(Exception):
    """What was chosen is there in no form that is copied: missing, a link, a device, too much.

    Whoever prepared the files is answerable for it, so an environment that scores them counts it as a failure of
    the policy.  The message names the path.
    """


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """How much is copied at most: files and folders together, and bytes of all files."""

    entries: int = 1000
    size_bytes: int = 16 * 2**20
    partial: bool = False
    """What is not copied, or goes beyond the limits, is left out and not refused; so are hidden folders, those that
    tools fill (``node_modules``, ``__pycache__``, environments) and files of more than 64 KiB.
    """

    def __post_init__(self) -> None:
        for field, most in (("entries", MOST_ENTRIES), ("size_bytes", MOST_BYTES)):
            value = getattr(self, field)
            if not 0 < value <= most:
                raise ValueError(f"{field} = {value!r}: use 1 to {most}")


@dataclass(frozen=True, slots=True)
class TreeEntry:
    path: str
    """Below /work, relative to it, in its simplest form: ``src/solution.py``."""
    content: bytes | None
    """It is None of a folder."""
    executable: bool = False

    def __post_init__(self) -> None:
        if not self.path or relative(self.path) != self.path:
            raise ValueError(f"path = {self.path!r}: use the simplest form of a path below {HOME}, relative to it")


@dataclass(frozen=True, slots=True)
class Tree:
    """Raises ``ValueError`` for more than ``MOST_ENTRIES`` entries or ``MOST_BYTES`` bytes."""

    entries: tuple[TreeEntry, ...]

    def __post_init__(self) -> None:
        if len(self.entries) > MOST_ENTRIES or self.size_bytes > MOST_BYTES:
            size = f"{len(self.entries)} entries and {self.size_bytes} bytes"
            raise ValueError(f"entries: {size} are too many: use at most {MOST_ENTRIES} and {MOST_BYTES}")

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Self:
        """Files by their paths."""
        return cls(tuple(TreeEntry(relative(path), bytes(content)) for path, content in files.items()))

    @property
    def size_bytes(self) -> int:
        return sum(len(entry.content or b"") for entry in self.entries)

    @property
    def files(self) -> dict[str, bytes]:
        """Contents by path, without folders."""
        return {entry.path: entry.content for entry in self.entries if entry.content is not None}


def chosen(paths: Iterable[str]) -> list[str]:
    """Paths as the agent takes them.  Raises ``ValueError`` for one that leads out of /work, and for none."""
    if isinstance(paths, str):
        raise ValueError(f"paths = {paths!r}: use a list of paths")
    found = [relative(path) for path in paths]
    if not found or len(found) > MOST_ENTRIES:
        raise ValueError(f"paths = {found!r:.200}: name 1 to {MOST_ENTRIES} files or folders below {HOME}")
    return found


def relative(path: str) -> str:
    """The simplest form of a path below /work, relative to it; empty for /work itself."""
    remedy = f"use a path below {HOME} without '..', of at most {LONGEST_PATH_BYTES} bytes"
    try:
        too_long = len(path.encode()) > LONGEST_PATH_BYTES
    except UnicodeEncodeError:
        raise ValueError(f"path = {path!r}: it is no text; {remedy}") from None
    simple = posixpath.normpath(posixpath.join(HOME, path))
    inside = simple == HOME or simple.startswith(HOME + "/")
    if not path or too_long or "\0" in path or ".." in path.split("/") or not inside:
        raise ValueError(f"path = {path[:200]!r}: it may not be copied; {remedy}")
    return simple[len(HOME) + 1 :]
