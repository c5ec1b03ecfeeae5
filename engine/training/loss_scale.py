"""Gradients through float16: the loss is scaled up, so that small ones do not vanish, and the gradient back down.

A scale at which the gradient overflows is halved and the batch computed again, so that no update is left out
(Micikevicius et al., arXiv:1710.03740, leave it out).  After ``GROWTH_INTERVAL`` batches in a row it doubles.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from engine.training.backends.sharding import ALONE, Rank, all_finite

T = TypeVar("T")

FIRST_SCALE = 2.0**16
HIGHEST_SCALE = 2.0**24
GROWTH_INTERVAL = 500


class LossScale:
    """One scale for all ranks: a gradient that overflows on one of them is computed again on each."""

    def __init__(self, rank: Rank = ALONE) -> None:
        self._rank = rank
        self.scale = FIRST_SCALE
        self._good = 0

    def accumulated(self, parameters: Sequence[nn.Parameter], backward: Callable[[float], T]) -> T:
        """Return what ``backward`` answers, which adds the gradient of the loss times its argument to the parameters'.

        The gradient of the loss itself is added to what stood there before.  With a scale of 1 it may stay infinite,
        which the step of the optimiser refuses.
        """
        before = [parameter.grad for parameter in parameters]
        while True:
            for parameter in parameters:
                parameter.grad = None
            answer = backward(self.scale)
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if self.scale <= 1 or all_finite(self._rank, gradients):
                break
            self.scale, self._good = self.scale / 2, 0
        for gradient in gradients:
            gradient.div_(self.scale)
        for parameter, earlier in zip(parameters, before, strict=True):
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)
        self._good += 1
        if self._good >= GROWTH_INTERVAL:
            self.scale, self._good = min(self.scale * 2, HIGHEST_SCALE), 0
        return answer

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self._good}

    def load(self, state: dict[str, Any]) -> None:
        self.scale, self._good = state["scale"], state["good"]
