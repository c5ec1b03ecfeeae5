"""The gap between the engine that sampled a token and the one that trains on it.

Both hold the same weights, yet their kernels and precision differ.  The ratio is
exp(logp_old - logp_rollout), at one of three sizes (ratios.py); nothing here carries a gradient.
Shapes: B sequences, T tokens.
"""

from dataclasses import dataclass

from torch import Tensor

DEFAULT_MASK_BOUND = 5.0
"""H.  ALE gives no value."""
DEFAULT_WEIGHT_BOUND = 2.0


def mismatch_keep(ratio_BT: Tensor, mask_BT: Tensor, *, bound: float = DEFAULT_MASK_BOUND) -> Tensor:
    """m = [ratio <= H] on the sampled tokens, False elsewhere (ALE, eq. 4; of a chunk: eq. 7).

    It is meant as the mask of the loss, so that what is cut out counts in no mean of losses; ratios of chunks and
    sequences are of all their tokens.
    Only an excess is cut: a token that the trainer finds less likely keeps its place.
    """
    return mask_BT & (ratio_BT.detach() <= bound)


def mismatch_weights(ratio_BT: Tensor, mask_BT: Tensor, *, bound: float = DEFAULT_WEIGHT_BOUND) -> Tensor:
    """min(ratio, bound), the truncated importance weight of a token's loss; 1 outside the mask."""
    return ratio_BT.detach().clamp(max=bound).where(mask_BT, 1.0)


@dataclass(frozen=True)
class MismatchStatistics:
    """What is logged of the ratios on sampled tokens.  Parts of a batch merge into the whole with ``+``."""

    ratio_sum: float
    ratio_max: float
    masked_tokens: int
    tokens: int

    @property
    def mean(self) -> float:
        """1 where there is no token."""
        return self.ratio_sum / self.tokens if self.tokens else 1.0

    @property
    def masked_share(self) -> float:
        return self.masked_tokens / self.tokens if self.tokens else 0.0

    def __add__(self, other: "MismatchStatistics") -> "MismatchStatistics":
        return MismatchStatistics(
            self.ratio_sum + other.ratio_sum,
            max(self.ratio_max, other.ratio_max),
            self.masked_tokens + other.masked_tokens,
            self.tokens + other.tokens,
        )


def mismatch_statistics(ratio_BT: Tensor, mask_BT: Tensor, keep_BT: Tensor) -> MismatchStatistics:
    """``keep_BT`` is what ``mismatch_keep`` left, or ``mask_BT`` where nothing is cut."""
    ratios = ratio_BT.detach()[mask_BT].double()
    return MismatchStatistics(
        ratio_sum=ratios.sum().item(),
        ratio_max=ratios.max().item() if ratios.numel() else 0.0,
        masked_tokens=int((mask_BT & ~keep_BT).sum()),
        tokens=ratios.numel(),
    )


def corrected(losses_BT: Tensor, weights_BT: Tensor | None) -> Tensor:
    """Token losses times their importance weights; the very tensor where the switch is off."""
    return losses_BT if weights_BT is None else losses_BT * weights_BT
