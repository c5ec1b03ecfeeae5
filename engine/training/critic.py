"""PPO's critic: what the policy may expect to earn from here on.

A second network of the policy's shape with one number as its head.  It starts from the policy's weights at the
start of reinforcement, with a head of zeros: its first values are exactly 0.  It shares nothing with the policy,
so its updates may come before or after the policy's.  Shapes: B sequences, T tokens, N masked tokens.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.algorithms.gae import critic_loss
from engine.models.qwen3 import Qwen3
from engine.spec.credit import Gae
from engine.spec.run import RunSpec
from engine.training.batch import Sample
from engine.training.gradients import adamw, descend, divide
from engine.training.microbatch import Cut, MicroBatch

SAME_RETURN = 1e-5
"""Returns are sums of float32 differences: equal rewards give returns that differ by less than this, relatively."""


class Critic:
    def __init__(self, spec: RunSpec, credit: Gae, policy: Qwen3) -> None:
        self._spec, self._credit = spec, credit
        self._cut = Cut(spec)
        self._body = copy.deepcopy(policy)
        self._head = nn.Linear(spec.model.hidden_size, 1).to(self._cut.device)
        with torch.no_grad():
            for parameter in self._head.parameters():
                parameter.zero_()
        self._parameters = [*self._body.parameters(), *self._head.parameters()]
        self._optimizer = adamw(self._parameters)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """V before each token of the mask, given what stands before it; 0 elsewhere.

        Cut as ``update`` cuts the same samples, so that there the first values are exactly these.
        """
        answers = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
        for first, minibatch in _numbered(self._cut.minibatches(samples)):
            for batch in self._cut.microbatches(minibatch):
                for i, values_T in zip(batch.rows, self._values_BT(batch).cpu().numpy(), strict=True):
                    count = min(len(values_T), len(minibatch[i]))
                    answers[first + i][:count] = values_T[:count]
        return answers

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One pass over samples with ``values`` and ``returns``, an optimiser update per minibatch.

        Metrics: loss (mean over the updates) and explained_variance, 1 - var(return - V) / var(return) over
        all learned tokens with the values from before, 0 where all returns are equal.
        Raises NonFiniteGradient.
        """
        minibatches = [part for part in self._cut.minibatches(samples) if any(one.loss_mask.any() for one in part)]
        losses = [self._step(minibatch) for minibatch in minibatches]
        return {"loss": fmean(losses) if losses else 0.0, "explained_variance": explained_variance(samples)}

    def _step(self, samples: Sequence[Sample]) -> float:
        total, weight = 0.0, 0.0
        for batch in self._cut.microbatches(samples):
            assert batch.values_BT is not None
            assert batch.returns_BT is not None
            loss_sum, loss_weight = critic_loss(
                self._values_BT(batch), batch.values_BT, batch.returns_BT, batch.mask_BT, clip=self._credit.value_clip
            )
            loss_sum.backward()
            total, weight = total + loss_sum.item(), weight + loss_weight.item()
        divide(self._parameters, weight)
        descend(
            self._parameters,
            self._optimizer,
            learning_rate=self._credit.critic_learning_rate,
            grad_clip=self._spec.recipe.optimizer.grad_clip,
            whose="critic",
        )
        return total / weight

    def _values_BT(self, batch: MicroBatch) -> Tensor:
        hidden_BTD = self._body.hidden(batch.token_ids_BT[:, :-1])
        values_N = self._head(hidden_BTD[batch.mask_BT[:, 1:]]).squeeze(-1)
        return torch.zeros(batch.token_ids_BT.shape, device=values_N.device).masked_scatter(batch.mask_BT, values_N)

    def state(self) -> dict[str, Any]:
        return {
            "body": self._body.state_dict(),
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self._body.load_state_dict(state["body"])
        self._head.load_state_dict(state["head"])
        self._optimizer = adamw(self._parameters)
        self._optimizer.load_state_dict(state["optimizer"])


def explained_variance(samples: Sequence[Sample]) -> float:
    """1 - var(return - V) / var(return) over all learned tokens; 0 where all returns are equal up to rounding."""
    returns, values = (
        np.concatenate([_learned(sample, column) for sample in samples]).astype(np.float64)
        for column in ("returns", "values")
    )
    if not returns.size or np.ptp(returns) <= SAME_RETURN * max(1.0, np.abs(returns).max()):
        return 0.0
    return float(1 - (returns - values).var() / returns.var())


def _learned(sample: Sample, column: str) -> np.ndarray:
    learned: np.ndarray = getattr(sample, column)[sample.loss_mask]
    return learned


def with_targets(sample: Sample, values: np.ndarray, returns: np.ndarray) -> Sample:
    return replace(sample, values=values.astype(np.float32), returns=returns.astype(np.float32))


def _numbered(minibatches: Sequence[Sequence[Sample]]) -> list[tuple[int, Sequence[Sample]]]:
    """Each with the number of its first sample."""
    first, numbered = 0, []
    for minibatch in minibatches:
        numbered.append((first, minibatch))
        first += len(minibatch)
    return numbered
