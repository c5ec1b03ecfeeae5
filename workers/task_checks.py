"""The checks of task sets: every task is tried with its solution and with nothing done, so often."""

from collections.abc import Sequence

from engine.spec.task_check import TASK_LINE, TaskCheckJob, TrialLine, Try
from engine.spec.task_files import TASKS_FOLDER
from webapp.catalog.models import TaskSetVersion, TaskTrial
from workers.checks import Check, LogUnreadable


def _job(version: TaskSetVersion) -> TaskCheckJob:
    over = TaskTrial.objects.filter(task__version=version).values_list("task__name", "kind", "repetition")
    check = version.check_wanted
    assert check is not None  # a version that is checked has one
    return TaskCheckJob(
        tasks=str(version.folder / TASKS_FOLDER),
        digest=version.manifest().digest,
        check=check,
        done=[Try.model_validate(dict(zip(("task", "kind", "repetition"), trial, strict=True))) for trial in over],
    )


def _keep(version: TaskSetVersion, trials: Sequence[TrialLine]) -> None:
    ids = dict(version.tasks.values_list("name", "id"))
    if unknown := [trial.task for trial in trials if trial.task not in ids]:
        raise LogUnreadable(f"the set has no task {unknown[0]}")
    rows = [
        TaskTrial(
            task_id=ids[trial.task], kind=trial.kind, repetition=trial.repetition, reward=trial.reward,
            seconds=trial.seconds, note=trial.note,
        )
        for trial in trials
    ]  # fmt: skip
    TaskTrial.objects.bulk_create(rows, batch_size=2000, ignore_conflicts=True)


TASK_CHECKS = Check(TaskSetVersion, ("tasks", "trials"), TASK_LINE, _job, _keep)
