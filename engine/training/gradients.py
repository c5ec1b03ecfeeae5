"""From a summed gradient to a step of the optimiser, the same for policy and critic."""

from collections.abc import Sequence

import torch
from torch import nn

from engine.failures import NonFiniteGradient
from engine.models.shards import whole
from engine.training.adamw import AdamW


def divide(parameters: Sequence[nn.Parameter], weight: float) -> None:
    """Turn the gradient of a sum into that of a mean."""
    for parameter in parameters:
        if parameter.grad is not None:  # an expert that no token was routed to has none
            parameter.grad.div_(weight)


def descend(
    parameters: Sequence[nn.Parameter],
    optimizer: AdamW,
    *,
    learning_rate: float,
    grad_clip: float,
    whose: str = "policy",
) -> float:
    """Clip the gradient, step, and forget it; the norm before clipping.

    Of sharded parameters the norm is that of all ranks' parts together, the same number on each.
    Raises NonFiniteGradient, with the weights and the optimiser as they were.
    """
    grad_norm = whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if not torch.isfinite(grad_norm):
        optimizer.zero_grad()
        raise NonFiniteGradient(f"the gradient of the {whose} has the norm {grad_norm.item()}")
    nn.utils.clip_grads_with_norm_(parameters, grad_clip, grad_norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad()
    return grad_norm.item()
