"""Pairs for DPO: a corrected tool call, and the failed one that it replaced.

CLEANER, appendix C: where SAAR repaired a turn, what it grafted is preferred to what it removed, after the same
context.  Shapes: N pairs, B = 2 N sequences (first all chosen, then all rejected), T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.algorithms.preference import dpo_loss
from engine.models.tokenizer import default_tokenizer
from engine.spec.trajectory import Trajectory, Turn
from engine.training import microbatch
from engine.training.batch import Sample, sample_of
from engine.training.microbatch import Cut, MicroBatch, padded

_CALL_OPENS = default_tokenizer().tool_open
"""The same in every vocabulary: marks come first."""


@dataclass(frozen=True)
class Pair:
    """Two samples that begin alike; the mask of each holds its own tool call only."""

    chosen: Sample
    rejected: Sample

    @property
    def length(self) -> int:
        return max(len(self.chosen), len(self.rejected))


def pairs_of(trajectories: Sequence[Trajectory]) -> list[Pair]:
    """One pair per repair, in the order of the trajectories.  A repair without two sides is none."""
    return [pair for trajectory in trajectories if trajectory.masked_because is None for pair in _pairs_in(trajectory)]


def _pairs_in(trajectory: Trajectory) -> list[Pair]:
    pairs = []
    for change in trajectory.changes:
        if change.kind != "purified" or change.start >= change.stop or not change.removed_ids:
            continue
        turn = trajectory.turns[change.turn]
        before = [token for earlier in trajectory.turns[: change.turn] for token in _tokens(earlier)]
        before += [*turn.context_ids, *turn.token_ids[: change.start]]
        chosen = turn.token_ids[change.start : change.stop]
        pairs.append(Pair(_ending(before, chosen), _ending(before, change.removed_ids)))
    return pairs


def _tokens(turn: Turn) -> list[int]:
    return [*turn.context_ids, *turn.token_ids]


def _ending(before: list[int], end: Sequence[int]) -> Sample:
    """The loss falls on the tool call alone; the reasoning before it in a deep repair only conditions it (app. C)."""
    reasoning = end.index(_CALL_OPENS) if _CALL_OPENS in end else 0
    return sample_of([*before, *end], [False] * (len(before) + reasoning) + [True] * (len(end) - reasoning))


def pair_batches(pairs: Sequence[Pair], cut: Cut) -> list[MicroBatch]:
    """Pairs by length (ties in their given order), both sides of a pair in the same micro-batch."""
    cut.check_length(max((pair.length for pair in pairs), default=0))
    batches: list[list[Pair]] = []
    for pair in sorted(pairs, key=lambda pair: pair.length):
        if batches and 2 * (len(batches[-1]) + 1) * pair.length <= microbatch.MICROBATCH_TOKENS:
            batches[-1].append(pair)
        else:
            batches.append([pair])
    return [_batch(batch, cut.device) for batch in batches]


def _batch(pairs: Sequence[Pair], device: torch.device) -> MicroBatch:
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    return padded(list(range(len(samples))), samples, pairs[-1].length, device)


class PreferenceMetrics:
    """Over all pairs of a step, each with the policy from before its update."""

    def __init__(self) -> None:
        self._right, self._margin, self._pairs = 0, 0.0, 0

    def add(self, margin_N: Tensor) -> None:
        self._right += int((margin_N > 0).sum())
        self._margin += margin_N.double().sum().item()
        self._pairs += len(margin_N)

    def values(self) -> dict[str, float]:
        """``margin`` is the mean of beta (d_chosen - d_rejected), ``accuracy`` the share where it is positive."""
        pairs = max(1, self._pairs)
        return {
            "dpo/pairs": float(self._pairs),
            "dpo/accuracy": self._right / pairs,
            "dpo/margin": self._margin / pairs,
        }


def preference_loss(
    logp_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, *, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``dpo_loss`` of a micro-batch of pairs: its sum, its weight, and each pair's margin [N] without gradient."""
    pairs = len(logp_BT) // 2
    chosen, rejected = slice(0, pairs), slice(pairs, None)
    loss_sum, weight = dpo_loss(
        logp_BT[chosen], reference_BT[chosen], mask_BT[chosen],
        logp_BT[rejected], reference_BT[rejected], mask_BT[rejected],
        beta=beta,
    )  # fmt: skip
    gain_B = (logp_BT.detach() - reference_BT).where(mask_BT, 0.0).sum(1)
    return loss_sum, weight, beta * (gain_B[chosen] - gain_B[rejected])
