"""What a run does at this moment and what comes next, in words that need no knowledge of the engine.

The sentence is made here alone: pages, lists and live frames show the same one.  It depends on rows and never on
the clock, so a run in which nothing moves says nothing new.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from django.db import connection

from webapp.pages.display import duration
from webapp.runs.models import ENDED, LIVE, Desired, Run, RunStatus

GLOSSARY: dict[str, tuple[str, str]] = {
    "start": (
        "Starting up",
        "The learner, the generator and the rollout workers are started, and the newest checkpoint is read if there"
        " is one.",
    ),
    "cold-start": (
        "Supervised cold start",
        "The policy imitates recorded solutions. Reinforcement learning needs some successes to begin with; this"
        " is where they come from.",
    ),
    "difficulty": (
        "Measuring difficulty",
        "The policy plays each training task several times. Tasks that it always or never solves are left out.",
    ),
    "sync-weights": (
        "Copying weights",
        "The generator, which writes the policy's answers, takes over the newest weights from the learner.",
    ),
    "collect": (
        "Collecting rollouts",
        "The policy tries tasks, with its tools, in sandboxes. Each try is a trajectory, and several tries of one"
        " task are a group.",
    ),
    "score": (
        "Scoring",
        "Each trajectory gets its reward. Those that cannot be compared, or wait for a reviewer, are left out.",
    ),
    "judge": ("Judging turns", "A judge says of each turn whether it helped."),
    "credit": (
        "Assigning credit",
        "Each token gets an advantage: how much better its trajectory was than the others of its group.",
    ),
    "update": (
        "Updating the policy",
        "The learner changes the weights, so that what earned more becomes more likely.",
    ),
    "evaluate": (
        "Evaluating",
        "The policy solves held-out tasks, which it is never trained on: once greedily, and once sampled.",
    ),
    "checkpoint": (
        "Writing a checkpoint",
        "Weights and counts are written to disk. A run that is interrupted goes on from here.",
    ),
    "paused": ("Paused", "The run keeps everything in memory and waits until it is resumed."),
    "finish": ("Finishing", "The summary is written; the run ends."),
}
"""Phase -> its name, and what happens in it."""

_WITHIN_STEP = {
    "sync-weights": ("copying the newest weights to the generator", "collecting rollouts"),
    "collect": ("collecting rollouts, the policy tries tasks in sandboxes", "scoring them, then the update"),
    "score": ("scoring the rollouts", "the update of the policy"),
    "judge": ("judging the turns", "the update of the policy"),
    "credit": ("assigning credit to the rollouts", "the update of the policy"),
}
"""Phase -> what happens in it, and what comes after it in the same step."""


@dataclass(frozen=True)
class ColdStart:
    """How far the supervised steps are; ``left_s`` is None until the first of them were timed.

    Before the first stage begins these are the steps of all stages, from then on those of the present one.
    """

    steps: int
    done: int = 0
    left_s: float | None = None
    stage: int = 1
    of: int = 1
    """How many stages there are."""

    @property
    def name(self) -> str:
        return "supervised cold start" if self.of == 1 else f"supervised stage {self.stage} of {self.of}"


@dataclass(frozen=True)
class Facts:
    """What the sentence is made from; the fields are those of ``Run``, and of its last heartbeat."""

    state: str
    desired: str
    attempt: int
    phase: str
    step: int
    total_steps: int
    eta_s: float | None = None
    cold_start: ColdStart | None = None
    """It is None where the run's recipe has none, or it is known to be over."""

    @property
    def is_cold_starting(self) -> bool:
        return self.state in LIVE and self.phase == "cold-start" and self.cold_start is not None


@dataclass(frozen=True)
class Now:
    phase: str
    """The phase's name in words; empty while the run is in none."""
    happening: str
    next: str
    """What follows; empty once the run has ended."""
    left: str
    """How long it will take, or what is left where no number is known."""
    unit: str
    """What ``done`` and ``of`` count: ``Step`` or ``Supervised step``."""
    done: int
    of: int
    leads: str
    """The chart that is to stand first; empty: none."""

    @property
    def sentence(self) -> str:
        if not self.next:
            return f"{self.happening}."
        return f"Now: {self.happening}. Next: {self.next}."

    def as_data(self) -> dict[str, Any]:
        return asdict(self) | {"sentence": self.sentence}


def now_of(facts: Facts) -> Now:
    happening, following = _happening(facts)
    cold_start = facts.cold_start if facts.is_cold_starting else None
    is_before_it = facts.cold_start is not None and facts.phase in ("", "start") and facts.state not in ENDED
    return Now(
        phase=GLOSSARY[facts.phase][0] if facts.phase in GLOSSARY and facts.state in LIVE else "",
        happening=happening,
        next=following,
        left=_left(facts),
        unit="Supervised step" if cold_start else "Step",
        done=cold_start.done if cold_start else facts.step,
        of=cold_start.steps if cold_start else facts.total_steps,
        leads="cold-start" if cold_start or is_before_it or not facts.total_steps else "",
    )


def _happening(facts: Facts) -> tuple[str, str]:
    """What happens, and what comes next."""
    if facts.state in ENDED:
        return _ended(facts), ""
    if facts.state == RunStatus.QUEUED:
        return _queued(facts)
    if facts.state == RunStatus.LAUNCHING:
        return f"attempt {facts.attempt} is being launched", "start-up of its workers"
    if facts.phase == "paused":
        return f"paused{_after(facts)}", "it goes on from here when it is resumed"
    happening, following = _working(facts)
    if facts.desired == Desired.CANCEL:
        following = "it stops, because it was cancelled"
    elif facts.desired == Desired.PAUSE:
        following = "a checkpoint, then a pause"
    return happening, following


def _ended(facts: Facts) -> str:
    steps = f"{facts.step} of {facts.total_steps} steps"
    match facts.state:
        case RunStatus.SUCCEEDED if facts.total_steps:
            return f"Succeeded: all {_counted(facts.total_steps, 'step')} of RL are done"
        case RunStatus.SUCCEEDED:
            return "Succeeded: the final evaluation is done"
        case RunStatus.FAILED:
            return f"Failed at {steps}{_during(facts)}"
        case _:
            return f"Cancelled at {steps}{_during(facts)}"


def _during(facts: Facts) -> str:
    name = GLOSSARY[facts.phase][0] if facts.phase in GLOSSARY else ""
    return f", in the phase “{name}”" if name else ""


def _queued(facts: Facts) -> tuple[str, str]:
    if facts.desired == Desired.PAUSE:
        return "paused in the queue", "a worker launches it when it is resumed"
    again = " again" if facts.attempt else ""
    return f"in the queue until a worker launches it{again}", "start-up of its workers"


def _working(facts: Facts) -> tuple[str, str]:
    at = f"step {facts.step} of {facts.total_steps}"
    match facts.phase:
        case "cold-start":
            return _cold_starting(facts), _onward(facts)
        case "evaluate":
            return _evaluating(facts), _onward(facts)
        case "difficulty":
            return "finding out how hard its tasks are", _onward(facts)
        case "checkpoint":
            return f"writing a checkpoint{_after(facts)}", _onward(facts)
        case "update":
            return f"{at}, updating the policy", _onward(facts)
        case "finish":
            return "writing the summary", "the run ends"
        case phase if phase in _WITHIN_STEP:
            happening, following = _WITHIN_STEP[phase]
            return f"{at}, {happening}", following
    # "start", or a live run that has told of no phase yet
    if facts.cold_start and not facts.step:
        return "starting up", f"a supervised cold start of {_counted(facts.cold_start.steps, 'step')}"
    return f"starting up{_after(facts)}", _onward(facts)


def _cold_starting(facts: Facts) -> str:
    if facts.cold_start is None:
        return "supervised cold start"
    left = facts.cold_start.left_s
    about = "" if left is None else f", about {_roughly(left)} left"
    return f"{facts.cold_start.name}, {facts.cold_start.done} of {facts.cold_start.steps}{about}"


def _roughly(seconds: float) -> str:
    """An estimate, so without places."""
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


def _evaluating(facts: Facts) -> str:
    if facts.step >= facts.total_steps:
        done = f", all {_counted(facts.total_steps, 'step')} of RL are done" if facts.total_steps else ""
        return f"final evaluation on held-out tasks{done}"
    return f"evaluation on held-out tasks, {'before step 1' if not facts.step else f'after step {facts.step}'}"


def _onward(facts: Facts) -> str:
    """What comes after the present step, or after what happens between steps."""
    if facts.total_steps and facts.step == 0:
        return f"{_counted(facts.total_steps, 'step')} of RL"
    if facts.step < facts.total_steps:
        return f"step {facts.step + 1} of {facts.total_steps}"
    return "the run ends with a summary" if facts.phase in ("evaluate", "checkpoint") else "the final evaluation"


def _after(facts: Facts) -> str:
    return f" after step {facts.step} of {facts.total_steps}" if facts.step else ""


def _left(facts: Facts) -> str:
    """The engine's estimate counts whole steps: within the last one, and after it, there is none."""
    if facts.state not in LIVE or facts.phase in ("", "start"):
        return "–"
    if facts.is_cold_starting and facts.cold_start:
        left = facts.cold_start.left_s
        return "–" if left is None else f"{_roughly(left)} of the {facts.cold_start.name.removeprefix('supervised ')}"
    if facts.step >= facts.total_steps and facts.phase in ("evaluate", "checkpoint", "finish"):
        return "after the final evaluation" if facts.phase == "evaluate" else "a moment"
    if facts.total_steps and facts.step == facts.total_steps:
        return "last step"
    return duration(facts.eta_s) if facts.eta_s else "–"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


COLD_START_COLUMNS = (
    "cold_start.steps, cold_start.done, cold_start.timed, cold_start.seconds, cold_start.stage, cold_start.stages"
)
COLD_START_COLUMN_COUNT = 6
COLD_START_JOIN = """
LEFT JOIN LATERAL (
    SELECT coalesce((begun.stage->>'steps')::int, named.steps) AS steps,
           coalesce(newest.step, (begun.stage->>'before')::int + (begun.stage->>'done')::int)
               - coalesce((begun.stage->>'before')::int, 0) AS done,
           newest.step - coalesce((begun.stage->>'before')::int + (begun.stage->>'done')::int, 0) AS timed,
           extract(epoch FROM newest.at - begun.at)::float8 AS seconds,
           (begun.stage->>'stage')::int AS stage, (begun.stage->>'of')::int AS stages
    FROM (SELECT) nothing
    LEFT JOIN LATERAL (
        SELECT CASE WHEN bool_and((stage->>'epochs')::int = 0) THEN sum((stage->>'steps')::int)::int END AS steps
        FROM jsonb_array_elements(run.spec #> '{recipe,stages}') stage
    ) named ON true
    LEFT JOIN LATERAL (
        SELECT seq, at, body->>'phase' AS phase,
               CASE WHEN jsonb_typeof(body->'stage') = 'object' THEN body->'stage' END AS stage FROM runs_event
        WHERE run.phase = 'cold-start' AND run_id = run.id AND kind = 'phase' ORDER BY seq DESC LIMIT 1
    ) begun ON true
    LEFT JOIN LATERAL (
        SELECT step, at FROM runs_event
        WHERE begun.phase = 'cold-start' AND run_id = run.id AND kind = 'metric' AND seq > begun.seq
        ORDER BY seq DESC LIMIT 1
    ) newest ON true
    WHERE run.phase IN ('', 'start', 'cold-start') AND run.step = 0
) cold_start ON true
"""
"""To be joined to ``runs_run run``.  Only a run that is about to start or in its cold start reads its spec and log."""


def cold_start_from(
    steps: int | None, done: int | None, timed: int | None, seconds: float | None, stage: int | None, of: int | None
) -> ColdStart | None:
    """Return what ``COLD_START_COLUMNS`` say; ``seconds`` is what the last ``timed`` of the ``done`` steps took."""
    if not steps:
        return None
    so_far = ColdStart(steps, min(done or 0, steps), stage=stage or 1, of=of or 1)
    if not timed or seconds is None:
        return so_far
    return replace(so_far, left_s=(steps - so_far.done) * seconds / timed)


def cold_starts_of(run_ids: Iterable[UUID]) -> dict[UUID, ColdStart | None]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT run.id, {COLD_START_COLUMNS} FROM runs_run run {COLD_START_JOIN} WHERE run.id = ANY(%s)",
            [list(run_ids)],
        )
        return {run_id: cold_start_from(*found) for run_id, *found in cursor.fetchall()}


def now_of_run(run: Run, cold_start: ColdStart | None) -> Now:
    return now_of(
        Facts(
            state=run.state,
            desired=run.desired,
            attempt=run.attempt,
            phase=run.phase,
            step=run.step,
            total_steps=run.total_steps,
            eta_s=run.eta_s,
            cold_start=cold_start,
        )
    )
