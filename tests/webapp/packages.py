"""Environment packages as authors hand them over, and as workers leave them: sealed by the engine, and played."""

import hashlib
import io
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from engine.environments.process.storing import store
from engine.spec.package_check import PackageCheck, PackageReport
from engine.spec.package_files import PACKAGE_MANIFEST
from webapp.accounts.models import Team, User
from webapp.catalog.models import EnvironmentPackage, PackageVersion

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
GOOD = PackageReport(tasks={"train": 40, "heldout": 40}, episodes=16, start_s=0.1, call_s=0.001, memory_bytes=2**24)


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


def stored_package(
    team: Team, name: str = "game", *, report: PackageReport | None = None, version: str = "1.0", code: str = CODE,
    **fields: Any,
) -> PackageVersion:  # fmt: skip
    """A version that is stored, with what its check has found."""
    package, _ = EnvironmentPackage.objects.get_or_create(team=team, name=name)
    with tempfile.TemporaryDirectory() as root:
        found = store(write_package(Path(root, "source"), code, version), Path(root, "target"))
        assert found.faults == 0, found
        sealed = Path(root, "target", "sealed")
        text = (sealed / PACKAGE_MANIFEST).read_bytes()
        row = PackageVersion(
            package=package, state="stored", sha256=hashlib.sha256(text).hexdigest(), bytes=1234,
            origin={"kind": "folder", "path": "game"}, created_by=User.objects.filter(teams=team).first(),
            check_settings=PackageCheck().model_dump(mode="json"), calls_itself=f"guessing {version}",
            report=None if report is None else report.model_dump(mode="json"),
        )  # fmt: skip
        shutil.copytree(sealed, row.folder, dirs_exist_ok=True)
    for field, value in fields.items():
        setattr(row, field, value)
    row.save()
    return row


def published_package(team: Team, name: str = "game", **changes: Any) -> PackageVersion:
    version = stored_package(team, name, report=GOOD, **changes)
    version.package.last_number += 1
    version.package.save()
    version.number, version.state = version.package.last_number, "ready"
    version.save()
    return version
