"""Versions that are checked before somebody publishes them: what sets of tasks and environment packages share."""

from typing import Any, ClassVar
from uuid import uuid4

from django.db import models
from django.utils import timezone

from engine.spec.strict import Strict
from webapp.catalog.version_models import StoredVersion


class CheckedState(models.TextChoices):
    IMPORTING = "importing"
    READING = "reading"
    STORED = "stored"
    """Its files are here and never change; what is missing is a check that finds nothing wrong, and somebody who
    publishes it."""
    CHECKING = "checking"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SAME = "same"
    """Its files are those of ``same_as``, so it became no version of its own."""


_WITH_CONTENT = frozenset({CheckedState.STORED, CheckedState.CHECKING, CheckedState.READY})


class CheckedVersion(StoredVersion):
    """Files that the engine reads as hostile input, and then tries in a job of its own."""

    plural: ClassVar[str]
    """Several of what it is a version of, in words."""
    example: ClassVar[str]
    """A name that one may have."""
    of_upload: ClassVar[str]
    """The field of an upload that names what it was completed to."""
    checked_as: ClassVar[str]
    """What the ids of its jobs begin with."""
    check_form: ClassVar[type[Strict]]
    """How one is tried."""
    unfinished = frozenset({CheckedState.IMPORTING, CheckedState.READING, CheckedState.CHECKING})
    keeps_content = unfinished | _WITH_CONTENT

    state = models.CharField(max_length=10, choices=CheckedState.choices, default=CheckedState.IMPORTING)
    same_as = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    problems = models.JSONField(default=list)
    """Everything that is wrong with the files, or that they need and the last check could not give:
    ``engine.spec.check_log.FoundProblem``."""
    faults = models.PositiveIntegerField(default=0)
    """How many there are, also those that are not listed."""
    check_settings = models.JSONField(null=True)
    """``check_form`` of the last check."""
    check_id = models.UUIDField(default=uuid4)
    """The id of the job that checks it, and of the job's folder; another one for each job."""
    check_jobs = models.PositiveIntegerField(default=0)
    """Jobs of this check that have died."""
    log_bytes = models.BigIntegerField(default=0)
    """How far the job's log was read."""
    waiting_for = models.TextField(blank=True, default="")
    """Why the check cannot go on at present."""
    waiting_since = models.DateTimeField(default=timezone.now)

    upload: Any
    """The ``Upload`` that it is made of, where it is made of one."""

    class Meta:
        abstract = True

    @property
    def has_content(self) -> bool:
        """Whether its files can be looked at."""
        return self.state in _WITH_CONTENT

    @property
    def check_wanted(self) -> Any:
        """How the last check tries it; None before the first one."""
        return None if self.check_settings is None else self.check_form.model_validate(self.check_settings)

    @property
    def submission_id(self) -> str:
        """The id of the job that checks it."""
        return f"{self.checked_as}-{self.check_id}"

    def forget_check(self) -> None:
        """Forget what the last check has found of its files, before another one begins."""
        raise NotImplementedError


def checked_constraints(family: str) -> list[Any]:
    """What holds of every row: ``family`` is the field that names what it is a version of."""
    return [
        models.UniqueConstraint(fields=[family, "number"], name=f"{family}_number_is_unique"),
        models.UniqueConstraint(
            fields=[family, "sha256"], name=f"{family}_content_is_unique",
            condition=models.Q(state__in=["stored", "checking", "ready"]),
        ),
        models.CheckConstraint(condition=models.Q(state__in=CheckedState.values), name=f"{family}_state_is_known"),
        models.CheckConstraint(
            condition=~models.Q(state="ready") | models.Q(number__isnull=False, sha256__gt=""),
            name=f"ready_{family}_has_number_and_content",
        ),
    ]  # fmt: skip
