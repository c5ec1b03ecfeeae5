"""What can be done to versions of a set of tasks: begin one, check it, publish it, compare it.

The files are a worker's business (``workers/task_store.py``), and so are checks (``workers/task_checks.py``); this
module writes rows and sends messages.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from engine.spec.problems import Problem
from engine.spec.task_check import TaskCheck
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import StoredTask, TaskSet, TaskSetState, TaskSetVersion, TaskTrial
from webapp.catalog.origin import FolderOrigin, UploadOrigin
from webapp.catalog.stored_versions import audit, locked
from webapp.catalog.versions import refuse_beyond_room, refuse_name
from webapp.refusals import Invalid, Refused

MOST_UNFINISHED = 20
"""Sets that a team stores or checks at the same time."""
PACKAGES = (".tar", ".jsonl")
"""A tar of folders of tasks, and rows of a SWE-bench form."""


def refuse_task_set_name(name: str) -> None:
    """Raises Invalid."""
    refuse_name(name, "task set", "shell-basics")


def problem_with_package(name: str, field: str) -> Problem | None:
    """Why a file of this name cannot be a set of tasks; None where it can."""
    if "/" in name or "\\" in name or not name.isprintable():
        return Problem(field, name, f"{name!r} is no name of a file", "name it with letters, digits and . _ -")
    if not name.lower().endswith(PACKAGES):
        remedy = "make it with: tar -cf tasks.tar -C FOLDER .; or give rows of a SWE-bench form as .jsonl"
        return Problem(field, name, f"{name} is no package of tasks", remedy)
    return None


@transaction.atomic
def begin_tasks(
    team: Team,
    name: str,
    origin: FolderOrigin | UploadOrigin,
    *,
    acting_user: User,
    size_bytes: int,
    released_bytes: int = 0,
    check: TaskCheck | None = None,
) -> TaskSetVersion:
    """Queue the storing of a version's tasks.  With ``check`` they are then checked, without it they wait for one.

    ``released_bytes`` are counted for the upload that it is made of, and no more from now on.  Raises Invalid and
    Refused.
    """
    refuse_task_set_name(name)
    Team.objects.select_for_update().get(id=team.id)  # two who begin at once share the room that is left
    refuse_beyond_room(team, size_bytes - released_bytes)
    _refuse_too_many(team)
    task_set, _ = TaskSet.objects.get_or_create(team=team, name=name, defaults={"created_by": acting_user})
    version = TaskSetVersion.objects.create(
        task_set=task_set,
        origin=origin.model_dump(),
        check_settings=None if check is None else check.model_dump(mode="json"),
        bytes=size_bytes,
        created_by=acting_user,
    )
    verb = "import" if origin.kind == "folder" else "upload"
    record(team, acting_user, f"task-set.{verb}", f"task-set-version {version.id}", name=name)
    queue.send(queue.STORE_TASKS, str(version.id), version.progress_mark)
    return version


def _refuse_too_many(team: Team) -> None:
    unfinished = TaskSetVersion.objects.filter(task_set__team=team, state__in=TaskSetVersion.unfinished)
    if unfinished.count() >= MOST_UNFINISHED:
        raise Refused(f"your team imports and checks {MOST_UNFINISHED} sets of tasks already; wait for one")


@transaction.atomic
def check_tasks(version: TaskSetVersion, check: TaskCheck, *, acting_user: User) -> TaskSetVersion:
    """Queue a check of every task, which forgets the last one.  Raises Refused where there is nothing to check."""
    Team.objects.select_for_update().get(id=version.task_set.team_id)
    version = locked(version)
    if version.state == TaskSetState.CHECKING and version.check_wanted == check:
        return version
    if version.state != TaskSetState.STORED:
        raise Refused(f"the version is {version.state}; only one that is stored and not published is checked")
    _refuse_too_many(version.team)
    begin_check(version, check)
    audit(version, "check", acting_user, name=version.task_set.name)
    return version


def begin_check(version: TaskSetVersion, check: TaskCheck) -> None:
    """Forget the last check, and send the message of another one.  The version's row is the caller's."""
    TaskTrial.objects.filter(task__version=version).delete()
    now = timezone.now()
    version.state, version.state_since, version.heartbeat_at = TaskSetState.CHECKING, now, now
    version.check_settings, version.check_id = check.model_dump(mode="json"), uuid4()
    version.check_jobs, version.log_bytes, version.waiting_for, version.problem = 0, 0, "", None
    version.problems, version.faults, version.cancel_asked = [], 0, False
    version.save()
    queue.send(queue.STORE_TASKS, str(version.pk), version.progress_mark)


@transaction.atomic
def publish_tasks(version: TaskSetVersion, *, acting_user: User) -> TaskSetVersion:
    """Give the version its number, by which runs name it.  Raises Refused until a check found every task ``ok``."""
    Team.objects.select_for_update().get(id=version.task_set.team_id)
    version = locked(version)
    if version.is_ready:
        return version
    if version.state != TaskSetState.STORED:
        raise Refused(f"the version is {version.state}; only one that is stored is published")
    if problems := faults_of(version):
        raise Refused(f"{len(problems)} of the tasks cannot be trusted, and nothing is published half", problems[:100])
    task_set = version.task_set
    task_set.last_number += 1
    task_set.save(update_fields=["last_number"])
    version.number, version.state, version.state_since = task_set.last_number, TaskSetState.READY, timezone.now()
    version.save(update_fields=["number", "state", "state_since"])
    audit(version, "publish", acting_user, name=str(version), sha256=version.sha256)
    return version


_REMEDIES = {
    None: "check the version first",
    "oracle-fails": "mend the solution or the tests; the notes of its trials say what was printed",
    "nop-passes": "let the tests ask for what the solution does",
    "flaky": "mend what differs between its trials: time, chance, order, load",
    "verifier-fails": "mend the tests: they hung, crashed, or wrote no reward that can be read",
    "no-solution": "add solution/solve.sh",
}


def faults_of(version: TaskSetVersion) -> list[Problem]:
    """Why the version is not published: every task that is not ``ok``."""
    return [
        Problem(f"tasks.{task.name}", status or "unchecked", f"{task.name}: {_in_words(status)}", _REMEDIES[status])
        for task, status in statuses_of(version)
        if status != "ok"
    ]


def _in_words(status: str | None) -> str:
    return "it was not tried often enough" if status is None else f"its trials say: {status}"


def statuses_of(version: TaskSetVersion) -> Sequence[tuple[StoredTask, str | None]]:
    """Each task by name, and what its trials say of it so far."""
    check = version.check_wanted
    tasks = version.tasks.prefetch_related("trials").order_by("name")
    return [(task, None if check is None else task.status(check.repeat)) for task in tasks]


@dataclass(frozen=True)
class TaskDifference:
    """What differs between two versions, by the names and the contents of their tasks."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    same: int


def compare_tasks(version: TaskSetVersion, before: TaskSetVersion) -> TaskDifference:
    """Raises Invalid for a version of another team, or one whose tasks are not stored."""
    for named in (version, before):
        if named.task_set.team_id != version.task_set.team_id or not named.has_content:
            remedy = "name another version of the same team whose tasks are stored"
            raise Invalid.field("before", before.pk, "these two cannot be compared", remedy)
    new, old = (dict(compared.tasks.values_list("name", "digest")) for compared in (version, before))
    both = new.keys() & old.keys()
    changed = sorted(name for name in both if new[name] != old[name])
    return TaskDifference(sorted(new.keys() - old), sorted(old.keys() - new), changed, len(both) - len(changed))


@dataclass(frozen=True)
class Progress:
    """How far the last check of a version is."""

    tasks: int
    trials: int
    of: int
    statuses: dict[str, int]


def progress_of(found: Sequence[tuple[StoredTask, str | None]], version: TaskSetVersion) -> Progress:
    """Trials that are over, of those that the check makes, and how many tasks have each of the statuses ``found``."""
    check = version.check_wanted
    trials = sum(len(task.trials.all()) for task, _ in found)
    due = 0 if check is None else check.repeat * sum(1 + task.has_solution for task, _ in found)
    statuses = Counter(status or "unchecked" for _, status in found)
    return Progress(len(found), trials, due, dict(sorted(statuses.items())))
