"""``python -m engine.datasets`` answers its user: what is wrong a line each, and a status that a shell can go by."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.__main__ import SHOWN_FAULTS
from tests.engine.datasets.sources import SUMS, folder_with, json_lines

MAPPING = {"prompt": "prompt", "answer": "answer"}


def run(verb: str, *folders: Path) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "engine.datasets", verb, *map(str, folders)], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "pydantic" not in done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_with(tmp_path, {"q.jsonl": json_lines(SUMS[:10])}, {"mapping": MAPPING})


def asking(folder: Path, request: Any) -> Path:
    (folder / "preparation.json").write_text(request if isinstance(request, str) else json.dumps(request))
    return folder


def test_everything_that_is_wrong_with_a_request_is_reported_at_once(folder: Path) -> None:
    splits = [{"name": "train", "share": 0.5}, {"name": "heldout", "share": 0.6}]
    request = {"mapping": {"prompt": "prompt", "anser": "answer"}, "splitting": {"kind": "share", "splits": splits}}
    (folder / "source").rename(folder / "sources")
    done = run("prepare", asking(folder, request))
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    for words in (
        "source = ", "preparation.json: mapping.anser = 'answer': ", "preparation.json: splitting.splits = 1.1: "
    ):  # fmt: skip
        assert any(words in line and "; " in line for line in lines), (words, lines)
    assert "did you mean 'answer'?" in done.stderr


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        ('{"mapping": {"answer": "answer"}}', "mapping.prompt = 'neither'"),
        ('{"mapping": {"prompt": "prompt"}, "splitting": {"kind": "shares"}}', "splitting.kind = 'shares'"),
        ("[]", "preparation.json = []"),
        ("{mapping:", "a name in double quotes is due, at character 2; mend it there"),
        ('{"mapping": {"prompt": "a"}, "mapping": {"prompt": "b"}}', "'mapping' stands twice"),
        ("[" * 10**5, "nested too deeply"),
        ("", "it ends before it is whole"),
    ],
)
def test_a_request_that_cannot_be_read_names_field_value_and_remedy(
    folder: Path, request_text: str, words: str
) -> None:
    done = run("prepare", asking(folder, request_text))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_without_request_and_source_both_are_named(tmp_path: Path) -> None:
    done = run("prepare", tmp_path)
    assert done.returncode == 2
    assert [line.partition(" = ")[0] for line in done.stderr.splitlines()] == [
        f"{tmp_path}: source", f"{tmp_path}: preparation.json"
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["inspect", "difference"])
def test_a_folder_without_files_is_refused_by_every_verb(tmp_path: Path, verb: str) -> None:
    done = run(verb, *[tmp_path] * (2 if verb == "difference" else 1))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_is_no_models_ends_the_measuring_of_lengths(folder: Path) -> None:
    assert run("prepare", folder).returncode == 0
    done = run("lengths", folder / "sealed", folder, folder)
    assert done.returncode == 1
    assert "there is no tokenizer.json; " in done.stderr


def test_a_refused_version_ends_with_1_and_names_its_first_faults(folder: Path) -> None:
    rows = [{"prompt": 7, "answer": "x"}] * (SHOWN_FAULTS + 5)
    (folder / "source" / "q.jsonl").write_bytes(json_lines(rows))
    done = run("prepare", folder)
    assert done.returncode == 1
    assert json.loads(done.stdout)["state"] == "refused"
    first, *_, last = lines = done.stderr.splitlines()
    assert first.startswith("q.jsonl, line 1, prompt = '7': it is no text but a number; write it as a text")
    assert (len(lines), last) == (SHOWN_FAULTS + 1, f"and 5 more: the report on stdout has the first {len(rows)}")


def test_what_was_mended_is_read_anew(folder: Path) -> None:
    asking(folder, {"mapping": {"prompt": "question"}})
    assert run("prepare", folder).returncode == 1
    asking(folder, {"mapping": MAPPING})
    done = run("prepare", folder)
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "source" / "q.jsonl").write_bytes(json_lines([*SUMS[:10], {"prompt": 7, "answer": "x"}]))
    assert run("prepare", folder).returncode == 1
    (folder / "source" / "q.jsonl").write_bytes(json_lines(SUMS[:11]))
    assert json.loads(run("prepare", folder).stdout)["rows"] == 11
