"""Files of a team become rows of a version: read, checked, compared and sealed, some seconds at a time.

    reading      every row of the source once; faults with their lines, the rows staged by split
    comparing    equal and near-equal rows of different splits
    sealing      the files of the version, and its manifest, whose digest is its name

A process works for a slice of time and ends; the next one goes on at its last commit (``workbench.py``).  With one
fault nothing is sealed.  Once the request or a file of the source is another one, the work begins anew.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from engine.datasets.canonical import canonical
from engine.datasets.overlaps import compare
from engine.datasets.request import SOURCE, preparation_in
from engine.datasets.sealing import seal
from engine.datasets.similarity import Bands, band_keys, evened, question_of, text_digest
from engine.datasets.source_files import rows_of, source_files
from engine.datasets.sources import Place, Read, SourceRow, fault, value_at
from engine.datasets.splits import split_of
from engine.datasets.workbench import Workbench, workbench_for
from engine.spec.dataset_preparation import MOST_COLUMNS, MOST_SPLITS, Preparation
from engine.spec.dataset_report import DuplicatesReport, PreparationReport, RowFault
from engine.spec.dataset_row import DatasetRow

SEALED = "sealed"
MOST_ROWS = 20_000_000
COMMIT_EVERY_S = 5.0


def prepare(folder: Path, *, seconds: float) -> PreparationReport:
    """Work on the preparation that lies in the folder, until it is done or the time is over.  Raises FolderRefused."""
    request = preparation_in(folder)
    similarity = request.duplicates.similarity
    bands = None if similarity is None else Bands.for_similarity(similarity)
    workbench = workbench_for(folder, bands, _asked(folder, request))
    try:
        return _Preparing(folder, request, bands, workbench, time.monotonic() + seconds).work()
    finally:
        workbench.close()


def _asked(folder: Path, request: Preparation) -> str:
    """What the rows depend on, as far as it shows without reading them."""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in source_files(folder / SOURCE)]
    return json.dumps([request.model_dump(mode="json"), files])


class _Preparing:
    def __init__(
        self, folder: Path, request: Preparation, bands: Bands | None, workbench: Workbench, until: float
    ) -> None:
        self._folder, self._request, self._bands = folder, request, bands
        self._workbench, self._until = workbench, until
        self._files = source_files(folder / SOURCE)
        self._columns: dict[str, None] = dict.fromkeys(workbench.value("columns", []))
        self._row = workbench.value("rows", 0)
        self._paths = [column for column in request.mapping.columns if "." in column]

    def work(self) -> PreparationReport:
        if self._workbench.value("stage", "reading") == "reading":
            if not self._read():
                return self._report("reading")
            self._end_reading()
        if self._workbench.value("stage") == "comparing":
            if not compare(self._workbench, self._request.duplicates, self._bands, self._until):
                return self._report("comparing")
            self._workbench.keep("stage", "sealing")
            self._workbench.commit()
        if self._workbench.value("faults", 0):
            return self._report("refused")
        seal(self._workbench, self._folder / SEALED, list(self._columns), self._request.mapping)
        return self._report("refused" if self._workbench.value("faults", 0) else "ready")

    # Reading
    def _read(self) -> bool:
        """Return whether all of the source is read."""
        place = self._workbench.place
        committed = time.monotonic()
        for number in range(place.file, len(self._files)):
            position, line = (place.position, place.line) if number == place.file else (0, 1)
            for read in rows_of(self._files[number], position, line):
                self._take(self._files[number], read)
                now = time.monotonic()
                if now - committed > COMMIT_EVERY_S or now > self._until:
                    self._commit(Place(number, read.position, read.next_line))
                    committed = now
                if now > self._until:
                    return False
        self._commit(Place(len(self._files)))
        return True

    def _commit(self, place: Place) -> None:
        self._workbench.keep("columns", list(self._columns))
        self._workbench.keep("rows", self._row)
        self._workbench.commit(place)

    def _take(self, file: Path, read: Read) -> None:
        if not isinstance(read, SourceRow):
            self._workbench.complain(read.fault)
            return
        self._columns.update(dict.fromkeys(read.values))
        paths = [column for column in self._paths if column not in self._columns]
        self._columns.update(dict.fromkeys(path for path in paths if value_at(read.values, path) is not None))
        row = canonical(file, read, self._request.mapping)
        faults = row if isinstance(row, list) else list(self._stage(file, read, row))
        if len(self._columns) > MOST_COLUMNS:
            message = f"with this row there are more than {MOST_COLUMNS} columns"
            faults = [fault(file, read.line, "", "", message, "give all rows the same keys")]
            self._columns = dict.fromkeys(list(self._columns)[:MOST_COLUMNS])
        for wrong in faults:
            self._workbench.complain(wrong)

    def _stage(self, file: Path, source: SourceRow, row: DatasetRow) -> Iterator[RowFault]:
        """Keep the row, unless it does not fit to those before it."""
        split = split_of(file, source, row, self._request)
        if isinstance(split, RowFault):
            yield split
            return
        if self._row >= MOST_ROWS:
            message = f"there are more than {MOST_ROWS} rows"
            yield fault(file, source.line, "", "", message, "make two datasets of them")
            return
        number = self._workbench.splits.get(split)
        if number is None:
            if len(self._workbench.splits) >= MOST_SPLITS:
                message = f"with this row there are more than {MOST_SPLITS} splits"
                yield fault(file, source.line, self._request.mapping.split or "", split, message, "use fewer names")
                return
            number = self._workbench.add_split(split)
        if (wrong := self._known_id(file, source, row) or self._strayed(file, source, row, number)) is not None:
            yield wrong
            return
        self._insert(file, source, row, number)

    def _known_id(self, file: Path, source: SourceRow, row: DatasetRow) -> RowFault | None:
        """Rows without an id of their own may be equal; the second gets a name of its own when it is inserted."""
        if self._request.mapping.id is None:
            return None
        known = self._workbench.rows.execute(
            "SELECT file, line FROM rows WHERE id = ?", [text_digest(row.id)]
        ).fetchone()
        if known is None:
            return None
        message = f"the row on line {known[1]} of {known[0]} has this id"
        return fault(file, source.line, self._request.mapping.id, row.id, message, "give each row an id of its own")

    def _strayed(self, file: Path, source: SourceRow, row: DatasetRow, split: int) -> RowFault | None:
        """Why a row of a group cannot stand in the split: others of its group stand in another one."""
        if row.group is None:
            return None
        digest = text_digest(row.group)
        self._workbench.rows.execute(
            "INSERT OR IGNORE INTO groups VALUES (?, ?, ?, ?)", [digest, split, file.name, source.line]
        )
        first, other_file, line = self._workbench.rows.execute(
            "SELECT split, file, line FROM groups WHERE digest = ?", [digest]
        ).fetchone()
        if first == split:
            return None
        message = f"line {line} of {other_file} is of the same group, and stands in {self._workbench.name_of(first)}"
        remedy = "put both into one split, or split by share, which keeps groups together"
        return fault(file, source.line, self._request.mapping.group or "", row.group, message, remedy)

    def _insert(self, file: Path, source: SourceRow, row: DatasetRow, split: int) -> None:
        if self._request.mapping.id is None:
            row = self._named_apart(row)
        line, text = row.line(), evened(question_of(row))
        begins = self._workbench.stage(split, line)
        self._workbench.rows.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [self._row, text_digest(row.id), text_digest(line.decode()), text_digest(text), split, begins, len(line),
             file.name, source.line],
        )  # fmt: skip
        for band, key in enumerate(band_keys(text, self._bands) if self._bands else []):
            self._workbench.rows.execute(f"INSERT INTO band_{band} VALUES (?, ?)", [key, self._row])
        self._row += 1

    def _named_apart(self, row: DatasetRow) -> DatasetRow:
        """Give equal rows ids of their own: the second is ``<id>-2``, the third ``<id>-3``."""
        copies, name = 1, row.id
        while self._workbench.rows.execute("SELECT 1 FROM rows WHERE id = ?", [text_digest(name)]).fetchone():
            copies = self._workbench.value(f"copies {row.id}", 1) + 1
            self._workbench.keep(f"copies {row.id}", copies)
            name = f"{row.id}-{copies}"
        return row if copies == 1 else row.model_copy(update={"id": name})

    def _end_reading(self) -> None:
        """Complain about what only the whole source shows, and go on to the next stage."""
        read = self._row > 0 or self._workbench.value("faults", 0)
        source = self._files[0] if self._files else self._folder
        if not read:
            self._workbench.complain(fault(source, None, "", "", "there is no row", "give files with a row at least"))
        for column in self._request.mapping.columns if self._columns else []:
            if column not in self._columns:
                remedy = f"map one of: {', '.join(list(self._columns)[:20])}; a field inside of one as column.field"
                self._workbench.complain(fault(source, None, column, column, "no row has this column", remedy))
        if self._request.splitting.kind == "share" and self._row:
            for share in self._request.splitting.splits:
                if share.name not in self._workbench.splits:
                    message = f"no row of {self._row} fell to the split {share.name}"
                    wrong = fault(source, None, "", share.name, message, "give it a larger share, or another seed")
                    self._workbench.complain(wrong)
        self._workbench.keep("stage", "comparing")
        self._workbench.commit()

    # Reporting
    def _report(self, state: str) -> PreparationReport:
        place = self._workbench.place
        done = sum(file.stat().st_size for file in self._files[: place.file])
        if place.file < len(self._files):
            size = self._files[place.file].stat().st_size
            done += min(place.position, size) if self._files[place.file].suffix.lower() != ".parquet" else 0
        return PreparationReport.model_validate(
            {
                "state": state,
                "bytes_done": done,
                "rows": self._row,
                "faults": self._workbench.value("faults", 0),
                "shown_faults": list(self._workbench.faults()) if state == "refused" else [],
                "duplicates": self._workbench.value("duplicates", DuplicatesReport().model_dump()),
            }
        )
