"""What a run says about itself while it lives.  The protocol around it: docs/events.md.

Events of a run are numbered 1, 2, 3 ... over all its attempts by one writer (the engine's spool),
and the log in the database holds exactly those numbers, each once.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.spec import files_of_0_2
from engine.spec.evaluation_report import EvaluationReport
from engine.spec.security import Origin, ReviewDecision, SettledAs, TurnText
from engine.spec.strict import Strict
from engine.spec.trajectory import Trajectory
from engine.spec.usage import Usage
from sandboxes.egress.detectors.finding import Finding
from sandboxes.egress.record import EgressRecord

MOST_RECORDS = 100
"""One event holds no more records; they take at most 0.8 MiB."""
MOST_SPANS = 400
"""One event holds no more spans; they take at most 0.1 MiB."""
MOST_REVIEW_DECISIONS = 100
"""One response holds no more of them."""

Phase = Literal[
    "start",
    "cold-start",
    "difficulty",
    "sync-weights",
    "collect",
    "score",
    "judge",
    "credit",
    "update",
    "evaluate",
    "checkpoint",
    "paused",
    "finish",
]


class _Event(Strict):
    seq: int = Field(ge=1)
    attempt: int = Field(ge=1)
    at: float
    """Unix time in seconds, by the engine's clock."""


class Started(_Event):
    """An attempt begins.  What earlier attempts said about steps after ``from_step`` is void: it is done again."""

    kind: Literal["started"] = "started"
    from_step: int
    """The number of finished steps: 0, or that of the checkpoint which this attempt resumes."""
    total_steps: int
    from_cold_start_step: int | None = None
    """The same for ``sft/`` metrics, whose steps are those of all supervised stages together.

    None keeps them all when ``from_step`` > 0 (the cold start is over) and none of them when it is 0."""


class Metric(_Event):
    """Values at one step, e.g. ``{"train/reward": 0.4}``.  A key appears at most once per step and lineage."""

    kind: Literal["metric"] = "metric"
    step: int
    values: dict[str, float]


class TrajectoryStored(_Event):
    kind: Literal["trajectory"] = "trajectory"
    trajectory: Trajectory


class StageProgress(Strict):
    """Where a run's supervised stages are."""

    stage: int
    """Its number, from 1."""
    of: int
    """How many stages there are."""
    before: int
    """Supervised steps of the stages before it."""
    steps: int
    """Its own."""
    done: int
    """How many of them were done when the phase began."""


class PhaseChanged(_Event):
    """``seconds`` is None when the phase begins and its duration when it ends.

    ``stage`` is there in the phase ``cold-start`` while a supervised stage makes steps."""

    kind: Literal["phase"] = "phase"
    step: int
    phase: Phase
    seconds: float | None = None
    stage: StageProgress | None = None


class Log(_Event):
    kind: Literal["log"] = "log"
    level: Literal["debug", "info", "warning", "error"]
    source: str
    message: str


class Checkpoint(_Event):
    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    size_bytes: int
    seconds: float


class _SecurityEvent(_Event):
    """An event about a sandbox, also as version 0.2 wrote it."""

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        return files_of_0_2.security_event(document)


class EgressRecorded(_SecurityEvent):
    """What one sandbox tried to reach.

    An attempt at a run may report the same again: ``sandbox`` and the record's ``seq`` name a record.
    """

    kind: Literal["egress"] = "egress"
    sandbox: str
    """Random, and of one user of one sandbox: the key of its records, in all runs."""
    origin: Origin | None = None
    """It is None where no tool call was under way."""
    records: list[EgressRecord] = Field(min_length=1, max_length=MOST_RECORDS)


class AlertRaised(_SecurityEvent):
    """A detector found something.  An attempt at a run may report the same again: ``id`` names it."""

    kind: Literal["alert"] = "alert"
    id: str
    """``<sandbox>/<n>``: unique in all runs."""
    origin: Origin | None = None
    finding: Finding
    quarantined: bool
    """Whether the sandbox was frozen for it, and the trajectory is kept out of training until a reviewer has
    decided."""


class AlertedTurn(_SecurityEvent):
    """The turn that raised an alert, at once: before its alert, and again when its tool call is over.

    The last one about an origin holds.  The trajectory itself follows at the end of its step.
    """

    kind: Literal["turn"] = "turn"
    origin: Origin
    text: TurnText


class QuarantineSettled(_Event):
    """What became of a quarantined trajectory in training, once that is certain.  A later one about it replaces it."""

    kind: Literal["settled"] = "settled"
    step: int
    """The step in which it was certain; an attempt that goes on from before it voids this."""
    trajectory: str
    outcome: SettledAs
    updates_since: int = Field(ge=0)
    """Updates between the one for which it was sampled and this step's."""
    advantage: float | None = None
    """The mean over its sampled tokens, where it was trained on."""
    reward: float | None = None
    group_mean: float | None = None
    """The mean of the rewards that it was compared with, its own among them, is meant."""
    group_size: int | None = None
    rewards_differ: bool | None = None
    """False where all rewards of the group are equal.  Credit that compares rewards inside a group alone then gives an
    advantage of 0; chunk returns, a critic, whitening over a step, a judge and the steps of gigpo need not."""
    because: str | None = None
    """Why it was masked."""


class LaneSpan(Strict):
    """Somebody was at work from one moment to another."""

    lane: Literal["rollouts", "generation", "environment", "reward", "training", "weights", "devices"]
    """``rollouts``: a group, from its start until all of it was back; ``generation``: a turn that was sampled,
    used or not; ``environment``: the calls of a turn; ``devices``: who had those that generator and trainer share, with
    ``schedule.multiplexing``."""
    label: str = Field(max_length=200)
    """What it was, e.g. the id of a trajectory, or the name of a phase."""
    began_at: float
    """Unix time in seconds, by the engine's clock."""
    seconds: float = Field(ge=0)
    joined: int = Field(default=1, ge=1, exclude_if=lambda number: number == 1)
    """So many spans are in it: at least one of them was under way at any time, save for short gaps."""
    work_seconds: float | None = Field(default=None, ge=0, exclude_if=lambda seconds: seconds is None)
    """What the joined ones took, added up; None where nothing is joined."""

    @property
    def work(self) -> float:
        return self.seconds if self.work_seconds is None else self.work_seconds


class LaneSpans(_Event):
    """Who was at work beside whom, since the step before was reported; a later one about its step replaces it.

    A run whose generation and training take turns has none: its phases tell as much."""

    kind: Literal["lanes"] = "lanes"
    step: int
    spans: list[LaneSpan] = Field(max_length=MOST_SPANS)


class Finished(_Event):
    """The last event of a run that ends by itself or because it was told to."""

    kind: Literal["finished"] = "finished"
    outcome: Literal["succeeded", "failed", "cancelled"]
    reason: str | None = None
    summary: dict[str, float | int | str | None | dict[str, float] | EvaluationReport] = {}


Event = Annotated[
    Started
    | Metric
    | TrajectoryStored
    | PhaseChanged
    | Log
    | Checkpoint
    | EgressRecorded
    | AlertedTurn
    | AlertRaised
    | QuarantineSettled
    | LaneSpans
    | Finished,
    Field(discriminator="kind"),
]


class Heartbeat(Strict):
    """Where the loop is right now; sent with every batch, also with empty ones."""

    step: int
    total_steps: int
    phase: Phase
    phase_since: float
    """Unix time at which this phase began: a phase that lasts too long is a stall, and has a name."""
    waiting_for: str | None = None
    """The actor that the loop waits for, e.g. ``rollout-0``."""
    eta_s: float | None = None
    decided_through: int | None = Field(default=None, ge=0)
    """The number of the last review decision that the engine has; None while it does not know its own state yet."""
    usage: Usage | None = None
    """What the run took of its machines when that was last measured; None before."""


class Batch(Strict):
    """``POST /ingest/v1/runs/<run_id>/batches``.  ``events`` are consecutive from ``first_seq``; there may be none."""

    attempt: int = Field(ge=1)
    first_seq: int = Field(ge=1)
    heartbeat: Heartbeat | None = None
    events: list[Event]


Desired = Literal["run", "pause", "cancel"]


class BatchResponse(Strict):
    """What the service has, and what it wants.  Resending what it has changes nothing."""

    next_seq: int
    """The first number that the service does not have."""
    desired: Desired
    review_decisions: list[ReviewDecision] = Field(default=[], max_length=MOST_REVIEW_DECISIONS)
    """Those beyond ``Heartbeat.decided_through``, in order; the rest follows with the next answers."""
