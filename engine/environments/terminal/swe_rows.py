"""Rows of a SWE-bench form as folders of tasks: one instance, one folder.

A row says which repository at which commit, in which image, with which problem; which patch adds the tests, which of
them must pass afterwards that fail now (``FAIL_TO_PASS``), and which must go on passing (``PASS_TO_PASS``).  The image
holds the repository in /app.  Nothing is fetched here, and nothing of a row becomes a word of a shell: patches and
names of tests are files that a script of ours reads.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from engine.environments.terminal.task_set import NAME
from engine.spec.problems import Problem, problems_in
from engine.spec.strict import Strict

LONGEST_ROW = 32 * 2**20
MOST_ROWS = 100_000
CANNOT_BE_ROWS = 100
"""Faults that are listed at most."""


class RowsRefused(Exception):
    """The rows cannot be converted; ``problems`` says where and why."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class SweRow(Strict):
    """One row; columns that are not named here are of no use to a task and are left alone."""

    instance_id: str = Field(pattern=rf"^{NAME.pattern}$")
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", max_length=200)
    base_commit: str = Field(pattern=r"^[0-9a-f]{7,64}$")
    problem_statement: str = Field(min_length=1, max_length=200_000)
    test_patch: str = Field(min_length=1, max_length=8_000_000)
    patch: str = Field(default="", max_length=8_000_000)
    """The reference solution; without one the task has no oracle."""
    FAIL_TO_PASS: list[str] = Field(min_length=1, max_length=10_000)
    PASS_TO_PASS: list[str] = Field(default=[], max_length=50_000)
    docker_image: str = Field(min_length=1, max_length=300)
    """An image of the sandboxes' registry, with the repository at ``base_commit`` in /app."""

    @field_validator("FAIL_TO_PASS", "PASS_TO_PASS", mode="before")
    @classmethod
    def _lists_written_as_text(cls, given: Any) -> Any:
        """Published files have the lists as JSON in a text."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given


COLUMNS = frozenset(SweRow.model_fields)
AT_THE_END = "The repository is in /app. Change it so that this is solved."
TASK_FILE = """\
schema_version = "1.4"

[metadata]
difficulty = "hard"
repository = {repo}
base_commit = {base_commit}

[environment]
docker_image = {docker_image}
network_mode = "no-network"

[verifier]
timeout_sec = 1800.0
environment_mode = "separate"
"""
TEST = """\
#!/bin/sh
exec python3 -I /tests/run_tests.py
"""
SOLVE = """\
#!/bin/sh
set -eu
cd /app
exec git apply --whitespace=nowarn /solution/reference.patch
"""
RUN_TESTS = '''\
"""Applies the patch of the tests, runs those that count, ends everybody else, and writes the reward: 1 if all pass."""

import json
import os
import signal
import subprocess
import time

LOGS = os.path.realpath("/logs/verifier")
with open("/tests/tests.json", encoding="utf-8") as file:
    named = json.load(file)
subprocess.run(["git", "apply", "--whitespace=nowarn", "/tests/tests.patch"], cwd="/app", check=True)
wanted = named["fail_to_pass"] + named["pass_to_pass"]
passed = 0
for test in wanted:
    run = subprocess.run(
        ["python3", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--", test],
        cwd="/app", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )
    passed += run.returncode == 0
for _ in range(10):  # whoever was left behind by a test writes no reward
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        break
    time.sleep(0.05)
os.makedirs(LOGS, exist_ok=True)
for name in os.listdir(LOGS):
    os.unlink(os.path.join(LOGS, name))
with open(os.path.join(LOGS, "reward.json"), "w", encoding="ascii") as file:
    json.dump({"reward": float(passed == len(wanted)), "passed": passed / len(wanted)}, file)
'''
"""What the tests import is the policy's code: like the original's, they believe what it makes of them."""


def write_rows(rows: Path, folder: Path) -> list[str]:
    """Write a task for each line of a JSONL file; return their names.  Raises ``RowsRefused``, and writes nothing then.

    All faults of all lines are found, each with its line and column.
    """
    if folder.exists():
        raise RowsRefused([Problem("folder", str(folder), "it is there already", "name a folder that is not")])
    read, problems, names = list[SweRow](), list[Problem](), dict[str, int]()
    for number, line in _lines(rows):
        row = _row(number, line)
        if isinstance(row, SweRow) and (first := names.setdefault(row.instance_id, number)) != number:
            problem = f"line {first} has the same instance"
            row = [Problem(f"line {number}: instance_id", row.instance_id, problem, "leave one of the two out")]
        if isinstance(row, SweRow):
            read.append(row)
        else:
            problems += row
    if problems or not read:
        raise RowsRefused(
            problems[:CANNOT_BE_ROWS] or [Problem("rows", str(rows), "it has no rows", "give one a line")]
        )
    for row in read:
        _write(folder / row.instance_id, row)
    return [row.instance_id for row in read]


def _lines(rows: Path) -> Iterator[tuple[int, bytes]]:
    try:
        file = open(rows, "rb")  # noqa: SIM115  # closed below, when the last line was read
    except OSError as error:
        problem = f"it cannot be read ({error.strerror})"
        raise RowsRefused([Problem("rows", str(rows), problem, "name a JSONL file")]) from error
    with file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_ROW + 1), b""), start=1):
            if len(line) > LONGEST_ROW or number > MOST_ROWS:
                problem = f"more than {LONGEST_ROW} bytes in a line, or {MOST_ROWS} lines"
                raise RowsRefused([Problem(f"line {number}", len(line), problem, "divide it")])
            if line.strip():
                yield number, line


def _row(number: int, line: bytes) -> SweRow | list[Problem]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        return [Problem(f"line {number}", line[:40], f"this is no JSON: {error}", "write one object a line")]
    if not isinstance(given, dict):
        return [Problem(f"line {number}", given, "this is no object", "write one object a line")]
    try:
        return SweRow.model_validate({name: value for name, value in given.items() if name in COLUMNS})
    except ValidationError as error:
        found = problems_in(error, SweRow)
        return [Problem(f"line {number}: {p.field}", p.value, p.message, p.remedy) for p in found]


def _write(folder: Path, row: SweRow) -> None:
    words = {"repo": row.repo, "base_commit": row.base_commit, "docker_image": row.docker_image}
    tests = {"fail_to_pass": row.FAIL_TO_PASS, "pass_to_pass": row.PASS_TO_PASS}
    files = {
        "task.toml": TASK_FILE.format(**{name: json.dumps(value) for name, value in words.items()}),
        "instruction.md": f"{row.problem_statement.strip()}\n\n{AT_THE_END}\n",
        "tests/test.sh": TEST,
        "tests/run_tests.py": RUN_TESTS,
        "tests/tests.json": json.dumps(tests, indent=1),
        "tests/tests.patch": row.test_patch,
    }
    if row.patch:
        files |= {"solution/solve.sh": SOLVE, "solution/reference.patch": row.patch}
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
        place.chmod(0o755 if path.endswith(".sh") else 0o644)
