"""Rows of a SWE-bench form become tasks, or are refused with line and column."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.environments.terminal.swe_rows import RowsRefused, write_rows
from engine.environments.terminal.task_set import read_tasks

ROW: dict[str, Any] = {
    "instance_id": "team__tool-17",
    "repo": "team/tool",
    "base_commit": "0123456789abcdef",
    "problem_statement": "It fails.\nMend it.",
    "test_patch": "--- a/x\n+++ b/x\n",
    "patch": "--- a/y\n+++ b/y\n",
    "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
    "PASS_TO_PASS": '["tests/test_x.py::test_b"]',
    "docker_image": "team-tool:17",
    "version": "of no use here",
}


def written(folder: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "rows.jsonl"


def test_a_row_is_a_task_that_the_reader_takes(tmp_path):
    row = ROW | {"problem_statement": "quotes \" and $(touch /tmp/x) and '''"}
    assert write_rows(written(tmp_path, row), tmp_path / "tasks") == ["team__tool-17"]
    [task] = read_tasks(tmp_path / "tasks").tasks
    assert task.needs_image
    assert task.file.environment.docker_image == "team-tool:17"
    assert task.instruction.startswith('quotes " and $(touch /tmp/x)')
    assert json.loads(task.tests().files["tests.json"]) == {
        "fail_to_pass": ["tests/test_x.py::test_a"], "pass_to_pass": ["tests/test_x.py::test_b"],
    }  # fmt: skip
    assert task.solution().files["reference.patch"] == row["patch"].encode()


def test_all_faults_of_all_lines_are_found_and_nothing_is_written(tmp_path):
    rows = written(
        tmp_path, ROW, "{no json", "[1]", ROW | {"instance_id": "../escape"}, ROW | {"FAIL_TO_PASS": "not a list"},
        ROW | {"base_commit": "main; rm"}, {name: ROW[name] for name in ROW if name != "test_patch"}, ROW,
    )  # fmt: skip
    with pytest.raises(RowsRefused) as refused:
        write_rows(rows, tmp_path / "tasks")
    assert [problem.field for problem in refused.value.problems] == [
        "line 2", "line 3", "line 4: instance_id", "line 5: FAIL_TO_PASS", "line 6: base_commit", "line 7: test_patch",
        "line 8: instance_id",
    ]  # fmt: skip
    assert not (tmp_path / "tasks").exists()


def test_no_rows_no_file_and_a_folder_that_is_there_are_refused(tmp_path):
    rows = written(tmp_path, "")
    for named, folder, field in ((rows, "a", "rows"), (tmp_path / "none", "a", "rows"), (rows, "", "folder")):
        with pytest.raises(RowsRefused) as refused:
            write_rows(named, tmp_path / folder)
        assert [problem.field for problem in refused.value.problems] == [field]
