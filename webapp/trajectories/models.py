"""Trajectories as rows that can be filtered; the whole document stands once, in the run's log."""

from typing import Any, ClassVar, Literal

from django.db import models
from django.db.models.functions import Greatest
from django.utils.functional import cached_property

from engine.spec import files_of_0_2
from engine.spec import trajectory as spec
from webapp.runs.models import Event, Run
from webapp.security.models import Quarantine


class Trajectories(models.QuerySet["Trajectory"]):
    def with_quarantine(self) -> "Trajectories":
        """Each with ``quarantine``: how it stands, None for one that nothing quarantined."""
        held = Quarantine.objects.filter(run=models.OuterRef("run"), trajectory_id=models.OuterRef("trajectory_id"))
        status = {"quarantine": models.Subquery(held.values("state")[:1])}
        return self.annotate(**status)  # named here, the field would be declared twice in the eyes of mypy


class Trajectory(models.Model):
    """A projection of the run's ``trajectory`` events (``webapp/ingest/runs.py`` writes it)."""

    objects = Trajectories.as_manager()

    pk = models.CompositePrimaryKey("run_id", "trajectory_id")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="trajectories", db_index=False)
    trajectory_id = models.CharField(max_length=100)
    """``Trajectory.id``, unique within the run."""
    seq = models.BigIntegerField()
    """It is the number of the event that carries the document."""
    purpose = models.CharField(max_length=20)
    prompt = models.BigIntegerField()
    member = models.IntegerField()
    sampled_at_version = models.IntegerField()
    trained_at_step = models.IntegerField(null=True)
    """What a later attempt makes void counts no longer: then None, whatever the event says."""
    level = models.IntegerField()
    part = models.CharField(max_length=40, default="", db_default="")
    """The part of its run's mixture that it was played in; empty where the run has none."""
    success = models.BooleanField()
    reward = models.FloatField()
    tool_calls = models.IntegerField()
    tool_errors = models.IntegerField()
    turns = models.IntegerField()
    segments = models.IntegerField(default=1, db_default=1)
    """``len(Trajectory.segments)``: more than 1 where the policy's context was written again."""
    tokens = models.IntegerField()
    """Sampled tokens."""
    stop_reason = models.CharField(max_length=20)
    changes = models.IntegerField(default=0, db_default=0)
    """``len(Trajectory.changes)``."""
    repaired = models.IntegerField(default=0, db_default=0)
    """Calls that were replaced by their correction."""
    prefilled = models.IntegerField(default=0, db_default=0)
    """Turns that were an expert's."""
    masked = models.IntegerField(default=0, db_default=0)
    """Turns that are not trained on; all of them where the whole trajectory is not."""
    alerts = models.IntegerField(default=0, db_default=0)
    """``len(Trajectory.alerts)``: those that quarantined it."""

    quarantine: str | None
    """No column; ``with_quarantine`` adds it."""

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["run", "-seq"], name="trajectory_newest_first"),
            models.Index(fields=["run", "purpose", "prompt", "member"], name="trajectory_by_prompt"),
            models.Index(fields=["run", "sampled_at_version"], name="trajectory_by_version"),
            models.Index(
                fields=["run", "trained_at_step"],
                name="trajectory_trained",
                condition=models.Q(trained_at_step__isnull=False),
            ),
            models.Index(
                fields=["run", "-seq"],
                name="trajectory_changed",
                condition=models.Q(changes__gt=0) | models.Q(masked__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return self.trajectory_id

    @cached_property
    def body(self) -> dict[str, Any]:
        """The document as JSON.  One query; lists use ``summary``."""
        event = Event.objects.values_list("body", flat=True).get(run_id=self.run_id, seq=self.seq)
        document: dict[str, Any] = files_of_0_2.trajectory(event["trajectory"])
        return document | {"trained_at_step": self.trained_at_step}

    @property
    def sampled_for_step(self) -> int:
        """Return what the document says."""
        return self.sampled_at_version + 1 if self.purpose == "train" else max(0, self.sampled_at_version)

    @property
    def document(self) -> spec.Trajectory:
        return spec.Trajectory.model_validate(self.body)

    @property
    def summary(self) -> dict[str, Any]:
        """Return what lists and live frames carry."""
        return {"id": self.trajectory_id} | {field: getattr(self, field) for field in SUMMARY_FIELDS}


SUMMARY_FIELDS = (
    "seq", "purpose", "prompt", "member", "sampled_at_version", "trained_at_step", "level", "part", "success",
    "reward", "tool_calls", "tool_errors", "turns", "segments", "tokens", "stop_reason",
    "changes", "repaired", "prefilled", "masked", "alerts",
)  # fmt: skip


SAMPLED_FOR_STEP = models.Case(
    models.When(purpose="train", then=models.F("sampled_at_version") + 1),
    default=Greatest(models.F("sampled_at_version"), 0),
)
"""``Trajectory.sampled_for_step`` in a query."""


def of_step(step: int) -> models.Q:
    """A step's own: sampled for it, or trained on at it."""
    is_training = models.Q(purpose="train")
    # Lookups of the column, not SAMPLED_FOR_STEP, which the index by version cannot serve.  Version -1 is no policy's.
    version = models.Q(sampled_at_version=step) if step else models.Q(sampled_at_version__lte=0)
    sampled_for = models.Q(is_training, sampled_at_version=step - 1) | models.Q(~is_training, version)
    return sampled_for | models.Q(trained_at_step=step)


ChangeFilter = Literal["any", "repaired", "prefilled", "masked", "segments", "none"]
WITH_CHANGE: dict[ChangeFilter, models.Q] = {
    "any": models.Q(changes__gt=0) | models.Q(masked__gt=0),
    "repaired": models.Q(repaired__gt=0),
    "prefilled": models.Q(prefilled__gt=0),
    "masked": models.Q(masked__gt=0),
    "segments": models.Q(segments__gt=1),
    "none": models.Q(changes=0, masked=0),
}


QuarantineFilter = Literal["quarantined", "pending", "benign", "malicious"]


def filtered(
    run: Run,
    *,
    step: int | None = None,
    level: int | None = None,
    part: str | None = None,
    prompt: int | None = None,
    sampled_at_version: int | None = None,
    trained_at_step: int | None = None,
    purpose: str | None = None,
    success: bool | None = None,
    tool_errors: bool | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    stop_reason: str | None = None,
    change: ChangeFilter | None = None,
    quarantine: QuarantineFilter | None = None,
) -> Trajectories:
    """The run's trajectories that meet every condition given, newest first.

    ``step``: those of ``of_step``.  ``tool_errors``: with any, or none.  ``quarantine``: ever quarantined, or how it
    stands.
    """
    exact = {
        "level": level, "part": part, "prompt": prompt, "sampled_at_version": sampled_at_version,
        "trained_at_step": trained_at_step, "purpose": purpose, "success": success, "reward__gte": min_reward,
        "reward__lte": max_reward, "stop_reason": stop_reason,
    }  # fmt: skip
    found = Trajectory.objects.filter(run=run, **{name: value for name, value in exact.items() if value is not None})
    if step is not None:
        found = found.filter(of_step(step))
    if tool_errors is not None:
        found = found.filter(tool_errors__gt=0) if tool_errors else found.filter(tool_errors=0)
    if change is not None:
        found = found.filter(WITH_CHANGE[change])
    if quarantine is not None:
        held = Quarantine.objects.filter(run=run, trajectory_id=models.OuterRef("trajectory_id"))
        found = found.filter(models.Exists(held if quarantine == "quarantined" else held.filter(state=quarantine)))
    return found.order_by("-seq")
