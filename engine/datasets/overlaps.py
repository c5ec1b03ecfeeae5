"""Rows of different splits that ask the same, or nearly so.

Of a pair, the row of the larger split is the one at fault: it is reported, refused or left out, so that the smaller
split, which is what policies are examined on, stays whole.
"""

import time
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from engine.datasets.similarity import Bands, evened, question_of, shingles, similarity_of
from engine.datasets.sources import fault
from engine.datasets.workbench import Workbench
from engine.spec.dataset_preparation import Duplicates
from engine.spec.dataset_report import MOST_SAMPLES, DuplicatesReport, Overlap
from engine.spec.dataset_row import DatasetRow

MOST_REPRESENTATIVES = 32
"""Rows of a split, of those that agree in a band, with which rows of other splits are compared.  More of them are
copies of one form, and comparing all with all would take the square of their number."""


def compare(workbench: Workbench, wanted: Duplicates, bands: Bands | None, until: float) -> bool:
    """Return whether all is compared.  A slice compares one band at least, and never leaves one in between."""
    comparison = _Comparison(workbench, wanted)
    if not workbench.value("equal texts compared"):
        comparison.compare_equal_texts()
        workbench.keep("equal texts compared", True)
        workbench.commit()
    count = bands.count if bands else 0
    for band in range(workbench.value("bands compared", 0), count):
        comparison.compare_band(band)
        workbench.keep("bands compared", band + 1)
        workbench.commit()
        if band + 1 < count and time.monotonic() > until:
            return False
    comparison.settle()
    return True


class _Comparison:
    def __init__(self, workbench: Workbench, wanted: Duplicates) -> None:
        self._workbench, self._wanted = workbench, wanted
        self._sizes = workbench.rows_in()
        self._shingles = lru_cache(256)(self._shingles_of)

    def _larger(self, one: int, other: int) -> int:
        """The larger of two splits; of equal ones the one that came first."""
        return max(one, other, key=lambda split: (self._sizes[split], -split))

    def compare_equal_texts(self) -> None:
        rows = self._workbench.rows
        rows.execute("CREATE INDEX IF NOT EXISTS row_texts ON rows (text, split, number)")
        texts = rows.execute("SELECT COUNT(*) FROM (SELECT DISTINCT text, split FROM rows)").fetchone()[0]
        self._workbench.keep("within", sum(self._sizes.values()) - texts)
        shared = "SELECT text FROM rows GROUP BY text HAVING MIN(split) < MAX(split)"
        found = rows.execute(
            f"SELECT text, split, MIN(number) FROM rows WHERE text IN ({shared}) GROUP BY text, split ORDER BY text"
        )
        for text, alike in groupby(found, key=itemgetter(0)):
            self._blame(text, {split: first for _, split, first in alike})

    def _blame(self, text: bytes, firsts: dict[int, int]) -> None:
        """Blame the rows with one text in every split but the smallest; ``firsts`` has a row of each."""
        smallest = min(firsts, key=lambda split: (self._sizes[split], -split))
        for split in firsts.keys() - {smallest}:
            self._workbench.rows.execute(
                "INSERT OR IGNORE INTO overlaps SELECT number, ?, 1.0 FROM rows WHERE text = ? AND split = ?",
                [firsts[smallest], text, split],
            )

    def compare_band(self, band: int) -> None:
        rows = self._workbench.rows
        rows.execute(f"CREATE INDEX IF NOT EXISTS band_keys_{band} ON band_{band} (key, row)")
        joined = f"band_{band} b JOIN rows r ON r.number = b.row"
        agreeing = f"SELECT b.key FROM {joined} GROUP BY b.key HAVING MIN(r.split) < MAX(r.split)"
        for (key,) in rows.execute(agreeing):
            bucket = f"SELECT r.split, r.number, r.text FROM {joined} WHERE b.key = {int(key)}"
            self._compare_bucket(bucket)

    def _compare_bucket(self, bucket: str) -> None:
        """Its rows are read twice, so that a bucket of all rows takes no more memory than another."""
        representatives: dict[int, dict[bytes, int]] = {}
        for split, number, text in self._workbench.rows.execute(bucket):
            known = representatives.setdefault(split, {})
            if len(known) < MOST_REPRESENTATIVES:
                known.setdefault(text, number)
        for split, number, text in self._workbench.rows.execute(bucket):
            for other, known in representatives.items():
                if other != split and self._larger(split, other) == split:
                    self._compare_row(number, text, known)

    def _compare_row(self, number: int, text: bytes, known: dict[bytes, int]) -> None:
        if self._workbench.rows.execute("SELECT 1 FROM overlaps WHERE row = ?", [number]).fetchone():
            return
        for other_text, other in known.items():
            similarity = 1.0 if other_text == text else similarity_of(self._shingles(number), self._shingles(other))
            if similarity >= (self._wanted.similarity or 1.0):
                self._overlap(number, other, similarity)
                return

    def _shingles_of(self, number: int) -> frozenset[str]:
        return shingles(evened(question_of(self._row(number))))

    def _row(self, number: int) -> DatasetRow:
        return DatasetRow.model_validate_json(self._workbench.staged_line(number))

    def _overlap(self, row: int, other: int, similarity: float) -> None:
        self._workbench.rows.execute("INSERT OR IGNORE INTO overlaps VALUES (?, ?, ?)", [row, other, similarity])

    def settle(self) -> None:
        """Report what was found, and complain about it where it is refused."""
        rows = self._workbench.rows
        count, near = rows.execute("SELECT COUNT(*), COALESCE(SUM(similarity < 1), 0) FROM overlaps").fetchone()
        drops = self._wanted.across_splits == "drop"
        samples = [self._sample(*found) for found in self._found(MOST_SAMPLES)]
        report = DuplicatesReport(
            within_splits=self._workbench.value("within"), across_splits=count, near=near,
            dropped=count if drops else 0, samples=samples,
        )  # fmt: skip
        self._workbench.keep("duplicates", report.model_dump())
        self._workbench.keep("drops", drops)
        if self._wanted.across_splits == "refuse":
            for row, other, similarity in self._found(-1):
                self._complain(row, other, similarity)

    def _found(self, most: int) -> list[tuple[int, int, float]]:
        return list(
            self._workbench.rows.execute("SELECT row, other, similarity FROM overlaps ORDER BY row LIMIT ?", [most])
        )

    def _sample(self, row: int, other: int, similarity: float) -> Overlap:
        splits = [self._source(number)[0] for number in (row, other)]
        return Overlap(
            split=splits[0], id=self._row(row).id, other_split=splits[1], other_id=self._row(other).id,
            similarity=round(similarity, 3),
        )  # fmt: skip

    def _source(self, number: int) -> tuple[str, str, int]:
        """Split, file and line of a row."""
        split, file, line = self._workbench.rows.execute(
            "SELECT split, file, line FROM rows WHERE number = ?", [number]
        ).fetchone()
        return self._workbench.name_of(split), file, line

    def _complain(self, row: int, other: int, similarity: float) -> None:
        split, file, line = self._source(row)
        other_split, other_file, other_line = self._source(other)
        how = "asks the same as" if similarity == 1 else f"asks nearly the same ({similarity:.2f}) as"
        message = f"it stands in {split} and {how} line {other_line} of {other_file} in {other_split}"
        remedy = 'leave one of them out, or set duplicates.across_splits = "drop" or "report"'
        self._workbench.complain(fault(Path(file), line, "", "", message, remedy))
