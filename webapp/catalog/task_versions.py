"""What can be done to versions of a set of tasks beside what every version that is checked has: publish, compare."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction

from engine.spec.problems import Problem
from webapp.accounts.models import User
from webapp.catalog.checked_versions import lock_to_publish, publish_checked
from webapp.catalog.models import StoredTask, TaskSetVersion
from webapp.refusals import Invalid

TASKS_FILES = (".tar", ".jsonl")
"""A tar of folders of tasks, and rows of a SWE-bench form."""


def problem_with_tasks_file(name: str, field: str) -> Problem | None:
    """Why a file of this name cannot be a set of tasks; None where it can."""
    if "/" in name or "\\" in name or not name.isprintable():
        return Problem(field, name, f"{name!r} is no name of a file", "name it with letters, digits and . _ -")
    if not name.lower().endswith(TASKS_FILES):
        remedy = "make it with: tar -cf tasks.tar -C FOLDER .; or give rows of a SWE-bench form as .jsonl"
        return Problem(field, name, f"{name} is no package of tasks", remedy)
    return None


@transaction.atomic
def publish_tasks(version: TaskSetVersion, *, acting_user: User) -> TaskSetVersion:
    """Give the version its number, by which runs name it.  Raises Refused until a check found every task ``ok``."""
    version = lock_to_publish(version)
    problems = [] if version.is_ready else faults_of(version)
    refusal = f"{len(problems)} of the tasks cannot be trusted, and nothing is published half"
    return publish_checked(version, problems, refusal, acting_user=acting_user)


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
