"""Parquet gives the rows that JSON lines give, and what its metadata claims is no more than a claim."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from engine.datasets.parquet_file import ROWS_AT_ONCE
from engine.environments import dataset_reader
from tests.engine.datasets.sources import folder_with, json_lines, prepared
from tests.engine.datasets.test_preparation import in_a_small_process

ROWS = [{"prompt": f"What is {n} times {n}?", "answer": n * n} for n in range(150)]
MAPPED: dict[str, Any] = {"mapping": {"prompt": "prompt", "answer": "answer"}}


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, **options)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7}, {"compression": "zstd"}, {"use_dictionary": False}])
def test_rows_are_those_of_json_lines(tmp_path: Path, options: dict[str, Any]) -> None:
    assert len(ROWS) > 2 * ROWS_AT_ONCE
    plain, _ = prepared(tmp_path / "plain", {"q.jsonl": json_lines(ROWS)}, MAPPED)
    folder, report = prepared(tmp_path / "parquet", {"q.parquet": parquet(ROWS, **options)}, MAPPED)
    assert report.state == "ready", report
    assert (folder / "dataset.json").read_bytes() == (plain / "dataset.json").read_bytes()


def test_messages_and_metadata_are_read_as_lists_and_objects(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    info = {"day": datetime.date(2026, 1, 2), "price": Decimal("1.50"), "none": None}
    wanted = {"mapping": {"messages": "chat", "metadata": "info"}}
    folder, report = prepared(tmp_path, {"q.parquet": parquet([{"chat": chat, "info": info}])}, wanted)
    assert report.state == "ready", report
    row = dataset_reader.open(folder).row("train", 0)
    assert row.messages is not None
    assert row.messages[0].content == "Hello"
    assert row.metadata == {"day": "2026-01-02", "price": "1.50"}


def test_a_fault_has_the_number_of_its_row(tmp_path: Path) -> None:
    rows = [*ROWS[:99], {"prompt": None, "answer": 1}, *ROWS[100:]]
    _, report = prepared(tmp_path, {"q.parquet": parquet(rows, row_group_size=10)}, MAPPED)
    assert [(fault.line, fault.column) for fault in report.shown_faults] == [(100, "prompt")]


def test_bytes_are_a_fault_of_their_row_and_not_text(tmp_path: Path) -> None:
    _, report = prepared(tmp_path, {"q.parquet": parquet([{"prompt": b"\xff"}])})
    assert "bytes" in report.shown_faults[0].message


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"PAR1" + b"\xff" * 100 + b"PAR1",
        lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1",
        lambda data: data[:40] + b"\x00" * 200 + data[240:],
    ],
)
def test_a_file_that_lies_is_a_fault_and_nothing_is_published(tmp_path: Path, damage: Any) -> None:
    folder, report = prepared(tmp_path, {"q.parquet": damage(parquet(ROWS, compression="none"))}, MAPPED)
    assert (report.state, folder.exists()) == ("refused", False)
    assert report.shown_faults[0].line is None


def test_more_columns_than_any_dataset_has_are_refused(tmp_path: Path) -> None:
    _, report = prepared(tmp_path, {"q.parquet": parquet([{f"c{n}": 1 for n in range(1001)}])})
    assert "1001 columns" in report.shown_faults[0].message


def test_a_small_file_that_unpacks_to_gigabytes_ends_in_a_fault_of_the_file(tmp_path: Path) -> None:
    """One string of 64 MiB, of which a dictionary makes a million rows."""
    large = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 10**5, pyarrow.int32()), pyarrow.array(["x" * 2**26])
    )
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"prompt": large}), sink, compression="zstd")
    assert len(content := bytes(sink.getvalue())) < 2**20
    folder = folder_with(tmp_path, {"q.parquet": content})
    report = in_a_small_process(folder, most_bytes=2 * 2**30)
    assert report["state"] == "refused"
    assert "cannot be read as Parquet" in report["shown_faults"][0]["message"]
