"""How long the rows of a version are under a model's tokenizer, counted some seconds at a time."""

import heapq
import json
import time
from pathlib import Path
from typing import Any

from engine.datasets.similarity import question_of
from engine.disk import write_durably
from engine.environments.dataset_reader import DatasetReader
from engine.models.pretrained_tokenizer import PretrainedTokenizer
from engine.models.refusal import ModelFolderRefused
from engine.spec.dataset_report import LengthsReport, SplitLengths

PROGRESS = "lengths.json"
MOST_LONGEST = 10
_EXACT = 2**17
"""Lengths up to this are counted one by one; longer ones count as this."""


def measure(version: Path, model: Path, folder: Path, *, seconds: float) -> LengthsReport:
    """Count on from what ``folder`` holds, until all rows are counted or the time is over."""
    until = time.monotonic() + seconds
    try:
        tokenizer = PretrainedTokenizer(model)
    except ModelFolderRefused as refused:
        return LengthsReport(state="refused", rows_done=0, rows=0, problem=str(refused.problem))
    with DatasetReader(version, verifies=False) as reader:
        counting = _Counting(reader, tokenizer, folder / PROGRESS)
        return counting.report(is_done=counting.count(until))


class _Counting:
    def __init__(self, reader: DatasetReader, tokenizer: PretrainedTokenizer, progress: Path) -> None:
        self._reader, self._tokenizer, self._progress = reader, tokenizer, progress
        kept: dict[str, Any] = json.loads(progress.read_bytes()) if progress.exists() else {}
        self._done: dict[str, int] = kept.get("done", {})
        self._counts: dict[str, dict[str, int]] = kept.get("counts", {})
        self._longest: list[list[Any]] = kept.get("longest", [])

    def count(self, until: float) -> bool:
        """Return whether every row is counted."""
        for split in self._reader.splits:
            counts = self._counts.setdefault(split, {})
            for row in self._reader.rows(split, self._done.get(split, 0)):
                tokens = len(self._tokenizer.encode(question_of(row)))
                length = str(min(tokens, _EXACT))
                counts[length] = counts.get(length, 0) + 1
                self._done[split] = self._done.get(split, 0) + 1
                (heapq.heappush if len(self._longest) < MOST_LONGEST else heapq.heappushpop)(
                    self._longest, [tokens, row.id]
                )
                if time.monotonic() > until:
                    self._keep()
                    return False
        return True

    def _keep(self) -> None:
        kept = {"done": self._done, "counts": self._counts, "longest": self._longest}
        write_durably(self._progress, json.dumps(kept).encode())

    def report(self, *, is_done: bool) -> LengthsReport:
        rows = self._reader.manifest.rows
        if not is_done:
            return LengthsReport(state="reading", rows_done=sum(self._done.values()), rows=rows)
        splits = [_summed(split, self._counts[split]) for split in self._reader.splits]
        longest = [f"{row_id}: {tokens} tokens" for tokens, row_id in sorted(self._longest, reverse=True)]
        return LengthsReport(state="ready", rows_done=rows, rows=rows, splits=splits, longest=longest)


def _summed(split: str, counts: dict[str, int]) -> SplitLengths:
    lengths = sorted((int(length), rows) for length, rows in counts.items())
    rows = sum(count for _, count in lengths)
    bins = [0] * (max(length for length, _ in lengths).bit_length() + 1)
    for length, count in lengths:
        bins[length.bit_length()] += count
    return SplitLengths(
        split=split, rows=rows, most=lengths[-1][0], mean=sum(length * count for length, count in lengths) / rows,
        percentiles=[_percentile(lengths, share * rows) for share in (0.5, 0.9, 0.95, 0.99)], bins=bins,
    )  # fmt: skip


def _percentile(lengths: list[tuple[int, int]], wanted: float) -> int:
    """The smallest length that so many rows do not exceed."""
    seen = 0
    for length, count in lengths:
        seen += count
        if seen >= wanted:
            return length
    return lengths[-1][0]
