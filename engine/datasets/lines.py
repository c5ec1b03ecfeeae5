"""Lines of a file that nobody has looked at yet: one at a time, none longer than a bound, each with its place."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LONGEST_ROW_BYTES = 4 * 2**20
"""The longest form of one row in its source; what is longer is skipped without being read into memory."""
_SKIPPED_BYTES = 2**20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    number: int
    """From 1."""
    content: bytes | None
    """Without its end; None of a line that is longer than ``LONGEST_ROW_BYTES``."""
    end: int
    """The place of the next line in the file."""


def lines_of(file: BinaryIO, begin: int, number: int) -> Iterator[Line]:
    """The lines from the byte ``begin`` on, the first of which is line ``number``.  A BOM is no part of the first."""
    file.seek(begin)
    while content := file.readline(LONGEST_ROW_BYTES + 2):
        is_whole = len(content.rstrip(b"\r\n")) <= LONGEST_ROW_BYTES
        if not content.endswith(b"\n"):
            _skip_line(file)
        if begin == 0:
            content = content.removeprefix(BOM)
        begin = file.tell()
        yield Line(number, content.rstrip(b"\r\n") if is_whole else None, begin)
        number += 1


def _skip_line(file: BinaryIO) -> None:
    """To the end of a line that goes on."""
    while (rest := file.readline(_SKIPPED_BYTES)) and not rest.endswith(b"\n"):
        pass
