"""A version's files as one tar, of which any part can be read: nothing of it is ever in memory as a whole.

The layout follows from names and sizes alone, so equal versions are equal archives, and a cut download goes on at the
byte where it stopped.
"""

import os
import tarfile
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 512
_CHUNK_BYTES = 2**20
_END = bytes(2 * _BLOCK)
"""Two blocks of zeros end a tar."""


@dataclass(frozen=True)
class _Piece:
    begins: int
    size: int
    content: bytes | Path
    """A file is ``size`` bytes from its beginning."""


class Archive:
    """``sizes`` names the files with their bytes.  Raises OSError where one is not there as it was stored."""

    def __init__(
        self,
        folder: Path,
        sizes: Mapping[str, int],
        *,
        prefix: str,
        executables: Container[str] = (),
        folders: Iterable[str] = (),
    ) -> None:
        self._pieces: list[_Piece] = []
        self.size = 0
        for name in sorted(folders):
            self._add(_header(f"{prefix}/{name}", 0, tarfile.DIRTYPE, 0o755))
        for name, size in sorted(sizes.items()):
            if (found := (folder / name).stat().st_size) != size:
                raise OSError(f"{name} has {found} bytes, and had {size} when it was stored")
            self._add(_header(f"{prefix}/{name}", size, tarfile.REGTYPE, 0o755 if name in executables else 0o644))
            self._add(folder / name, size)
            self._add(bytes(-size % _BLOCK))
        self._add(_END)

    def _add(self, content: bytes | Path, size: int = -1) -> None:
        size = len(content) if isinstance(content, bytes) else size
        self._pieces.append(_Piece(self.size, size, content))
        self.size += size

    def read(self, first: int, last: int) -> Iterator[bytes]:
        """The bytes from ``first`` to ``last``, both included.  Raises OSError for a file that has become shorter."""
        for piece in self._pieces:
            begin, end = max(first - piece.begins, 0), min(last + 1 - piece.begins, piece.size)
            if begin >= end:
                continue
            if isinstance(piece.content, bytes):
                yield piece.content[begin:end]
            else:
                yield from _read(piece.content, begin, end)


def _header(name: str, size: int, kind: bytes, mode: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.mode = size, kind, mode
    return member.tobuf(tarfile.PAX_FORMAT)


def _read(path: Path, begin: int, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while begin < end:
            chunk = os.pread(file.fileno(), min(_CHUNK_BYTES, end - begin), begin)
            if not chunk:
                raise OSError(f"{path.name} has become shorter than it was")
            begin += len(chunk)
            yield chunk
