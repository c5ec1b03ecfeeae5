"""Tasks that cannot be trusted are found: by their solution, by doing nothing, and by repetition."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.environments.terminal.checking import tried
from engine.environments.terminal.task_set import read_tasks
from engine.spec.environment import Terminal
from tests.engine.environments.terminal.tasks import SOLVE, write_task

ROOT = Path(__file__).parents[4]


def engine(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine", "tasks", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip


def test_each_way_of_being_untrustworthy_has_its_name(tmp_path):
    tasks = tmp_path / "tasks"
    write_task(tasks, "good")
    write_task(tasks, "unsolved", solve="#!/bin/sh\necho 41 > /app/out.txt\n")
    write_task(tasks, "generous", test="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    write_task(tasks, "silent", test="#!/bin/sh\nexit 0\n")
    write_task(tasks, "unknown", solve=None)
    write_task(tasks, "failing", solve=SOLVE + "exit 7\n")
    checked = engine("check", "tasks", "--json", "report.json", "--jobs", "3", folder=tmp_path)
    report = {task["task"]: task for task in json.loads((tmp_path / "report.json").read_text())["tasks"]}
    assert {name: task["status"] for name, task in report.items()} == {
        "good": "ok", "unsolved": "oracle-fails", "generous": "nop-passes", "silent": "verifier-fails",
        "unknown": "no-solution", "failing": "ok",
    }  # fmt: skip
    assert report["failing"]["notes"] == ["solve.sh ended with error (exit code 7): "]
    assert checked.returncode == 1
    assert "oracle 3/6, nop 1/6" in checked.stdout
    assert checked.stderr.count("\n") == 11, checked.stderr


async def test_a_solution_that_no_episode_would_be_paid_for_fails(tmp_path):
    files = {"in.txt": "42\n", "git": "#!/bin/sh\n"}
    write_task(tmp_path, "changes", files=files, solve=SOLVE + "chmod +x /app/git; echo true >> /app/git\n")
    write_task(tmp_path, "makes", solve=SOLVE + "cp /bin/true /app/make\n")
    trials = [await tried(Terminal(tasks="."), task, "oracle") for task in read_tasks(tmp_path).tasks]
    assert [(trial.reward, trial.note) for trial in trials] == [(1.0, ""), (0.0, "it counts as tampering: make")]


def test_flaky_tests_are_found_by_repetition(tmp_path):
    solved = "grep -q 42 /app/out.txt && echo $(( $(od -An -N1 -tu1 /dev/urandom) % 2 )) || echo 0"
    write_task(tmp_path / "tasks", "flaky", test=f"#!/bin/sh\n{{ {solved}; }} > /logs/verifier/reward.txt\n")
    write_task(tmp_path / "tasks", "steady")
    engine("check", "tasks", "--json", "report.json", "--repeat", "16", "--jobs", "4", folder=tmp_path)
    tasks = json.loads((tmp_path / "report.json").read_text())["tasks"]
    assert {task["task"]: task["status"] for task in tasks} == {"flaky": "flaky", "steady": "ok"}
    assert all(len(task["oracle"]) == len(task["nop"]) == 16 for task in tasks)


def test_faults_and_slips_end_the_command_with_2_and_all_of_them(tmp_path):
    task = write_task(tmp_path / "tasks", task_file='schema_version = "1.4"\nxyz = 1\n')
    (task / "tests" / "test.sh").unlink()
    refused = engine("check", "tasks", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "copy/task.toml: xyz = 1: Extra inputs are not permitted; remove it; known here: "
        "agent, environment, metadata, schema_version, solution, source, task, verifier",
        "copy/tests/test.sh = '(missing)': every task has it; add it",
    ]
    write_task(tmp_path / "good")
    assert "no such task" in engine("check", "good", "--task", "other", folder=tmp_path).stderr
    assert engine("check", "good", "--backend", "docker", folder=tmp_path).returncode == 2
    assert engine("make", "good", folder=tmp_path).returncode == 2


@pytest.mark.parametrize("text", ["0", "-1", "x"])
def test_a_count_is_a_whole_number(tmp_path, text):
    assert engine("check", str(tmp_path), "--repeat", text, folder=tmp_path).returncode == 2


def test_the_command_says_what_it_takes(tmp_path):
    for arguments in (["--help"], ["check", "--help"], ["make", "-h"]):
        shown = engine(*arguments, folder=tmp_path)
        assert (shown.returncode, shown.stdout.startswith("usage: python -m engine tasks")) == (0, True)
