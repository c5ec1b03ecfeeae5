"""SPEAR's self-imitation over the steps of a run: what is kept, and when it is learned again.

SPEAR, section 4.2 and algorithm 1.  The buffers are in algorithms/replay.py, the loss in
loss_terms/replay.py.  As in algorithm 1 a step first looks whether the buffer is full from the steps
before: if it is, everything in it is replayed and it is emptied; if it is not, the step's own good trajectories
are added.  So nothing is replayed in the step that sampled it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch

from engine.algorithms.curriculum import self_imitation_weight
from engine.algorithms.replay import BaselineBuffer, ReplayBuffer, Replayed, recalibrated
from engine.spec.self_imitation import SelfImitation
from engine.training.batch import Sample

T = TypeVar("T")
_COLUMNS = ("token_ids", "loss_mask", "old_logprobs")


@dataclass(frozen=True)
class Replay:
    """What one step learns again: samples with their *stored* log-probs and A~ as advantages."""

    samples: Sequence[Sample] = ()
    strength: float = 0.0
    """gamma_t."""
    mode: Literal["sum", "after"] = "sum"

    @property
    def active(self) -> bool:
        return self.strength > 0 and len(self.samples) > 0


NO_REPLAY = Replay()


def evenly(entries: Sequence[T], parts: int) -> list[Sequence[T]]:
    """In their order, in parts that differ by one entry at most; some are empty where there are too few."""
    edges = [len(entries) * part // parts for part in range(parts + 1)]
    return [entries[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


class Sampled(Protocol):
    """What a buffer has to know of a rollout besides its samples."""

    @property
    def step(self) -> int:
        """The step from which its age is counted."""
        ...

    @property
    def reward(self) -> float: ...


class SelfImitator:
    def __init__(self, spec: SelfImitation) -> None:
        self._spec = spec
        self._baselines = BaselineBuffer(spec.baseline_buffer)
        self._good: ReplayBuffer[Sequence[Sample]] = ReplayBuffer(spec.replay_buffer, max_age_steps=spec.max_age_steps)

    def next_replay(
        self,
        group_means: Sequence[float],
        rollouts: Sequence[Sampled],
        samples: Sequence[Sequence[Sample]],
        *,
        step: int,
    ) -> tuple[Replay, dict[str, float]]:
        """Take in what a step has sampled and say what it replays, with the metrics.  Once per step.

        ``group_means`` are the mean rewards of the step's groups (algorithm 1, line 19).  ``rollouts`` are theirs, then
        those of earlier steps that came out of quarantine: these may be replayed too, but the mean of their group has
        been taken in already.  ``samples`` are those of each rollout, with advantages and behaviour log-probs.

        Metrics: replayed (trajectories), baseline (P50, 0 while there is none), weight (gamma_t), buffer (trajectories
        kept after the step), expired (those that became too old before there were enough to replay).
        """
        self._baselines.push(group_means)
        baseline = self._baselines.median()
        before = len(self._good)
        self._good.let_go(step=step)  # steps may have passed in which nothing was learned and nobody asked
        expired = before - len(self._good)
        if self._good.full:
            good = recalibrated(self._good.take(), baseline)
            replayed = [_replayable(sample, advantage) for entry, advantage in good for sample in entry.payload]
        else:
            replayed = []
            self._good.push(_good_ones(rollouts, samples), step=step)
        strength = self_imitation_weight(step, self._spec.warmup_steps)
        metrics = {
            "replayed": float(sum(sample.opens for sample in replayed)),
            "baseline": 0.0 if baseline is None else baseline,
            "weight": strength,
            "buffer": float(len(self._good)),
            "expired": float(expired),
        }
        return Replay(replayed, strength, self._spec.mode), metrics

    def state(self) -> dict[str, Any]:
        """Tensors and plain values, as ``torch.load`` takes them with ``weights_only``."""
        entries = self._good.state()
        return {
            "baselines": self._baselines.state(),
            "entries": [entry | {"payload": [_stored(sample) for sample in entry["payload"]]} for entry in entries],
        }

    def load(self, state: dict[str, Any]) -> None:
        self._baselines.load(state["baselines"])
        self._good.load([entry | {"payload": _payload(entry["payload"])} for entry in state["entries"]])


def _good_ones(rollouts: Sequence[Sampled], samples: Sequence[Sequence[Sample]]) -> list[Replayed[Sequence[Sample]]]:
    """Those that are trained on.  A rollout whose tokens have several advantages counts with their mean."""
    return [
        Replayed(
            payload=of_rollout,
            reward=rollout.reward,
            advantage=_mean_advantage(of_rollout),
            step=rollout.step,
        )
        for rollout, of_rollout in zip(rollouts, samples, strict=True)
        if any(sample.loss_mask.any() for sample in of_rollout)
    ]


def _mean_advantage(samples: Sequence[Sample]) -> float:
    """Over the policy's tokens in all segments."""
    return float(np.concatenate([sample.advantages[sample.loss_mask] for sample in samples]).mean(dtype=np.float64))


def _replayable(sample: Sample, advantage: float) -> Sample:
    """Nothing is known of it but its tokens, their log-probs and A~."""
    bare = replace(sample, expert=None, boosted=None, kept=None, penalised=None, values=None, returns=None)
    return replace(bare, advantages=np.where(sample.loss_mask, np.float32(advantage), np.float32(0.0)))


def _stored(sample: Sample) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(getattr(sample, name)) for name in _COLUMNS}


def _payload(stored: list[dict[str, torch.Tensor]] | dict[str, torch.Tensor]) -> list[Sample]:
    """The samples of a trajectory, of which version 0.2 kept one."""
    columns = [stored] if isinstance(stored, dict) else stored
    return [replace(_restored(one), opens=number == 0) for number, one in enumerate(columns)]


def _restored(columns: dict[str, torch.Tensor]) -> Sample:
    token_ids, loss_mask, old_logprobs = (columns[name].cpu().numpy() for name in _COLUMNS)
    nothing = np.zeros(len(token_ids), dtype=np.float32)
    return Sample(token_ids, loss_mask, advantages=nothing, rollout_logprobs=nothing, old_logprobs=old_logprobs)
