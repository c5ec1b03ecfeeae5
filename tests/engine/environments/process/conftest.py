"""Packages as their authors write them, and environments made of them; their processes end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.environments.process import kept
from engine.environments.process.environment import ProcessEnvironment
from engine.environments.process.package import package_environment
from engine.environments.process.thread import waited
from engine.spec.foreign_environments import Package

PROJECT = """
[project]
name = "acting"
version = "1.0"
dependencies = []

[project.entry-points."palestra.environments"]
acting = "acting:Acting"
"""
CODE = """
import asyncio, ctypes, json, math, os, signal, socket, subprocess, sys, threading, time
from contextlib import asynccontextmanager
from palestra_env import Message, Observation, Rewards, Task, ToolCall, ToolSchema, VerifierFailed

BEGINNING

class Acting:
    restorable = True
    def __init__(self, size=100, **options): self.size, self.options = size, options
    def tasks(self, split):
        return [Task(f"{split}-{i}", split, 1, f"question {i}", str(i)) for i in range(self.size)]
    def tools(self, task): return [ToolSchema("do", "Do it.", {"type": "object"})]
    @asynccontextmanager
    async def session(self, task, sandboxes):
        yield Play(task, sandboxes)

class Play:
    def __init__(self, task, sandboxes): self.task, self.sandboxes, self.seen = task, sandboxes, []
    async def reset(self): return [Message("user", self.task.question)]
    async def act(self, message):
        self.seen.append(message.content)
        if message.answers:
            return await act(self, message.content)
        return Observation.of([ToolCall.of(call, str(call.arguments), seconds=0.5) for call in message.requests])
    async def score(self): return Rewards(True, {"turns": float(len(self.seen))})
    async def snapshot(self): return list(self.seen)
    async def restore(self, kept): self.seen = list(kept)
    async def drop(self, kept): return None

async def act(play, text):
    return Observation(messages=(Message("user", text),))

ENDING
"""


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Write a package; ``ending`` replaces what of it a test is about."""

    def written(ending: str = "", beginning: str = "", project: str = PROJECT) -> Path:
        folder = tmp_path / "package"
        (folder / "src").mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(project)
        (folder / "src" / "acting.py").write_text(CODE.replace("BEGINNING", beginning).replace("ENDING", ending))
        return folder

    return written


@pytest.fixture
def environment_of(
    package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ProcessEnvironment]]:
    """Make the environment of a package; ``fields`` are the spec's."""
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kept, "FIRST_PAUSE_S", 0.001)
    made: list[ProcessEnvironment] = []

    def environment(ending: str = "", beginning: str = "", **fields: Any) -> ProcessEnvironment:
        spec = Package.model_validate({"path": str(package(ending, beginning)), **fields})
        made.append(package_environment(spec))
        return made[-1]

    yield environment
    for used in made:
        waited(used._kept.end())
