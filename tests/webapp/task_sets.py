"""Task sets as workers leave them: the engine has sealed the files, and a check has tried every task."""

import hashlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.environments.terminal.storing import store
from engine.spec.task_check import TaskCheck
from engine.spec.task_files import TASKS_MANIFEST, TaskManifest
from tests.engine.environments.terminal.tasks import write_task
from webapp.accounts.models import Team, User
from webapp.catalog.models import StoredTask, TaskSet, TaskSetVersion, TaskTrial

OK = {"oracle": [1.0], "nop": [0.0]}


def tar_of(folder: Path, extra: Iterable[tuple[tarfile.TarInfo, bytes]] = ()) -> bytes:
    """A folder as a tar, with further entries behind it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
        for member, content in extra:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def stored_tasks(
    team: Team,
    name: str = "shell",
    tasks: Mapping[str, Mapping[str, Sequence[float | None]]] | None = None,
    note: str = "",
    **fields: Any,
) -> TaskSetVersion:
    """A version that is stored, with the trials of each task; every repetition is one entry of its rewards."""
    rewards = {"copy": OK, "paste": OK} if tasks is None else tasks
    task_set, _ = TaskSet.objects.get_or_create(team=team, name=name)
    with tempfile.TemporaryDirectory() as root:
        source = Path(root, "source")
        for task in rewards:
            write_task(source, task)
        report = store(source, Path(root, "target"))
        assert report.faults == 0, report
        sealed = Path(root, "target", "sealed")
        text = (sealed / TASKS_MANIFEST).read_bytes()
        version = TaskSetVersion(
            task_set=task_set, state="stored", sha256=hashlib.sha256(text).hexdigest(), bytes=1234,
            origin={"kind": "folder", "path": "shell"}, created_by=User.objects.filter(teams=team).first(),
            check_settings=TaskCheck(repeat=max(len(of["nop"]) for of in rewards.values())).model_dump(mode="json"),
        )  # fmt: skip
        shutil.copytree(sealed, version.folder, dirs_exist_ok=True)
    for field, value in fields.items():
        setattr(version, field, value)
    version.save()
    for task in TaskManifest.model_validate_json(text).tasks:
        row = StoredTask.objects.create(
            version=version, name=task.name, digest=task.digest, level=task.level, has_solution=task.has_solution,
            needs_image=task.needs_image, bytes=task.bytes,
        )  # fmt: skip
        for kind, values in rewards[task.name].items():
            for repetition, reward in enumerate(values):
                TaskTrial.objects.create(
                    task=row, kind=kind, repetition=repetition, reward=reward, seconds=0.5, note=note
                )
    return version


def published_tasks(team: Team, name: str = "shell", **changes: Any) -> TaskSetVersion:
    version = stored_tasks(team, name, **changes)
    version.task_set.last_number += 1
    version.task_set.save()
    version.number, version.state = version.task_set.last_number, "ready"
    version.save()
    return version
