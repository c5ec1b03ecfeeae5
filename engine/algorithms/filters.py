"""Which groups are worth an update.  Shapes: P prompts, G rollouts per prompt.

A filter answers for whole groups; it changes no reward and no statistic.
"""

import math
from statistics import pvariance
from typing import Literal

import torch
from torch import Tensor


def informative_groups(successes_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """[P] bool: 0 < accuracy < 1 (DAPO's dynamic sampling, arXiv:2503.14476, eq. 11).

    The same predicate over the rollouts of one task is CLEANER's difficulty filter: drop 0 and 8 of 8.
    """
    valid_PG = torch.ones_like(successes_PG, dtype=torch.bool) if valid_PG is None else valid_PG
    solved_P = (successes_PG.bool() & valid_PG).sum(1)
    return (solved_P > 0) & (solved_P < valid_PG.sum(1))


def sampling_verdict(
    informative: int, *, wanted: int, rounds: int, max_rounds: int
) -> Literal["enough", "again", "give-up"]:
    """Whether dynamic sampling has its batch after ``rounds`` rounds, tries another, or makes do with what it has."""
    if informative >= wanted:
        return "enough"
    return "again" if rounds < max_rounds else "give-up"


def highest_variance_groups(rewards_PG: Tensor, valid_PG: Tensor | None = None, *, keep: float = 0.75) -> Tensor:
    """[P] bool: all but the floor((1 - keep) P) groups whose rewards vary least (Dr.BoT; SPEAR, A.8).

    Of equal groups the earlier stay.  ``keep`` 1 keeps everything, also groups that teach nothing.
    """
    valid_PG = torch.ones_like(rewards_PG, dtype=torch.bool) if valid_PG is None else valid_PG
    # In exact fractions: rounding must not rank groups of equal rewards, or the same rewards in another order.
    members = [rewards_G[valid_G].tolist() for rewards_G, valid_G in zip(rewards_PG, valid_PG, strict=True)]
    variances = [pvariance(rewards) if rewards else 0.0 for rewards in members]
    groups = len(rewards_PG)
    # 1e-9: (1 - 0.9) * 10 is 0.999... in floating point and means 1.
    dropped = math.floor((1 - keep) * groups + 1e-9)
    by_variance = sorted(range(groups), key=lambda group: -variances[group])
    kept_P = torch.zeros(groups, dtype=torch.bool, device=rewards_PG.device)
    kept_P[by_variance[: groups - dropped]] = True
    return kept_P
