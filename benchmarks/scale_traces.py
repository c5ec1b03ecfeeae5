"""What the trajectories of a real run did, for the simulation of scale.py to play again: turns, tokens and tools.

    run (multiplexing_runs.py) ──► its log ──► recorded() ──► results/multiplexing_trace.json ──► Recorded, machine_of()

The run has two generators, one of which is lent to the trainer while a step trains (``schedule.multiplexing``), and the
environment of ``./dev bench async``, whose tools sleep by a Pareto law.  Of each turn its log has the tokens that were
read and sampled, and when its tool was called and how long that took; so between two calls of a rollout lies what its
generator needed.  Training and the exchange of weights are the spans of their lanes.

A simulated run goes on after the last recorded rollout with the first; the recorded one plays nothing beyond its last
step.  So of both only the steps in the middle are compared.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.scale_simulation import Episode, Machine, Plan

TRACE = Path(__file__).parent / "results" / "multiplexing_trace.json"
"""Written by ``./dev bench scale --record``."""


@dataclass(frozen=True)
class Setting:
    """What the run was asked for."""

    generators: int
    trainer: int
    """Generators that are lent while a step trains; 0: nothing is."""
    kv_slots: int
    async_ratio: int
    prompts_per_step: int
    group_size: int
    hold_s: float

    @property
    def batch(self) -> int:
        return self.prompts_per_step * self.group_size


@dataclass(frozen=True)
class Rollout:
    """By turn."""

    read: list[int]
    """Tokens of the prompt, and of what tools had printed."""
    sampled: list[int]
    waits_s: list[float]
    """How long its tool took."""

    @property
    def tokens(self) -> int:
        return sum(self.read) + sum(self.sampled)


@dataclass(frozen=True)
class RunMeasures:
    """What the run did in its steps in the middle."""

    steps_per_hour: float
    moves: float
    """Each step."""
    moved_turns: float
    """Each step."""
    training_share: float
    """How much of the time the trainer had the devices."""
    staleness_max: int


@dataclass(frozen=True)
class Trace:
    setting: Setting
    groups: list[list[Rollout]]
    """By prompt."""
    token_s: float
    """For a generator to read or sample one more token of all that it has, in the mean."""
    train_token_s: float
    weights_s: float
    outcome: RunMeasures

    def document(self) -> dict[str, Any]:
        return asdict(self)


def read_trace(path: Path = TRACE) -> Trace:
    """Raises FileNotFoundError where nothing was recorded."""
    document = json.loads(path.read_text())["trace"]
    groups = [[Rollout(**rollout) for rollout in group] for group in document["groups"]]
    parts = {"setting": Setting(**document["setting"]), "groups": groups, "outcome": RunMeasures(**document["outcome"])}
    return Trace(**document | parts)


class Recorded:
    """``Episodes`` of a trace, in the order of their prompts and from the beginning again."""

    def __init__(self, trace: Trace) -> None:
        self._episodes = self._played(cycle(trace.groups))

    def drawn(self, random_numbers: Random) -> Episode:
        return next(self._episodes)

    def trained_tokens(self, episode: Episode) -> float:
        assert isinstance(episode, RecordedEpisode)
        return float(episode.trained)

    def _played(self, groups: Iterator[list[Rollout]]) -> Iterator[Episode]:
        for rollouts in groups:
            group: list[Episode] = []
            for rollout in rollouts:
                group.append(_episode(rollout, group))
            yield from group


@dataclass
class RecordedEpisode(Episode):
    trained: int = 0


def _episode(rollout: Rollout, group: list[Episode]) -> Episode:
    """A token that is read takes as long as one that is sampled: both are a step of the decoder."""
    steps = [float(read + sampled) for read, sampled in zip(rollout.read, rollout.sampled, strict=True)]
    return RecordedEpisode(steps, rollout.waits_s, group=group, trained=rollout.tokens)


def machine_of(trace: Trace, *, devices: int) -> Machine:
    """So many devices like those of the run: each decodes as its generators did, and trains as its trainer did.

    Sandboxes, calls and the log cost nothing here: what they took is in the times that were recorded.
    """
    return Machine(
        gpus=devices,
        cores=10_000,
        rows_per_gpu=trace.setting.kv_slots,
        step_s=trace.token_s,
        row_s=0.0,
        train_token_gpu_s=trace.train_token_s,
        weights_s=trace.weights_s,
        move_s=0.0,
        sandbox_cpu_s=0.0,
        exec_cpu_s=0.0,
        call_cpu_s=0.0,
        event_cpu_s=0.0,
    )


def plans_of(trace: Trace, *, times: int) -> Iterator[Plan]:
    """The layouts over ``times`` as many devices and trajectories a step; the last one is the run's own."""
    setting = trace.setting
    batch, trainer = times * setting.batch, times * setting.trainer
    yield Plan("colocated", 0, batch)
    yield Plan("apart", setting.async_ratio, batch, trainer)
    yield Plan("multiplexed", setting.async_ratio, batch, trainer, hold_s=setting.hold_s)


# ---- from the log of a run ----


def trace_in(events: Sequence[dict[str, Any]], setting: Setting) -> Trace:
    """From the log of a whole run of one attempt.  Raises ValueError where it is too short to compare anything."""
    trajectories = [event["trajectory"] for event in events if event["kind"] == "trajectory"]
    played = [trajectory for trajectory in trajectories if trajectory["purpose"] == "train"]
    groups: dict[int, list[Rollout]] = {}
    for trajectory in sorted(played, key=lambda trajectory: (trajectory["prompt"], trajectory["member"])):
        groups.setdefault(trajectory["prompt"], []).append(_rollout(_turns(trajectory)))
    spans = [span for event in events if event["kind"] == "lanes" for span in event["spans"]]
    tokens = sum(rollout.tokens for rollouts in groups.values() for rollout in rollouts)
    training_s = sum(span["seconds"] for span in spans if span["lane"] == "training")
    return Trace(
        setting=setting,
        groups=[groups[prompt] for prompt in sorted(groups)],
        token_s=_token_s([_turns(trajectory) for trajectory in played]),
        train_token_s=training_s * max(1, setting.trainer) / tokens,
        weights_s=statistics.median(span["seconds"] for span in spans if span["lane"] == "weights"),
        outcome=outcome_in(events, setting),
    )


def outcome_in(events: Sequence[dict[str, Any]], setting: Setting) -> RunMeasures:
    metrics = [event["values"] for event in events if event["kind"] == "metric"]
    steps = [values for values in metrics if "perf/step_seconds" in values]
    middle = steps[setting.async_ratio + 1 : len(steps) - setting.async_ratio]
    if len(middle) < 2:
        raise ValueError(f"{len(steps)} steps: too few to compare those in the middle; record more")
    seconds = sum(values["perf/step_seconds"] for values in middle)

    def per_step(key: str) -> float:
        return sum(float(values.get(key, 0.0)) for values in middle) / len(middle)

    return RunMeasures(
        steps_per_hour=3600 * len(middle) / seconds,
        moves=per_step("multiplexing/moves"),
        moved_turns=per_step("multiplexing/moved_turns"),
        training_share=per_step("multiplexing/training_seconds") * len(middle) / seconds,
        staleness_max=int(max(values["train/staleness_max"] for values in steps)),
    )


def _turns(trajectory: dict[str, Any]) -> list[dict[str, Any]]:
    return [turn for segment in trajectory["segments"] for turn in segment["turns"]]


def _rollout(turns: Sequence[dict[str, Any]]) -> Rollout:
    return Rollout(
        read=[len(turn["context_ids"]) for turn in turns],
        sampled=[len(turn["token_ids"]) for turn in turns],
        waits_s=[round(_tool_s(turn), 4) for turn in turns],
    )


def _tool_s(turn: dict[str, Any]) -> float:
    return float(sum(call["seconds"] for call in turn["tool_calls"]))


def _token_s(rollouts: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Between the end of a turn's tool and the call of the next one's."""
    passed_s, tokens = 0.0, 0
    for turns in rollouts:
        for before, turn in zip(turns, turns[1:], strict=False):
            if before["tool_calls"] and turn["tool_calls"]:
                ended = before["tool_calls"][0]["began_at"] + _tool_s(before)
                passed_s += turn["tool_calls"][0]["began_at"] - ended
                tokens += len(turn["context_ids"]) + len(turn["token_ids"])
    if not tokens:
        raise ValueError("no rollout called a tool twice: nothing says how long a token takes")
    return passed_s / tokens
