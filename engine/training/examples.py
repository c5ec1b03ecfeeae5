"""What a supervised stage learns, by number: held in memory, or read from a file as it is needed.

A file is read once from its beginning to its end before its first step.  What stays in memory is where each example
begins and how many tokens it has (32 bytes an example), never its content; so a file may be larger than the memory.
The renderer that turns a line into token ids is handed in: training knows none.
"""

import hashlib
import os
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from engine.failures import RunFailed
from engine.training.batch import Sample, sample_of
from engine.training.recordings import BadRecording

Sequences = Sequence[tuple[list[int], list[bool]]]
"""An example's token ids, and which of them are learned; more than one sequence where a template rewrites history."""
LineReader = Callable[[str, int], Sequences]
"""The example of a line and of its number, from 1.  Raises ValueError, which names line, field and remedy."""

MOST_SHOWN = 3
"""Documents that cannot be learned from, of which is reported why; the others are counted."""
MOST_LINE_BYTES = 64 * 2**20
"""A longer line is no conversation but a file that lacks its newlines."""


class Examples(Protocol):
    @property
    def tokens(self) -> np.ndarray:
        """int64: how many tokens each example has."""
        ...

    def samples(self, number: int) -> Sequence[Sample]:
        """Those of one example, the first of which opens it."""
        ...


@dataclass(frozen=True)
class HeldExamples:
    """Examples in memory."""

    held: Sequence[Sequence[Sample]]

    @property
    def tokens(self) -> np.ndarray:
        return np.array([sum(map(len, samples)) for samples in self.held], dtype=np.int64)

    def samples(self, number: int) -> Sequence[Sample]:
        return self.held[number]


@dataclass
class Counts:
    """They say what became of a file's documents."""

    documents: int = 0
    examples: int = 0
    cut: int = 0
    dropped: int = 0
    """They did not fit into the context."""
    split: int = 0
    untaught: int = 0
    """Nothing of them would have been learned."""
    refused: int = 0
    """They cannot be learned from."""


class FileExamples:
    """The examples of a file of JSON documents, one a line.

    ``read_on`` is called until it answers True; only then are there examples.  Raises BadRecording for a file, at its
    end for all of its documents together, and RunFailed for one that changes afterwards.
    """

    def __init__(
        self, path: Path, reader: LineReader, *, field: str, context_tokens: int, too_long: str, sha256: str | None
    ) -> None:
        """``field`` is the path of the stage's data in the spec, for messages."""
        self.path, self._reader, self._field = path, reader, field
        self._context_tokens, self._too_long, self._sha256 = context_tokens, too_long, sha256
        self.counts = Counts()
        self.digest: str | None = None
        """That of the whole file, once it is read."""
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._stamp = (0, 0)
        self._line = 0
        self._refusals: list[str] = []
        self._offsets: array[int] = array("q")
        self._lines: array[int] = array("q")
        self._parts: array[int] = array("q")
        """Which piece of a document that was split; 0 elsewhere."""
        self._tokens: array[int] = array("q")

    @property
    def tokens(self) -> np.ndarray:
        return np.frombuffer(self._tokens, dtype=np.int64) if self._tokens else np.zeros(0, dtype=np.int64)

    def read_on(self, least_bytes: int) -> bool:
        """Read the next lines, at least so many bytes of them; whether the file is read to its end."""
        if self.digest is not None:
            return True
        file = self._opened()
        until = file.tell() + least_bytes
        while file.tell() < until:
            offset = file.tell()
            line = self._next_line(file)
            if not line:
                self._finish()
                return True
            self._hash.update(line)
            if line.removeprefix(BOM_UTF8).strip():
                self._index(line, offset)
        return False

    def samples(self, number: int) -> Sequence[Sample]:
        file = self._opened()
        self._check_unchanged(file)
        file.seek(self._offsets[number])
        pieces = self._fitting(self._sequences(file.readline(MOST_LINE_BYTES), self._lines[number]), Counts())
        return _samples(pieces[self._parts[number]])

    def _opened(self) -> BinaryIO:
        if self._file is None:
            try:
                self._file = self.path.open("rb")
            except OSError as error:
                raise BadRecording(f"{self.path}: cannot be read: {error.strerror}") from error
            self._stamp = _stamp_of(self._file)
        return self._file

    def _next_line(self, file: BinaryIO) -> bytes:
        self._line += 1
        try:
            line = file.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise BadRecording(f"{self.path}: cannot be read: {error.strerror}") from error
        if len(line) > MOST_LINE_BYTES:
            problem = f"is longer than {MOST_LINE_BYTES} bytes: one document a line"
            raise BadRecording(f"{self._where(self._line)}: {problem}")
        return line

    def _index(self, line: bytes, offset: int) -> None:
        self.counts.documents += 1
        try:
            pieces = self._fitting(self._sequences(line, self._line), self.counts)
        except BadRecording as refusal:
            self.counts.refused += 1
            self._refusals = [*self._refusals, str(refusal)][:MOST_SHOWN]
            return
        for part, sequences in enumerate(pieces):
            if not any(map(any, (learned for _, learned in sequences))):
                self.counts.untaught += 1
                continue
            self.counts.examples += 1
            self._offsets.append(offset)
            self._lines.append(self._line)
            self._parts.append(part)
            self._tokens.append(sum(len(ids) for ids, _ in sequences))

    def _sequences(self, line: bytes, number: int) -> Sequences:
        try:
            # A byte order mark may open a file.
            return self._reader(line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n"), number)
        except UnicodeDecodeError as error:
            raise BadRecording(f"{self._where(number)}: is no UTF-8: {error.reason} at byte {error.start}") from error
        except ValueError as error:
            raise BadRecording(f"{self.path}: {error}") from error

    def _fitting(self, sequences: Sequences, counts: Counts) -> list[Sequences]:
        """The examples of a document, each within the context: one, or none, or the pieces of a text."""
        most = self._context_tokens
        longest = max((len(ids) for ids, _ in sequences), default=0)
        if longest <= most:
            return [sequences]
        match self._too_long:
            case "cut":
                counts.cut += 1
                return [[(ids[:most], learned[:most]) for ids, learned in sequences]]
            case "drop":
                counts.dropped += 1
                return []
            case "split":
                counts.split += 1
                return [[piece] for ids, learned in sequences for piece in _pieces(ids, learned, most)]
        raise BadRecording(
            f"{self._where(self._line)}: {longest} tokens do not fit into model.context_tokens = {most}; "
            f"shorten it, or set {self._field}.too_long"
        )

    def _finish(self) -> None:
        assert self._file is not None
        self._check_unchanged(self._file)
        digest = self._hash.hexdigest()
        if self._sha256 not in (None, digest):
            raise BadRecording(
                f"{self._field}.sha256 = {self._sha256!r}: {self.path} has {digest}; "
                "name the file that was meant, or its present content"
            )
        self._check_documents()
        self.digest = digest

    def _check_documents(self) -> None:
        counts, refusals = self.counts, self._refusals
        if counts.refused == 1:
            raise BadRecording(refusals[0])
        if counts.refused:
            shown = refusals[:1] if counts.refused == counts.documents else refusals
            reasons = " | ".join(refusal.removeprefix(f"{self.path}: ") for refusal in shown)
            number = f"{counts.refused} of {counts.documents} documents"
            raise BadRecording(f"{self.path}: {number} cannot be learned from, first: {reasons}")
        if not counts.examples:
            why = f"{counts.documents} documents, {counts.dropped} too long, {counts.untaught} with no turn to learn"
            remedy = f"write one document a line with something to learn, or name another file in {self._field}.file"
            raise BadRecording(f"{self.path}: holds nothing to learn ({why}); {remedy}")

    def _check_unchanged(self, file: BinaryIO) -> None:
        if _stamp_of(file) != self._stamp:
            raise RunFailed(f"{self.path} has changed since the run read it; a run learns from one content")

    def _where(self, line: int) -> str:
        return f"{self.path}: line {line}"


def _stamp_of(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _pieces(ids: list[int], learned: list[bool], most: int) -> list[tuple[list[int], list[bool]]]:
    """In a row, each of which begins with the last token of the one before, so that every token has one to predict it.

    So a text in pieces is learned to the same tokens as in one, with a shorter past.
    """
    pieces = []
    for start in range(0, len(ids) - 1, most - 1):
        piece = ids[start : start + most]
        pieces.append((piece, [False, *learned[start + 1 : start + most]]))
    return pieces


def _samples(sequences: Sequences) -> list[Sample]:
    samples = [sample_of(ids, learned) for ids, learned in sequences if any(learned)]
    return [replace(sample, opens=number == 0) for number, sample in enumerate(samples)]
