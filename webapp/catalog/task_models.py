"""Sets of terminal tasks: named, with versions that are checked before they are published."""

from typing import ClassVar
from uuid import uuid4

from django.db import models
from django.utils import timezone

from engine.spec.task_check import Status, TaskCheck, status_of
from engine.spec.task_files import TASKS_MANIFEST, TaskManifest
from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.archive import Archive
from webapp.catalog.storage import TASKS
from webapp.catalog.version_models import Named, StoredVersion


class TaskSet(Named):
    """A name under which a team keeps versions of a set of tasks."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="task_sets")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="task_set_name_is_unique")]


class TaskSetState(models.TextChoices):
    IMPORTING = "importing"
    READING = "reading"
    STORED = "stored"
    """Its tasks are here and never change; what is missing is a check that all of them pass, and somebody who
    publishes it."""
    CHECKING = "checking"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SAME = "same"
    """Its tasks are those of ``same_as``, so it became no version of its own."""


_WITH_CONTENT = frozenset({TaskSetState.STORED, TaskSetState.CHECKING, TaskSetState.READY})


class TaskSetVersion(StoredVersion):
    """The files are those of ``engine/spec/task_files.py``; ``tasks.json`` is the manifest."""

    storage = TASKS
    noun, of_family, store_message = "task-set", "task_set", queue.STORE_TASKS
    remove_message, named_at = queue.REMOVE_TASKS, "spec__environment__catalog"
    unfinished = frozenset({TaskSetState.IMPORTING, TaskSetState.READING, TaskSetState.CHECKING})
    keeps_content = unfinished | _WITH_CONTENT

    task_set = models.ForeignKey(TaskSet, on_delete=models.CASCADE, related_name="versions")
    state = models.CharField(max_length=10, choices=TaskSetState.choices, default=TaskSetState.IMPORTING)
    same_as = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    problems = models.JSONField(default=list)
    """Everything that is wrong with the tasks, or that they need and the last check could not give:
    ``engine.spec.task_check.FoundProblem``."""
    faults = models.PositiveIntegerField(default=0)
    """How many there are, also those that are not listed."""
    check_settings = models.JSONField(null=True)
    """``engine.spec.task_check.TaskCheck`` of the last check."""
    check_id = models.UUIDField(default=uuid4)
    """The id of the job that checks it, and of the job's folder; another one for each job."""
    check_jobs = models.PositiveIntegerField(default=0)
    """Jobs of this check that have died."""
    log_bytes = models.BigIntegerField(default=0)
    """How far the job's log was read."""
    waiting_for = models.TextField(blank=True, default="")
    """Why the check cannot go on at present."""
    waiting_since = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task_set", "number"], name="task_set_number_is_unique"),
            models.UniqueConstraint(
                fields=["task_set", "sha256"], name="task_set_content_is_unique",
                condition=models.Q(state__in=["stored", "checking", "ready"]),
            ),
            models.CheckConstraint(condition=models.Q(state__in=TaskSetState.values), name="task_set_state_is_known"),
            models.CheckConstraint(
                condition=~models.Q(state="ready") | models.Q(number__isnull=False, sha256__gt=""),
                name="ready_task_set_has_number_and_content",
            ),
        ]  # fmt: skip

    @property
    def family(self) -> TaskSet:  # type: ignore[override]
        return self.task_set

    @property
    def has_content(self) -> bool:
        """Whether its tasks can be looked at."""
        return self.state in _WITH_CONTENT

    @property
    def check_wanted(self) -> TaskCheck | None:
        return None if self.check_settings is None else TaskCheck.model_validate(self.check_settings)

    @property
    def submission_id(self) -> str:
        """The id of the job that checks it."""
        return f"task-check-{self.check_id}"

    def manifest(self) -> TaskManifest:
        """Raises OSError where the files are not here."""
        return TaskManifest.model_validate_json((self.folder / TASKS_MANIFEST).read_bytes())

    def file_sizes(self) -> dict[str, int]:
        """The files with their bytes.  Raises OSError where they are not here."""
        return self.manifest().sizes | {TASKS_MANIFEST: (self.folder / TASKS_MANIFEST).stat().st_size}

    def archive(self, prefix: str) -> Archive:
        """The tasks as they came, with permissions to execute and empty folders.  Raises OSError."""
        manifest = self.manifest()
        sizes, executables, folders = self.file_sizes(), manifest.executables, manifest.folders
        return Archive(self.folder, sizes, prefix=prefix, executables=executables, folders=folders)


class StoredTask(models.Model):
    """A task of a version, as it was read; never changed."""

    version = models.ForeignKey(TaskSetVersion, on_delete=models.CASCADE, related_name="tasks")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=71)
    level = models.PositiveSmallIntegerField()
    has_solution = models.BooleanField()
    needs_image = models.BooleanField()
    bytes = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["version", "name"], name="task_name_is_unique")]

    def __str__(self) -> str:
        return self.name

    def rewards(self, kind: str) -> list[float | None]:
        """The rewards of the trials so far, in the order of their repetitions."""
        trials = sorted((trial for trial in self.trials.all() if trial.kind == kind), key=lambda one: one.repetition)
        return [trial.reward for trial in trials]

    def status(self, repeat: int) -> Status | None:
        """What its trials say of it; None while there are fewer than ``repeat`` of each kind."""
        oracle, nop = self.rewards("oracle"), self.rewards("nop")
        if len(nop) < repeat or (self.has_solution and len(oracle) < repeat):
            return None
        return status_of(has_solution=self.has_solution, oracle=oracle, nop=nop)


class TaskTrial(models.Model):
    """A try of a task in the last check of its version."""

    task = models.ForeignKey(StoredTask, on_delete=models.CASCADE, related_name="trials")
    kind = models.CharField(max_length=6)
    repetition = models.PositiveSmallIntegerField()
    reward = models.FloatField(null=True)
    """None where the tests came to none."""
    seconds = models.FloatField()
    note = models.TextField(blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "kind", "repetition"], name="task_trial_is_unique")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.repetition}: {self.reward}"
