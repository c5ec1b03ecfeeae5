"""An environment package as its author hands it over: a folder, and a wheel."""

import io
import zipfile
from pathlib import Path

PROJECT = """
[project]
name = "guessing"
version = "{version}"
dependencies = []

[project.entry-points."palestra.environments"]
guessing = "guessing:Guessing"
"""
CODE = '''
import os
from contextlib import asynccontextmanager
from palestra_env import Message, Observation, Rewards, Task

played = 0

class Guessing:
    restorable = False
    def __init__(self, every=0): self.every = every
    def tasks(self, split): return [Task(f"{split}-{i}", split, 1, f"{i % 10}?", str(i % 10)) for i in range(40)]
    def tools(self, task): return []
    @asynccontextmanager
    async def session(self, task, sandboxes): yield Play(self, task)

class Play:
    def __init__(self, owner, task): self.owner, self.task, self.answer = owner, task, ""
    async def reset(self): return [Message("user", self.task.question)]
    async def act(self, message):
        self.answer = message.content
        return Observation(done=True)
    async def score(self):
        """Every so many episodes the process ends without a word."""
        global played
        played += 1
        if self.owner.every and played % self.owner.every == 0:
            os._exit(3)
        return Rewards(self.answer.strip() == self.task.answer, {})
'''


def write_package(folder: Path, code: str = CODE, version: str = "1.0") -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(version=version))
    (folder / "src" / "guessing.py").write_text(code)
    return folder


def wheel_of(code: str = CODE) -> bytes:
    """The same as a wheel, as a build would make it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("guessing.py", code)
        archive.writestr("guessing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: guessing\nVersion: 1.0\n")
        archive.writestr(
            "guessing-1.0.dist-info/entry_points.txt", "[palestra.environments]\nguessing = guessing:Guessing\n"
        )
    return buffer.getvalue()
