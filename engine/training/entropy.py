"""Which tokens of an update lose their loss, or are penalised, because they would collapse entropy.

Chosen on the whole batch of an update and before it is cut into micro-batches, with the log-probs from before
the update; the maths and its references are in algorithms/covariance.py.  Which tokens are drawn depends on the
run's seed and the number of the update alone, so a resumed run draws the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.algorithms.covariance import (
    CovarianceBounds,
    covariance_bounds,
    covariance_keep,
    highest_covariances,
    token_covariances,
)
from engine.spec.objective import CovarianceClip, CovarianceKl
from engine.training.batch import Sample

Logprobs = Sequence[Sequence[float] | np.ndarray]


class EntropyKeeper:
    """Clip-Cov or KL-Cov of one recipe; with a share of 0, or without one, it hands samples back as they are.

    ``stream`` keeps the draws of two keepers of one run apart.
    """

    def __init__(self, covariance: CovarianceClip | CovarianceKl | None, *, seed: int, stream: int = 0) -> None:
        self._spec = covariance if covariance is not None and covariance.share > 0 else None
        self._key = [seed, stream]
        self._bounds: CovarianceBounds | None = None
        if isinstance(self._spec, CovarianceClip) and self._spec.low is not None and self._spec.high is not None:
            self._bounds = CovarianceBounds(self._spec.low, self._spec.high)

    @property
    def chooses(self) -> bool:
        """Return whether ``measure`` and ``chosen`` read the log-probs that they are given."""
        return self._spec is not None

    def measure(self, samples: Sequence[Sample], logprobs: Logprobs) -> None:
        """Set bounds that the recipe leaves open, once: on the first samples whose covariances differ."""
        if self._bounds is not None or not isinstance(self._spec, CovarianceClip):
            return
        batch = _covariances(samples, logprobs)
        if batch is None:
            return
        bounds = covariance_bounds(*batch, low_share=self._spec.low_share, high_share=self._spec.high_share)
        if bounds.low < bounds.high:
            self._bounds = bounds

    def chosen(self, samples: Sequence[Sample], logprobs: Logprobs, *, update: int) -> Sequence[Sample]:
        """The samples of one update with their column ``kept`` or ``penalised``.

        KL-Cov has no clip, also where nothing is penalised because no advantage differs from another.
        """
        batch = _covariances(samples, logprobs) if self._spec is not None else None
        if batch is None and isinstance(self._spec, CovarianceKl):
            return [replace(sample, penalised=np.zeros(len(sample), dtype=np.bool_)) for sample in samples]
        if self._spec is None or batch is None:
            return samples
        if isinstance(self._spec, CovarianceKl):
            column, chosen_BT = "penalised", highest_covariances(*batch, share=self._spec.share)
        elif self._bounds is not None:
            generator = torch.Generator().manual_seed(self._draw_seed(update))
            column = "kept"
            chosen_BT = covariance_keep(*batch, self._bounds, generator, clip_share=self._spec.share)
        else:
            return samples
        return [
            replace(sample, **{column: row[: len(sample)].copy()})
            for sample, row in zip(samples, chosen_BT.numpy(), strict=True)
        ]

    def state(self) -> dict[str, float] | None:
        return None if self._bounds is None else {"low": self._bounds.low, "high": self._bounds.high}

    def load(self, state: dict[str, Any] | None) -> None:
        self._bounds = None if state is None else CovarianceBounds(**state)

    def _draw_seed(self, update: int) -> int:
        return int(np.random.Philox(key=self._key, counter=[0, 0, 0, update]).random_raw())


def _covariances(samples: Sequence[Sample], logprobs: Logprobs) -> tuple[Tensor, Tensor] | None:
    """Covariances and mask [B, T]; None where no advantage differs from another.

    Then all covariances are 0, and only rounding would decide which of them are the highest.
    """
    longest = max((len(sample) for sample in samples), default=0)
    logp_BT = np.zeros((len(samples), longest), dtype=np.float32)
    advantages_BT = np.zeros_like(logp_BT)
    mask_BT = np.zeros_like(logp_BT, dtype=np.bool_)
    for row, (sample, values) in enumerate(zip(samples, logprobs, strict=True)):
        logp_BT[row, : len(sample)] = values
        advantages_BT[row, : len(sample)] = sample.advantages
        mask_BT[row, : len(sample)] = sample.loss_mask
    learned = advantages_BT[mask_BT]
    if not learned.size or learned.min() == learned.max():
        return None
    logp, advantages, mask = map(torch.from_numpy, (logp_BT, advantages_BT, mask_BT))
    return token_covariances(logp, advantages, mask), mask
