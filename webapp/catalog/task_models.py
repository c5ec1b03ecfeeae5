"""Sets of terminal tasks: named, with versions that are checked before they are published."""

from typing import ClassVar

from django.db import models

from engine.spec.task_check import Status, TaskCheck, status_of
from engine.spec.task_files import TASKS_MANIFEST, TaskManifest
from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.archive import Archive
from webapp.catalog.checked_models import CheckedVersion, checked_constraints
from webapp.catalog.storage import TASKS
from webapp.catalog.version_models import Named


class TaskSet(Named):
    """A name under which a team keeps versions of a set of tasks."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="task_sets")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="task_set_name_is_unique")]


class TaskSetVersion(CheckedVersion):
    """The files are those of ``engine/spec/task_files.py``; ``tasks.json`` is the manifest."""

    storage = TASKS
    noun, of_family, store_message = "task-set", "task_set", queue.STORE_TASKS
    plural, example, check_form = "sets of tasks", "shell-basics", TaskCheck
    remove_message, checked_as, of_upload = queue.REMOVE_TASKS, "task-check", "task_version"

    task_set = models.ForeignKey(TaskSet, on_delete=models.CASCADE, related_name="versions")

    class Meta:
        constraints: ClassVar = checked_constraints("task_set")

    @property
    def family(self) -> TaskSet:  # type: ignore[override]
        return self.task_set

    def forget_check(self) -> None:
        TaskTrial.objects.filter(task__version=self).delete()

    @staticmethod
    def named_in(environment: str, name: str) -> models.Q:
        """Rows whose document names the version ``name`` there; ``environment`` is where an environment stands."""
        own = {"id": "terminal", "catalog": name}
        played = models.Q(**{f"{environment}__contains": own})
        return played | models.Q(**{f"{environment}__contains": {"id": "agent", "tasks": own}})

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
