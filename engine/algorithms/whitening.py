"""Advantages at mean 0 and variance 1, whatever their shape."""

from torch import Tensor

STD_FLOOR = 1e-6


def whitened(values: Tensor, weights: Tensor, *, unbiased_std: bool = False) -> Tensor:
    """(x - mean) / (std + eps) with ``weights`` (a mask, or counts) in both; 0 where the weight is 0.

    ``unbiased_std`` divides the variance by the sum of the weights - 1, as verl does.
    """
    values, weights = values.where(weights > 0, 0.0), weights.to(values.dtype)
    weight = weights.sum().clamp(min=1)
    centered = values - (weights * values).sum() / weight
    freedom = (weight - 1).clamp(min=1) if unbiased_std else weight
    std = ((weights * centered.square()).sum() / freedom).sqrt()
    return (centered / (std + STD_FLOOR)).where(weights > 0, 0.0)
