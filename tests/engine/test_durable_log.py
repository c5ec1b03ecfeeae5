"""The one format of logs on disk: whole lines, whoever is killed, whatever the disk does, however many write."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import NonNegativeInt, TypeAdapter

from engine import durable_log
from engine.durable_log import Cursor, DamagedCursor, LogReader, LogWriter, Segment, segments, whole_lines, writer_of


def taken(reader: LogReader) -> list[bytes]:
    lines: list[bytes] = []
    for piece in reader.pieces():
        lines += piece.lines
        reader.passed(piece)
    return lines


def reader_of(folder: Path) -> LogReader:
    return LogReader(folder, folder / "read.json")


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_reader_gets_the_lines_of_all_writers_each_in_its_order(folder: Path) -> None:
    first, second = LogWriter(folder, "a", segment_bytes=100), LogWriter(folder, "b", segment_bytes=100)
    for number in range(50):
        first.append(b"a%d" % number)
        second.append(b"b%d" % number)
    lines = taken(reader_of(folder))
    assert [line for line in lines if line.startswith(b"a")] == [b"a%d" % number for number in range(50)]
    assert [line for line in lines if line.startswith(b"b")] == [b"b%d" % number for number in range(50)]
    assert len(lines) == 100


def test_a_segment_is_removed_once_it_was_read_and_has_a_successor(folder: Path) -> None:
    writer, reader = LogWriter(folder, "a", segment_bytes=5), reader_of(folder)
    for line in (b"first", b"second", b"third"):
        writer.append(line)
    assert len(segments(folder)) == 3
    assert taken(reader) == [b"first", b"second", b"third"]
    assert [path.name for path in segments(folder)] == ["a-000003.jsonl"]
    assert json.loads((folder / "read.json").read_bytes()) == {"a-000003.jsonl": 6}
    writer.append(b"fourth")
    assert taken(reader) == [b"fourth"]


def test_what_was_not_taken_in_is_given_again_and_nothing_of_it_removed(folder: Path) -> None:
    writer = LogWriter(folder, "a", segment_bytes=5)
    for line in (b"first", b"second"):
        writer.append(line)
    assert [piece.lines for piece in reader_of(folder).pieces()] == [[b"first"], [b"second"]]
    assert len(segments(folder)) == 2
    assert taken(reader_of(folder)) == [b"first", b"second"]
    assert taken(reader_of(folder)) == []


def test_a_torn_tail_is_read_when_it_is_whole_and_never_before(folder: Path) -> None:
    LogWriter(folder, "a", segment_bytes=1000).append(b"first")
    [path] = segments(folder)
    with path.open("ab") as file:
        file.write("bö".encode()[:2])
    reader = reader_of(folder)
    assert taken(reader) == [b"first"]
    with path.open("ab") as file:
        file.write("bö\n".encode()[2:])
    assert [line.decode() for line in taken(reader)] == ["bö"]


def test_a_torn_tail_that_nobody_will_ever_finish_does_not_keep_its_segment(folder: Path) -> None:
    writer = LogWriter(folder, "a", segment_bytes=5)
    writer.append(b"first")
    with segments(folder)[0].open("ab") as file:
        file.write(b"torn")
    writer.append(b"second")
    assert taken(reader_of(folder)) == [b"first", b"second"]
    assert [path.name for path in segments(folder)] == ["a-000002.jsonl"]


@pytest.mark.parametrize("longer_by", [-1, 0, 1, 100])
def test_a_line_longer_than_a_reader_takes_at_once_stops_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, longer_by: int
) -> None:
    monkeypatch.setattr(durable_log, "READ_BYTES", 50)
    long = b"x" * (50 + longer_by)
    writer = LogWriter(folder, "a", segment_bytes=1000)
    for line in (b"before", long, b"after"):
        writer.append(line)
    assert taken(reader_of(folder)) == [b"before", long, b"after"]


def test_an_empty_line_is_a_line(folder: Path) -> None:
    writer = LogWriter(folder, "a", segment_bytes=1000)
    for line in (b"", b"next", b""):
        writer.append(line)
    assert taken(reader_of(folder)) == [b"", b"next", b""]


def test_a_failed_write_leaves_nothing_and_the_segment_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    segment = Segment.begun(folder / "a.jsonl", sync=True)
    segment.append([b"first"], sync=True)
    with monkeypatch.context() as full:
        full.setattr(durable_log.os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            segment.append([b"second", b"third"], sync=True)
    assert (folder / "a.jsonl").read_bytes() == b"first\n"
    segment.append([b"fourth"], sync=True)
    assert (folder / "a.jsonl").read_bytes() == b"first\nfourth\n"


def test_a_segment_that_cannot_be_cut_has_ended_and_its_writer_begins_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, write = LogWriter(folder, "a", segment_bytes=1000), os.write
    writer.append(b"first")
    written: list[int] = []

    def half(descriptor: int, content: memoryview) -> int:
        if written:
            full_disk()
        written.append(write(descriptor, content[:3]))
        return 3

    with monkeypatch.context() as failing:
        failing.setattr(durable_log.os, "write", half)
        failing.setattr(durable_log.os, "ftruncate", full_disk)
        with pytest.raises(OSError, match="No space left"):
            writer.append(b"second")
    writer.append(b"third")
    assert (folder / "a-000001.jsonl").read_bytes() == b"first\nsec"
    assert taken(reader_of(folder)) == [b"first", b"third"]


def test_an_ended_segment_takes_nothing(folder: Path) -> None:
    folder.mkdir()
    segment = Segment.begun(folder / "a.jsonl", sync=False)
    segment.close()
    segment.close()
    with pytest.raises(OSError, match="has ended"):
        segment.append([b"late"], sync=False)


def test_no_segment_is_begun_over_lines_that_stand_there(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"first\n")
    with pytest.raises(FileExistsError):
        Segment.begun(folder / "a.jsonl", sync=False)
    assert (folder / "a.jsonl").read_bytes() == b"first\n"


def test_a_reopened_segment_goes_on_after_its_whole_lines(folder: Path) -> None:
    folder.mkdir()
    path = folder / "a.jsonl"
    path.write_bytes(b"first\nto")
    Segment.reopened(path, size=len(whole_lines(path, 0))).append([b"second"], sync=False)
    assert path.read_bytes() == b"first\nsecond\n"


@pytest.mark.parametrize("content", [b'{"a', b"", b"7", b'{"a": "far"}', b'{"a": 1.5}'])
def test_a_spoilt_cursor_costs_repetition_only(folder: Path, content: bytes) -> None:
    LogWriter(folder, "a", segment_bytes=1000).append(b"first")
    assert taken(reader_of(folder)) == [b"first"]
    (folder / "read.json").write_bytes(content)
    assert taken(reader_of(folder)) == [b"first"]
    assert taken(reader_of(folder)) == []


@pytest.mark.parametrize("content", [b"", b"-1", b"1.0", b'"7"', b"seven", b"null"])
def test_a_spoilt_number_is_no_number(tmp_path: Path, content: bytes) -> None:
    cursor: Cursor[int] = Cursor(tmp_path / "acked", TypeAdapter(NonNegativeInt), sync=True)
    assert cursor.read() is None
    (tmp_path / "acked").write_bytes(content)
    with pytest.raises(DamagedCursor, match="acked does not say how far was read"):
        cursor.read()
    cursor.write(7)
    assert cursor.read() == 7


@pytest.mark.parametrize(
    ("name", "writer"),
    [("a-000001", "a"), ("a-b-12", "a-b"), ("0f3c", "0f3c"), ("a-b", "a-b"), ("-1", ""), ("a-²", "a-²")],
)
def test_a_segment_without_a_number_is_the_only_one_of_its_writer(name: str, writer: str) -> None:
    """Version 0.2 wrote one file each, without numbers."""
    assert writer_of(Path(f"{name}.jsonl")) == writer


def test_a_log_of_0_2_is_read_on_from_its_cursor_and_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / "5f0c9a1e7b4d4f6f9f4a3c2b1a098765.jsonl").write_bytes(b"first\nsecond\n")
    (folder / "read.json").write_text('{"5f0c9a1e7b4d4f6f9f4a3c2b1a098765.jsonl": 6}')
    LogWriter(folder, "a", segment_bytes=1000).append(b"third")
    assert taken(reader_of(folder)) == [b"second", b"third"]
    assert len(segments(folder)) == 2


KILLED = """
import sys
from pathlib import Path
from engine.durable_log import LogWriter
writer, number = LogWriter(Path(sys.argv[1]), sys.argv[2], segment_bytes=2000), 0
while True:
    writer.append(b"%d:" % number + b"x" * 60)
    print(number, flush=True)
    number += 1
"""


def test_killed_writers_lose_nothing_that_they_had_written(folder: Path) -> None:
    """Three of them, read while they write."""
    reader, last, lines = reader_of(folder), dict[str, int](), list[bytes]()
    command = [sys.executable, "-c", KILLED, str(folder)]
    writers = {name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "abc"}
    for name, process in writers.items():
        with process:
            assert process.stdout
            for _ in range(200):
                last[name] = int(process.stdout.readline())
            lines += taken(reader)
            process.kill()
    lines += taken(reader)
    numbers = [int(line.split(b":")[0]) for line in lines]
    assert all(numbers.count(number) == 3 for number in range(min(last.values()) + 1))
    assert all(len(line.partition(b":")[2]) == 60 for line in lines)
    assert len(segments(folder)) == 3
