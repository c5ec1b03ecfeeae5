"""Files of a team become rows, whatever they hold; what cannot be taken is a fault with its line and column."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.datasets import preparation as module
from engine.datasets.lines import LONGEST_ROW_BYTES
from engine.datasets.preparation import prepare
from engine.environments import dataset_reader
from engine.environments.dataset_reader import DamagedDataset, NoSuchRow
from engine.spec.dataset_report import MOST_FAULTS
from tests.engine.datasets.sources import folder_with, json_lines, prepared

ROWS = [{"prompt": f"What is {n} times {n}?", "answer": n * n} for n in range(40)]
ANSWERS: dict[str, Any] = {"mapping": {"prompt": "prompt", "answer": "answer"}}


def faults_of(
    tmp_path: Path, content: bytes, name: str = "q.jsonl", **preparation: Any
) -> list[tuple[int | None, str, str]]:
    folder, report = prepared(tmp_path, {name: content}, preparation)
    assert report.state == "refused", report
    assert not folder.exists() or not (folder / "dataset.json").exists()
    assert all(fault.remedy and fault.message for fault in report.shown_faults)
    return [(fault.line, fault.column, fault.message) for fault in report.shown_faults]


# Formats
def test_rows_of_every_format_are_the_same_rows(tmp_path: Path) -> None:
    lines = json_lines(ROWS)
    table = b"prompt,answer\n" + b"".join(f'"{row["prompt"]}",{row["answer"]}\n'.encode() for row in ROWS)
    digests = set()
    for name, content in {
        "q.jsonl": lines,
        "bom.jsonl": b"\xef\xbb\xbf" + lines,
        "crlf.jsonl": lines.replace(b"\n", b"\r\n"),
        "blank.jsonl": b"\n" + lines.replace(b"\n", b"\n\n"),
        "unended.jsonl": lines.rstrip(b"\n"),
        "q.csv": table,
        "bom.csv": b"\xef\xbb\xbf" + table.replace(b"\n", b"\r\n"),
        "q.tsv": table.replace(b",", b"\t"),
        "semicolon.csv": table.replace(b",", b";"),
    }.items():
        folder, report = prepared(tmp_path / name, {name: content}, ANSWERS)
        assert (report.state, report.rows) == ("ready", 40), (name, report)
        digests.add((folder / "dataset.json").read_bytes())
    assert len(digests) == 1


def test_a_quoted_cell_goes_on_over_lines_and_the_next_record_knows_its_line(tmp_path: Path) -> None:
    content = b'prompt,answer\n"one\ntwo ""three""",1\n"x",2,3\n'
    assert faults_of(tmp_path, content, "q.csv")[0][:2] == (4, "")
    folder, _ = prepared(tmp_path / "whole", {"q.csv": content.rsplit(b'"x"')[0]}, ANSWERS)
    assert dataset_reader.open(folder).row("train", 0).prompt == 'one\ntwo "three"'


def test_messages_metadata_and_tool_calls_are_kept(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "python", "arguments": {"code": "1+1"}}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    row = {
        "chat": messages,
        "meta": {"level": [1, {"x": None}]},
        "source": "web",
        "split": "heldout",
        "image": "python:3.11",
    }
    mapping = {"messages": "chat", "metadata": "meta", "metadata_keys": ["source"], "split": "split", "image": "image"}
    wanted = {"mapping": mapping, "splitting": {"kind": "column"}}
    folder, report = prepared(tmp_path, {"q.jsonl": json_lines([row])}, wanted)
    assert report.state == "ready", report
    stored = dataset_reader.open(folder).row("heldout", 0)
    assert stored.metadata == {"level": [1, {"x": None}], "source": "web"}
    assert stored.messages is not None
    assert stored.messages[1].tool_calls is not None
    assert stored.messages[1].tool_calls[0].function.arguments == {"code": "1+1"}
    assert stored.image == "python:3.11"


# Hostile
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "a\\u0000b"}', "NUL"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"prompt": "x", "m": NaN}', "NaN"),
        (b'{"prompt": "x", "m": 1e999}', "beyond a double"),
        (b'{"prompt": "x", "m": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"prompt": "x", "m": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested"),
        (b'{"prompt": "x", "prompt": "y"}', "twice"),
        (b'{"prompt": "\xc3\x28"}', "UTF-8"),
        (b'{"prompt": "   "}', "empty"),
        (b'{"prompt": "x", "": 1}', "name"),
        (b"{" + b",".join(b'"c%d": 1' % n for n in range(1001)) + b', "prompt": "x"}', "columns"),
        (b"\x00\x00\x00", "JSON"),
        (b"null", "object"),
    ],
)
def test_a_hostile_row_is_one_fault_and_the_rows_around_it_are_read(tmp_path: Path, line: bytes, words: str) -> None:
    content = b'{"prompt": "before"}\n' + line + b'\n{"answer": 1}\n'
    found = faults_of(tmp_path, content)
    assert [place for place, _, _ in found] == [2, 3]
    assert words in found[0][2]


def test_a_hundred_megabytes_on_one_line_are_skipped_and_not_read_into_memory(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"q.jsonl": b'{"prompt": "before"}\n'})
    with (folder / "source" / "q.jsonl").open("ab") as file:
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(b'\n{"prompt": "behind"}\n{"answer": 1}\n')
    report = in_a_small_process(folder, most_bytes=400 * 2**20)
    assert [(fault["line"], fault["message"]) for fault in report["shown_faults"]] == [
        (2, f"the row is longer than {LONGEST_ROW_BYTES} bytes"),
        (4, "a row has exactly one of prompt and messages"),
    ]
    assert report["rows"] == 2


@pytest.mark.soak
def test_three_hundred_megabytes_go_through_a_bounded_memory(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"q.jsonl": b""}, {"duplicates": {"similarity": None}})
    with (folder / "source" / "q.jsonl").open("wb") as file:
        for number in range(300):
            file.write(json.dumps({"prompt": f"{number} " + "word " * 209_000}).encode() + b"\n")
    assert (folder / "source" / "q.jsonl").stat().st_size > 300 * 10**6
    report = in_a_small_process(folder, most_bytes=300 * 2**20)
    assert (report["state"], report["rows"]) == ("ready", 300)
    with dataset_reader.open(folder / "sealed") as reader:
        assert (reader.row("train", 299).prompt or "").startswith("299 word")


def in_a_small_process(folder: Path, *, most_bytes: int) -> dict[str, Any]:
    """What the process prints that has no more address space than this."""
    done = subprocess.run(
        [sys.executable, "-m", "engine.datasets", "prepare", str(folder)],
        capture_output=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes)),
    )
    assert done.stdout, done.stderr.decode()[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if report["state"] == "refused" else 0), done.stderr.decode()[-2000:]
    return report


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"\x1f\x8b\x08\x00" + b"x" * 50, "q.jsonl", "gzip"),
        (b"PK\x03\x04" + b"x" * 50, "q.csv", "zip"),
        (b"", "q.jsonl", "empty"),
        (b"\n\n", "q.jsonl", "no row"),
        (b"prompt\n", "q.csv", "no row"),
        (b",".join(b"c%d" % n for n in range(10**5)), "q.csv", "columns"),
        (b"prompt,prompt\nx,y\n", "q.csv", "one name"),
        (b"prompt,\nx,y\n", "q.csv", "no name"),
        (b'prompt\n"never closed\n' + b"x\n" * 10, "q.csv", "CSV"),
        (b'prompt\n"ab"c\n', "q.csv", "CSV"),
        (b"prompt\na\x00b\n", "q.csv", "NUL"),
        (b"prompt\n\xff\n", "q.csv", "UTF-8"),
        (b"PAR1 is no parquet PAR1", "q.jsonl", "JSON"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_reason(tmp_path: Path, content: bytes, name: str, words: str) -> None:
    assert any(words in message for _, _, message in faults_of(tmp_path, content, name))


def test_all_faults_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    _, report = prepared(tmp_path, {"q.jsonl": b"no json\n" * (MOST_FAULTS + 5)})
    assert (report.faults, len(report.shown_faults)) == (MOST_FAULTS + 5, MOST_FAULTS)


def test_faults_of_one_row_are_reported_together(tmp_path: Path) -> None:
    row = {"chat": [{"role": "god", "content": "x"}, {"role": "user", "content": 7}], "image": "Not An Image"}
    mapping = {"messages": "chat", "image": "image"}
    found = faults_of(tmp_path, json_lines([row]), mapping=mapping)
    assert {column for _, column, _ in found} == {"chat.0.role", "chat.1.content", "image"}


def test_arguments_of_recorded_calls_are_json_without_nul_and_not_bottomless(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    calls = [{"a": "\0"}, {"a": deep}, {"a": "\\\\u0000 is only the word"}]
    rows = [
        {"chat": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": call}}]}]}
        for call in calls
    ]
    found = faults_of(tmp_path, json_lines(rows), mapping={"messages": "chat"})
    assert [line for line, _, _ in found] == [1, 2]
    assert [word in message for word, (_, _, message) in zip(["NUL", "deep"], found, strict=True)] == [True, True]


def test_a_thousand_forms_of_one_question_are_compared_in_bounded_time(tmp_path: Path) -> None:
    rows = [(f"Translate the following sentence into French, please: {n}", "train") for n in range(300)]
    held = [(f"Translate the following sentence into French, please: {n}", "heldout") for n in range(300, 330)]
    wanted = BY_COLUMN | {"duplicates": {"across_splits": "report", "similarity": 0.5}}
    _, report = prepared(tmp_path, {"q.jsonl": given(*rows, *held)}, wanted)
    assert (report.state, report.duplicates.near) == ("ready", 300)
    assert len(report.duplicates.samples) == 100


def test_ids_are_unique_and_the_second_one_knows_the_first(tmp_path: Path) -> None:
    rows = [{"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b"}, {"id": "1", "prompt": "c"}, {"prompt": "d"}]
    found = faults_of(tmp_path, json_lines(rows), mapping={"id": "id", "prompt": "prompt"})
    assert [(line, column) for line, column, _ in found] == [(3, "id"), (4, "id")]
    assert "line 1 of q.jsonl" in found[0][2]


def test_equal_rows_without_ids_get_names_of_their_own(tmp_path: Path) -> None:
    folder, report = prepared(tmp_path, {"q.jsonl": json_lines([{"prompt": "a"}] * 3)})
    first, second, third = (row.id for row in dataset_reader.open(folder).rows("train"))
    assert (second, third) == (f"{first}-2", f"{first}-3")
    assert report.duplicates.within_splits == 2


def test_metadata_is_bounded(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "m": {"x": "y" * 70_000}}, {"prompt": "b", "m": {"x": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}]
    found = faults_of(tmp_path, json_lines(rows), mapping={"prompt": "prompt", "metadata": "m"})
    assert [(line, column) for line, column, _ in found] == [(1, "m"), (2, "m")]


# Splits
def test_rows_dealt_by_share_stay_where_they_are_when_others_come(tmp_path: Path) -> None:
    rows = [{"prompt": f"question number {n} of many"} for n in range(400)]
    wanted = {"splitting": {"kind": "share", "seed": 3}, "duplicates": {"across_splits": "report"}}
    places = []
    for count in (300, 400):
        folder, report = prepared(tmp_path / str(count), {"q.jsonl": json_lines(rows[:count])}, wanted)
        assert report.state == "ready", report
        with dataset_reader.open(folder) as reader:
            assert sum(map(reader.len, reader.splits)) == count
            places.append({row.prompt: split for split in reader.splits for row in reader.rows(split)})
    assert places[0].items() <= places[1].items()
    assert 5 <= list(places[1].values()).count("heldout") <= 40


def test_a_group_stands_in_one_split_and_equal_texts_do_too(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "family": f"{n % 50}"} for n in range(200)]
    shares = {"kind": "share", "splits": [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]}
    wanted = {
        "mapping": {"prompt": "prompt", "group": "family"},
        "splitting": shares,
        "duplicates": {"similarity": None},
    }
    folder, report = prepared(tmp_path / "groups", {"q.jsonl": json_lines(rows)}, wanted)
    assert report.state == "ready", report
    with dataset_reader.open(folder) as reader:
        groups = [{row.group for row in reader.rows(split)} for split in reader.splits]
    assert all(groups)
    assert not groups[0] & groups[1]
    doubled = [{"prompt": f"{n % 50}"} for n in range(200)]
    _, report = prepared(tmp_path / "texts", {"q.jsonl": json_lines(doubled)}, {"splitting": shares})
    assert (report.state, report.duplicates.across_splits) == ("ready", 0)


def test_a_group_that_the_source_puts_into_two_splits_is_refused(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "g": 1, "s": "train"}, {"prompt": "b", "g": 1, "s": "heldout"}]
    wanted = {"mapping": {"prompt": "prompt", "group": "g", "split": "s"}, "splitting": {"kind": "column"}}
    ((line, column, message),) = faults_of(tmp_path, json_lines(rows), **wanted)
    assert (line, column) == (2, "g")
    assert "line 1 of q.jsonl" in message


@pytest.mark.parametrize("name", ["../evil", "", "Train", "a/b", "x" * 51, 7, None])
def test_a_split_is_named_by_a_plain_word(tmp_path: Path, name: Any) -> None:
    wanted = {"mapping": {"prompt": "prompt", "split": "s"}, "splitting": {"kind": "column"}}
    assert faults_of(tmp_path, json_lines([{"prompt": "a", "s": name}]), **wanted)[0][:2] == (1, "s")


def test_a_share_of_which_no_row_comes_is_a_fault(tmp_path: Path) -> None:
    found = faults_of(tmp_path, json_lines(ROWS[:1]), splitting={"kind": "share"})
    assert any("fell to the split" in message for _, _, message in found)


# Duplicates
HELD = "Name the largest planet of the solar system, and say how many moons of it are known today to astronomers."
NEAR = "Name the largest planet of the solar system, and say how many moons of it are known now to astronomers."


def given(*rows: tuple[str, str]) -> bytes:
    return json_lines([{"prompt": prompt, "s": split} for prompt, split in rows])


BY_COLUMN: dict[str, Any] = {"mapping": {"prompt": "prompt", "split": "s"}, "splitting": {"kind": "column"}}


def overlapping() -> bytes:
    others = [(f"An entirely different question about the number {n} and its square.", "train") for n in range(20)]
    return given((HELD, "heldout"), (HELD.upper() + "  ", "train"), (NEAR, "train"), *others)


def test_equal_and_near_questions_of_two_splits_are_refused_with_both_lines(tmp_path: Path) -> None:
    found = faults_of(tmp_path, overlapping(), **BY_COLUMN, duplicates={"similarity": 0.7})
    assert [line for line, _, _ in found] == [2, 3]
    assert "asks the same as line 1 of q.jsonl in heldout" in found[0][2]
    assert "nearly the same" in found[1][2]


def test_what_overlaps_is_left_out_of_the_larger_split(tmp_path: Path) -> None:
    wanted = BY_COLUMN | {"duplicates": {"across_splits": "drop", "similarity": 0.7}}
    folder, report = prepared(tmp_path, {"q.jsonl": overlapping()}, wanted)
    duplicates = report.duplicates
    assert (report.state, duplicates.dropped, duplicates.near, duplicates.across_splits) == ("ready", 2, 1, 2)
    assert {overlap.split for overlap in duplicates.samples} == {"train"}
    with dataset_reader.open(folder) as reader:
        assert (reader.len("heldout"), reader.len("train")) == (1, 20)
        assert all("different" in (row.prompt or "") for row in reader.rows("train"))


def test_a_report_leaves_everything_where_it_is(tmp_path: Path) -> None:
    wanted = BY_COLUMN | {"duplicates": {"across_splits": "report", "similarity": None}}
    folder, report = prepared(tmp_path, {"q.jsonl": overlapping()}, wanted)
    assert (report.duplicates.across_splits, report.duplicates.near, report.duplicates.dropped) == (1, 0, 0)
    assert dataset_reader.open(folder).len("train") == 22


def test_sums_with_other_numbers_are_no_duplicates(tmp_path: Path) -> None:
    rows = [(f"What is {n} + {n + 1}?", "train" if n % 2 else "heldout") for n in range(60)]
    _, report = prepared(tmp_path, {"q.jsonl": given(*rows, ("What is 3 - 4?", "heldout"))}, BY_COLUMN)
    assert (report.state, report.duplicates.across_splits) == ("ready", 0)


def test_a_split_of_which_nothing_is_left_is_a_fault(tmp_path: Path) -> None:
    wanted = BY_COLUMN | {"duplicates": {"across_splits": "drop"}}
    _, report = prepared(tmp_path, {"q.jsonl": given(("a", "heldout"), ("a", "train"), ("a", "train"))}, wanted)
    assert report.state == "refused"
    assert "no row of the split train is left" in report.shown_faults[0].message


# Going on
def test_slices_of_no_time_and_kills_give_the_very_same_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "a.jsonl": json_lines(ROWS[:4]),
        "b.csv": b"prompt,answer\n" + b"".join(b"row %d,1\n" % n for n in range(4)),
    }
    wanted = ANSWERS | {
        "splitting": {"kind": "share", "splits": [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]}
    }
    at_once, _ = prepared(tmp_path / "once", files, wanted)
    folder, slices = folder_with(tmp_path / "slices", files, wanted), 0

    class Killed(BaseException):
        pass

    insert = module._Preparing._insert
    calls: list[int] = []

    def killed_now_and_then(self: Any, *arguments: Any) -> None:
        calls.append(1)
        insert(self, *arguments)
        if len(calls) % 5 == 0:
            raise Killed

    monkeypatch.setattr(module._Preparing, "_insert", killed_now_and_then)
    while True:
        slices += 1
        try:
            if prepare(folder, seconds=-1.0).state == "ready":
                break
        except Killed:
            continue
    assert slices > 8
    names = sorted(path.name for path in at_once.iterdir())
    assert [(at_once / name).read_bytes() for name in names] == [
        (folder / "sealed" / name).read_bytes() for name in names
    ]


# Reading
@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return prepared(tmp_path, {"q.jsonl": json_lines(ROWS)}, ANSWERS)[0]


def test_a_row_is_read_by_its_number(stored: Path) -> None:
    with dataset_reader.open(stored) as reader:
        assert (reader.splits, reader.len("train")) == (["train"], 40)
        assert reader.row("train", 39).answer == str(39 * 39)
        for split, number in (("train", 40), ("train", -1), ("heldout", 0)):
            with pytest.raises(NoSuchRow):
                reader.row(split, number)


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("train.jsonl", lambda data: data[:-1], "bytes"),
        ("train.jsonl", lambda data: data[:100] + b"X" + data[101:], "another content"),
        ("train.offsets", lambda data: data[:8] + b"\xff" * 8 + data[16:], "another content"),
        ("train.offsets", lambda data: data[:-8], "bytes"),
        ("dataset.json", lambda data: data[:-20], "no manifest"),
        ("dataset.json", lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 2'), "no manifest"),
    ],
)
def test_damage_is_named_by_its_file_and_never_another_row(stored: Path, file: str, damage: Any, words: str) -> None:
    path = stored / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedDataset, match=words) as damaged:
        dataset_reader.open(stored).row("train", 5)
    assert (damaged.value.file.name, bool(damaged.value.remedy)) == (file, True)


def test_a_wrong_offset_is_named_by_its_line_where_digests_are_not_compared(stored: Path) -> None:
    path = stored / "train.offsets"
    data = path.read_bytes()
    path.write_bytes(data[:40] + b"\x03" + data[41:])
    with pytest.raises(DamagedDataset, match="line 6") as damaged:
        dataset_reader.DatasetReader(stored, verifies=False).row("train", 5)
    assert damaged.value.line == 6


def test_a_missing_folder_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DamagedDataset, match=r"dataset\.json"):
        dataset_reader.open(tmp_path)
