"""A run, its life, and what it has said about itself.

The log (``Event``) is the truth about what the engine said; metrics, roll-ups, trajectories and
checkpoints are projections of it (``webapp/ingest/runs.py``).  docs/events.md has the protocol.
"""

import uuid
from datetime import datetime
from typing import Any, ClassVar

from django.db import models, transaction
from django.db.models.fields.json import KT
from django.utils import timezone

from engine.spec.impossible import AS_STORED
from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User
from webapp.catalog.models import DatasetVersion, ModelVersion, PackageVersion, TaskSetVersion
from webapp.experiments.models import Experiment


class RunStatus(models.TextChoices):
    QUEUED = "queued"
    LAUNCHING = "launching"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


MOVES: dict[str, frozenset[str]] = {
    RunStatus.QUEUED: frozenset({RunStatus.LAUNCHING, RunStatus.FAILED, RunStatus.CANCELLED}),
    # Back to queued: the attempt is given up and another one will be made.
    RunStatus.LAUNCHING: frozenset({RunStatus.RUNNING, RunStatus.QUEUED, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.RUNNING: frozenset(
        {RunStatus.PAUSED, RunStatus.QUEUED, RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED}
    ),
    RunStatus.PAUSED: frozenset(
        {RunStatus.RUNNING, RunStatus.QUEUED, RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED}
    ),
    RunStatus.SUCCEEDED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}
"""Every move a run can make.  Nothing changes ``Run.state`` outside ``Run.move_to``."""
ENDED = frozenset(state for state, onward in MOVES.items() if not onward)
LIVE = frozenset({RunStatus.LAUNCHING, RunStatus.RUNNING, RunStatus.PAUSED})
"""States in which an attempt may speak."""


class Desired(models.TextChoices):
    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


ENVIRONMENT_OF_RUN = KT("spec__environment__id")
"""As text; an index has it, so that asking for it reads no spec."""


class ImpossibleMove(Exception):
    """A move that is not in ``MOVES``: a mistake in our code, never in a request."""


class Run(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="runs")
    experiment = models.ForeignKey(Experiment, on_delete=models.SET_NULL, null=True, related_name="runs")
    number = models.PositiveIntegerField()
    """1, 2, 3 ... within the team."""
    name = models.CharField(max_length=100)
    spec = models.JSONField()
    """``engine.spec.run.RunSpec``; never changes."""
    model_version = models.ForeignKey(ModelVersion, on_delete=models.SET_NULL, null=True, related_name="runs")
    """What ``spec.model.catalog`` named when the run was submitted."""
    judge_version = models.ForeignKey(ModelVersion, on_delete=models.SET_NULL, null=True, related_name="judged_runs")
    """What ``spec.resources.judge.catalog`` named then."""
    dataset_version = models.ForeignKey(DatasetVersion, on_delete=models.SET_NULL, null=True, related_name="runs")
    """What ``spec.dataset.catalog`` named then."""
    task_version = models.ForeignKey(TaskSetVersion, on_delete=models.SET_NULL, null=True, related_name="runs")
    """What ``spec.environment.catalog`` of terminal tasks named then."""
    package_versions = models.ManyToManyField(PackageVersion, related_name="runs")
    """What each ``catalog`` of an environment package named then."""
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    state = models.CharField(max_length=10, choices=RunStatus.choices, default=RunStatus.QUEUED)
    state_since = models.DateTimeField(default=timezone.now)
    desired = models.CharField(max_length=6, choices=Desired.choices, default=Desired.RUN)
    desired_since = models.DateTimeField(default=timezone.now)
    desired_because = models.TextField(blank=True, default="", db_default="")
    """What wanted it, where that was no person: the alert that paused the run."""
    failure_reason = models.TextField(blank=True)
    summary = models.JSONField(null=True)
    """``Finished.summary``."""

    attempt = models.PositiveIntegerField(default=0)
    """How often the run was launched.  It fences: what an older attempt sends is refused."""
    submission_id = models.CharField(max_length=80, blank=True)
    """``run-<id>-<attempt>``: made from the row, so a crash between submitting and writing it down loses nothing."""
    lease_until = models.DateTimeField(null=True)
    """Until then an attempt that is silent misses no heartbeat."""
    heartbeat_at = models.DateTimeField(null=True)
    missed_heartbeats = models.PositiveSmallIntegerField(default=0)
    """Reconciliations in a row that found the lease run out although the service could be reached."""
    heartbeat = models.JSONField(null=True)
    """``engine.spec.event.Heartbeat``, the last one."""
    phase = models.CharField(max_length=20, blank=True)
    step = models.IntegerField(default=0)
    total_steps = models.IntegerField(default=0)
    last_seq = models.BigIntegerField(default=0)
    review_decisions = models.PositiveIntegerField(default=0, db_default=0)
    """The number of the last review decision about one of its trajectories (``webapp/security``)."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["team", "number"], name="run_number_is_unique"),
            models.CheckConstraint(condition=models.Q(state__in=RunStatus.values), name="run_state_is_known"),
            models.CheckConstraint(condition=models.Q(desired__in=Desired.values), name="run_desired_is_known"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["team", "-created_at", "-id"], name="run_newest_first"),
            models.Index(fields=["state"], name="run_unended", condition=~models.Q(state__in=sorted(ENDED))),
            models.Index(ENVIRONMENT_OF_RUN, models.F("created_at").desc(), name="run_by_environment"),
        ]

    def __str__(self) -> str:
        return f"#{self.number} {self.name}"

    @property
    def run_spec(self) -> RunSpec:
        return RunSpec.model_validate(self.spec, context=AS_STORED)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def checkpoints_on_disk(self) -> models.QuerySet["Checkpoint"]:
        """The newest first."""
        return self.checkpoints.filter(on_disk=True).order_by("-step")

    @property
    def eta_s(self) -> float | None:
        return (self.heartbeat or {}).get("eta_s") if self.state in LIVE else None

    def move_to(self, state: str, *, by: str, reason: str = "", at: datetime | None = None, **fields: Any) -> bool:
        """Change state unless somebody else changed state or attempt first; return whether we won.

        One conditional UPDATE, no lock: a worker, the ingest and a person pressing "cancel" may all
        try.  ``fields`` are written with it.  The winner's transition row is in the same transaction, and
        the open alerts of a run that ends wait for nobody any more.
        """
        if state not in MOVES[self.state]:
            raise ImpossibleMove(f"run {self.id}: {self.state} -> {state}")
        at = at or timezone.now()
        fields |= {"state": state, "state_since": at}
        if state in ENDED:
            fields |= {"ended_at": at, "lease_until": None}
        with transaction.atomic():
            unchanged = Run.objects.filter(id=self.id, state=self.state, attempt=self.attempt)
            if not unchanged.update(**fields):
                return False
            if state in ENDED:
                self.alerts.filter(state="open").update(state="run-ended")
            self.transitions.create(
                from_state=self.state,
                to_state=state,
                attempt=fields.get("attempt", self.attempt),
                by=by,
                reason=reason,
                at=at,
            )
        for field, value in fields.items():
            setattr(self, field, value)
        return True


class RunTransition(models.Model):
    """One move of a run: what the page shows as its history."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="transitions")
    from_state = models.CharField(max_length=10)
    to_state = models.CharField(max_length=10)
    attempt = models.PositiveIntegerField()
    by = models.CharField(max_length=254)
    """An e-mail address, ``engine``, ``worker`` or ``reconcile``."""
    reason = models.TextField(blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["id"]


class Event(models.Model):
    """One event exactly as the engine sent it, under its own number."""

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    kind = models.CharField(max_length=12)
    step = models.IntegerField(null=True)
    at = models.DateTimeField()
    body = models.JSONField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["run", "seq"], name="event_log_lines", condition=models.Q(kind="log")),
            models.Index(fields=["run", "step"], name="event_lanes", condition=models.Q(kind__in=["lanes", "started"])),
        ]


class MetricKey(models.Model):
    name = models.CharField(max_length=200, unique=True)

    def __str__(self) -> str:
        return self.name


class MetricPoint(models.Model):
    """The value of one key at one step, in the lineage that counts."""

    pk = models.CompositePrimaryKey("run_id", "key_id", "step")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="metric_points", db_index=False)
    key = models.ForeignKey(MetricKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    step = models.IntegerField()
    value = models.FloatField()


LEVELS = (10, 100, 1000)
"""Steps per bucket of the roll-ups."""


class MetricRollup(models.Model):
    """The points of steps ``[bucket * level, (bucket + 1) * level)`` in one row: a spike is never sampled away."""

    pk = models.CompositePrimaryKey("run_id", "key_id", "level", "bucket")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="metric_rollups", db_index=False)
    key = models.ForeignKey(MetricKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    level = models.SmallIntegerField()
    """Steps per bucket: one of ``LEVELS``."""
    bucket = models.IntegerField()
    minimum = models.FloatField()
    maximum = models.FloatField()
    total = models.FloatField()
    count = models.IntegerField()
    last = models.FloatField()
    last_step = models.IntegerField()


class Checkpoint(models.Model):
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.IntegerField()
    path = models.TextField()
    size_bytes = models.BigIntegerField()
    seconds = models.FloatField()
    at = models.DateTimeField()
    on_disk = models.BooleanField(default=True, db_default=True)
    """With each checkpoint the engine removes the files of all but the newest ``schedule.keep_checkpoints``."""

    class Meta:
        ordering: ClassVar = ["step"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "step"], name="checkpoint_is_unique")]
