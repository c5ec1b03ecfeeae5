"""Writes the tasks of the project as folders of the Harbor form, the same for the same seed."""

import importlib.resources
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from engine.environments.terminal.own import (
    builds,
    data,
    databases,
    debugging,
    files,
    scripting,
    servers,
    text,
)
from engine.environments.terminal.own.own_task import Maker, OwnTask
from engine.seeds import derived_seed

DOMAINS: dict[str, tuple[Maker, ...]] = {
    "text": text.MAKERS,
    "data": data.MAKERS,
    "databases": databases.MAKERS,
    "debugging": debugging.MAKERS,
    "scripting": scripting.MAKERS,
    "files": files.MAKERS,
    "servers": servers.MAKERS,
    "builds": builds.MAKERS,
}
JUDGE = importlib.resources.files(__package__).joinpath("judge.py").read_text()
TEST = """\
#!/bin/sh
# Becomes the judge, so that nobody else is left when it has ended all others.
exec python3 -I -B /tests/judge.py
"""
DOCKERFILE = "FROM python:3.11-slim\nWORKDIR /work\nCOPY . .\n"
TASK_FILE = """\
schema_version = "1.4"

[metadata]
domain = {domain}
difficulty = {difficulty}
handed_in = {handed_in}

[environment]
network_mode = "no-network"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 120.0
environment_mode = "separate"
"""


class FolderTaken(Exception):
    """There is something where the tasks are to be written."""


def own_tasks(seed: int) -> Iterator[tuple[str, OwnTask]]:
    """Each task with its domain, in the order of ``DOMAINS``."""
    for domain, makers in DOMAINS.items():
        for maker in makers:
            yield domain, maker(Random(derived_seed("terminal", seed, domain, maker.__name__)))


def write_tasks(folder: Path, *, seed: int) -> list[str]:
    """Write all of them below ``folder``; return their names.  Raises ``FolderTaken``."""
    if folder.exists():
        raise FolderTaken(f"folder = {str(folder)!r}: it is there already; name a folder that is not")
    names = list[str]()
    for domain, task in own_tasks(seed):
        _write(folder / task.name, domain, task)
        names.append(task.name)
    return names


def _write(folder: Path, domain: str, task: OwnTask) -> None:
    words = {"domain": domain, "difficulty": task.difficulty, "handed_in": list(task.handed_in)}
    _file(folder / "task.toml", TASK_FILE.format(**{name: json.dumps(value) for name, value in words.items()}))
    _file(folder / "instruction.md", f"{task.instruction.strip()}\n")
    _file(folder / "environment" / "Dockerfile", DOCKERFILE)
    for path, content in task.files.items():
        _file(folder / "environment" / path, content, executable=path in task.executable)
    _file(folder / "tests" / "test.sh", TEST, executable=True)
    _file(folder / "tests" / "judge.py", JUDGE)
    _file(folder / "tests" / "checks.json", json.dumps(list(task.checks), indent=1) + "\n")
    _file(folder / "solution" / "solve.sh", f"#!/bin/sh\nset -eu\ncd /work\n{task.solution.strip()}\n", executable=True)


def _file(path: Path, content: str | bytes, *, executable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o755 if executable else 0o644)
