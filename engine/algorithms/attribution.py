"""Self-attributing (ADCA): a judge's verdict on each step and the outcome, fused into step advantages.

AgentEvolver, section 5.  Everything here is about one group: G trajectories with K steps each, K differing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.algorithms.chunk_return import discounted_returns
from engine.spec.credit import AttributionScale

EPSILON = 1e-8
SAME_AVERAGE = 1e-6
"""Averages of +-1 that differ by less are equal up to rounding: two different ones are 2 / (K K') or more apart."""


def attribution_advantages(
    labels: Sequence[Tensor | None],
    steps: Sequence[int],
    outcomes_G: Tensor,
    *,
    alpha: float = 0.1,
    scale: AttributionScale = "code",
) -> list[Tensor]:
    """A_t = sum over k >= t of r_k,  r_k = alpha r_attr_k + [k = K] r_out (eq. 20, 21), per trajectory [K].

    ``labels[i]`` is +1 (GOOD) or -1 (BAD) for each of the ``steps[i]`` steps, or None where the judge
    failed; then the channel is neutral for the whole group.  Raises ValueError where a verdict does not
    cover its trajectory.  ``alpha`` 0 is the outcome alone; ``scale`` is that of ``standardised_labels``.
    """
    for verdict, count in zip(labels, steps, strict=True):
        if count == 0 or (verdict is not None and len(verdict) != count):
            raise ValueError("a trajectory has at least one step, and a verdict covers all of them")
    attributed = standardised_labels(labels, scale=scale) if alpha != 0 else None
    advantages = []
    for i, outcome in enumerate(standardised_outcomes(outcomes_G)):
        rewards_K = outcomes_G.new_zeros(steps[i]) if attributed is None else alpha * attributed[i].to(outcomes_G)
        rewards_K[-1] += outcome
        advantages.append(discounted_returns(rewards_K, gamma=1.0))
    return advantages


def standardised_labels(labels: Sequence[Tensor | None], *, scale: AttributionScale = "code") -> list[Tensor] | None:
    """r_attr = (r - mu) / sigma, mu over *trajectory averages* (eq. 18); None if neutral.

    So a long trajectory weighs no more than a short one.  ``scale`` says what sigma is:

    ``paper``  the std of the trajectory averages, plus eps (5.2).  It falls with the number of steps, about as
               1 / sqrt(K), so that labels of long trajectories become large.  Where all averages are equal it
               is 0 and the channel says nothing about which trajectory did better: neutral, not divided by eps.
    ``code``   the root of the mean over trajectories of each one's mean (r - mu)^2, plus eps, as AgentEvolver's
               public code has it: of the order of 1 whatever K is.  Neutral where all labels are equal.
    """
    known = [verdict.double() for verdict in labels if verdict is not None]
    if not known or len(known) < len(labels):
        return None
    averages_G = torch.stack([verdict.mean() for verdict in known])
    mu = averages_G.mean()
    if scale == "code":
        variance = torch.stack([(verdict - mu).square().mean() for verdict in known]).mean()
        return [(verdict - mu) / torch.sqrt(variance + EPSILON) for verdict in known]
    if averages_G.max() - averages_G.min() < SAME_AVERAGE:
        return None
    return [(verdict - mu) / (averages_G.std(unbiased=False) + EPSILON) for verdict in known]


def standardised_outcomes(outcomes_G: Tensor) -> Tensor:
    """r_out = (R - mu) / (sigma + eps) over the group (eq. 19), exactly 0 where all outcomes are equal."""
    if outcomes_G.max() == outcomes_G.min():
        return torch.zeros_like(outcomes_G)
    return (outcomes_G - outcomes_G.mean()) / (outcomes_G.std(unbiased=False) + EPSILON)
