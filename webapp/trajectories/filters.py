"""What a list of trajectories can be narrowed to.  The address carries it, so every view is a link."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import cast
from urllib.parse import urlencode

from django.db.models import Count, Max, Min, Q, QuerySet

from webapp.runs.models import Run
from webapp.security.queries import QUARANTINES
from webapp.trajectories.models import (
    SAMPLED_FOR_STEP,
    ChangeFilter,
    QuarantineFilter,
    Trajectories,
    Trajectory,
    filtered,
    of_step,
)

PURPOSES = {
    "": "Any purpose",
    "train": "Training",
    "eval-greedy": "Held-out, greedy",
    "eval-sampled": "Held-out, sampled",
    "eval-purified": "Held-out, purified",
    "eval-oracle": "The environment's own solution",
    "eval-nop": "Nothing done",
    "eval-script": "A script",
    "demonstration": "Demonstrations",
}
OUTCOMES = {"": "Any outcome", "right": "Right", "wrong": "Wrong"}
ERRORS = {"": "Any tool use", "some": "With tool errors", "none": "Without tool errors"}
CHANGES = {
    "": "Any change",
    "any": "Changed or masked",
    "repaired": "With repairs",
    "prefilled": "Begun by an expert",
    "masked": "With masked turns",
    "segments": "With several segments",
    "none": "As sampled",
}
ENDS = {
    "": "Any end",
    "answered": "Answered",
    "done": "Done",
    "no-tool-call": "No tool call",
    "turn-limit": "Turn limit",
    "truncated": "Truncated",
    "frozen": "Frozen by an alert",
    "crashed": "Agent crashed",
    "silent": "Agent never called",
    "killed": "Agent killed",
}
BINS = 12
PART = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True)
class Filter:
    """Empty text means "any"; what cannot be read is left out."""

    purpose: str = ""
    outcome: str = ""
    errors: str = ""
    change: str = ""
    end: str = ""
    quarantine: str = ""
    level: str = ""
    part: str = ""
    step: str = ""
    reward_min: str = ""
    reward_max: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Filter":
        choices = {"purpose": PURPOSES, "outcome": OUTCOMES, "errors": ERRORS, "change": CHANGES, "end": ENDS,
                   "quarantine": QUARANTINES}  # fmt: skip
        values = {field.name: given.get(field.name, "").strip() for field in fields(cls)}
        for name, known in choices.items():
            if values[name] not in known:
                values[name] = ""
        for name in ("level", "step"):
            if not (values[name].isascii() and values[name].isdigit() and len(values[name]) < 10):
                values[name] = ""
        if not PART.fullmatch(values["part"]):
            values["part"] = ""
        for name in ("reward_min", "reward_max"):
            if not _is_finite(values[name]):
                values[name] = ""
        return cls(**values)

    def of_run(self, run: Run) -> Trajectories:
        """Newest first."""
        return filtered(
            run,
            step=int(self.step) if self.step else None,
            level=int(self.level) if self.level else None,
            part=self.part or None,
            purpose=self.purpose or None,
            success={"right": True, "wrong": False}.get(self.outcome),
            tool_errors={"some": True, "none": False}.get(self.errors),
            min_reward=float(self.reward_min) if self.reward_min else None,
            max_reward=float(self.reward_max) if self.reward_max else None,
            stop_reason=self.end or None,
            change=cast(ChangeFilter, self.change) if self.change else None,
            quarantine=cast(QuarantineFilter, self.quarantine) if self.quarantine else None,
        )

    @property
    def rest_query(self) -> str:
        """The same filters as REST names them."""
        named = {
            "step": self.step,
            "level": self.level,
            "part": self.part,
            "purpose": self.purpose,
            "success": {"right": "true", "wrong": "false"}.get(self.outcome),
            "tool_errors": {"some": "true", "none": "false"}.get(self.errors),
            "min_reward": self.reward_min,
            "max_reward": self.reward_max,
            "stop_reason": self.end,
            "change": self.change,
            "quarantine": self.quarantine,
        }
        return urlencode({name: value for name, value in named.items() if value})

    @property
    def is_set(self) -> bool:
        return self != Filter()

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def _is_finite(text: str) -> bool:
    try:
        return abs(float(text)) < 1e300
    except ValueError:
        return False


@dataclass(frozen=True)
class Bin:
    low: float
    high: float
    count: int
    share: float
    """It is relative to the fullest bin."""
    is_chosen: bool

    @property
    def height(self) -> float:
        """The height of its bar, in the drawing's 40 units, is meant; a bin that is not empty is never invisible."""
        return max(1.0, round(39 * self.share, 1)) if self.count else 0.0

    @property
    def top(self) -> float:
        return round(40 - self.height, 1)

    @property
    def label(self) -> str:
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Histogram:
    """The rewards of one step, among what the other filters let through."""

    step: int
    previous: int | None
    """The nearest step below that has trajectories, and above."""
    next: int | None
    newest: int
    bins: list[Bin]

    @property
    def count(self) -> int:
        return sum(bar.count for bar in self.bins)

    @property
    def in_words(self) -> str:
        return ", ".join(f"{bar.count} with reward {bar.label}" for bar in self.bins if bar.count)


def reward_histogram(run: Run, chosen: Filter) -> Histogram | None:
    """The histogram of the chosen step, or else of the newest; None without any trajectory."""
    every_reward = replace(chosen, reward_min="", reward_max="")
    every_step = replace(every_reward, step="").of_run(run).order_by().annotate(sampled_for=SAMPLED_FOR_STEP)
    newest = every_step.aggregate(step=Max("sampled_for"))["step"]
    if newest is None:
        return None
    step = int(chosen.step) if chosen.step else newest
    around = every_step.aggregate(
        previous=Max("sampled_for", filter=Q(sampled_for__lt=step)),
        next=Min("sampled_for", filter=Q(sampled_for__gt=step)),
    )
    return Histogram(step, around["previous"], around["next"], newest, _bins(every_step.filter(of_step(step)), chosen))


def _bins(trajectories: QuerySet[Trajectory], chosen: Filter) -> list[Bin]:
    """How often each reward came.  Few different rewards get a bin each, many share BINS of equal width."""
    counts = dict(trajectories.values_list("reward").annotate(count=Count("reward")).order_by("reward"))
    if not counts:
        return []
    spans = (
        [(reward, reward, count) for reward, count in counts.items()] if len(counts) <= BINS else _equal_bins(counts)
    )
    most = max(count for *_, count in spans)
    return [
        Bin(low, high, count, count / most, (chosen.reward_min, chosen.reward_max) == (repr(low), repr(high)))
        for low, high, count in spans
    ]


def _equal_bins(counts: dict[float, int]) -> list[tuple[float, float, int]]:
    lowest, highest = min(counts), max(counts)
    width = (highest - lowest) / BINS
    edges = [lowest + width * i for i in range(BINS)] + [highest]
    sums = [0] * BINS
    for reward, count in counts.items():
        sums[min(BINS - 1, int((reward - lowest) / width))] += count
    return [(edges[i], edges[i + 1], sums[i]) for i in range(BINS)]
