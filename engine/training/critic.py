"""PPO's critic: what the policy may expect to earn from here on.

A second network of the policy's shape with one number as its head, which the trainer backend makes and holds.  It
starts from the policy's weights at the start of reinforcement and shares nothing with the policy afterwards, so its
updates may come before or after the policy's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from engine.spec.estimator import CriticEstimator
from engine.spec.recipe import Recipe
from engine.training.backends.interface import ValueNetwork
from engine.training.batch import Sample
from engine.training.loss_terms.value import ValueLoss
from engine.training.microbatch import minibatches

SAME_RETURN = 1e-5
"""Returns are sums of float32 differences: equal rewards give returns that differ by less than this, relatively."""


class Critic:
    """``make_network`` is asked once, for the first values: before the policy's first update in a run."""

    def __init__(
        self, credit: CriticEstimator, make_network: Callable[[], ValueNetwork], *, minibatch: int, grad_clip: float
    ) -> None:
        """``minibatch`` is in trajectories."""
        self.credit = credit
        self._minibatch = minibatch
        self._learning_rate, self._grad_clip = credit.critic_learning_rate, grad_clip
        self._loss = ValueLoss(credit.value_clip)
        self._make_network = make_network
        self._made: ValueNetwork | None = None

    @property
    def _network(self) -> ValueNetwork:
        if self._made is None:
            self._made = self._make_network()
        return self._made

    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """V before each token of the mask, given what stands before it; 0 elsewhere.

        Cut as ``update`` cuts the same samples, so that there the first values are exactly these.
        """
        return [row for part in minibatches(samples, self._minibatch) for row in self._network.values(part)]

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One pass over samples with ``values`` and ``returns``, an optimiser update per minibatch.

        Metrics: loss (mean over the updates) and explained_variance, 1 - var(return - V) / var(return) over
        all learned tokens with the values from before, 0 where all returns are equal.
        Raises NonFiniteGradient.
        """
        learned = [part for part in minibatches(samples, self._minibatch) if any(s.loss_mask.any() for s in part)]
        losses = [self._step(part) for part in learned]
        return {"loss": fmean(losses) if losses else 0.0, "explained_variance": explained_variance(samples)}

    def _step(self, samples: Sequence[Sample]) -> float:
        loss = self._network.forward_backward(samples, [self._loss])
        self._network.step(learning_rate=self._learning_rate, grad_clip=self._grad_clip)
        return loss.mean

    def state(self) -> dict[str, Any] | None:
        """Return the state, None while nobody has asked for values."""
        return None if self._made is None else self._made.state()

    def load(self, state: dict[str, Any] | None) -> None:
        """Take over what ``state`` gave; without one, begin again from the policy's weights when values are asked."""
        self._made = None
        if state is not None:
            self._network.load_state(state)


def critic_for(recipe: Recipe, make_network: Callable[[], ValueNetwork], *, minibatch: int) -> Critic | None:
    """The critic of a run; None where its credit asks none."""
    if not isinstance(recipe.credit, CriticEstimator):
        return None
    return Critic(recipe.credit, make_network, minibatch=minibatch, grad_clip=recipe.optimizer.grad_clip)


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
    """The sample with what the critic said of it and what it should have said."""
    return replace(sample, values=values.astype(np.float32), returns=returns.astype(np.float32))
