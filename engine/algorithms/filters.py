"""Which groups are worth an update.  Shapes: P prompts, G rollouts per prompt.

A filter answers for whole groups; it changes no reward and no statistic.
"""

import math
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
    count_P1 = valid_PG.sum(1, keepdim=True).clamp(min=1)
    mean_P1 = rewards_PG.where(valid_PG, 0.0).sum(1, keepdim=True) / count_P1
    variance_P = ((rewards_PG - mean_P1).where(valid_PG, 0.0).square() / count_P1).sum(1)
    groups = len(rewards_PG)
    # 1e-9: (1 - 0.9) * 10 is 0.999... in floating point and means 1.
    dropped = math.floor((1 - keep) * groups + 1e-9)
    by_variance = variance_P.argsort(descending=True, stable=True)
    kept_P = torch.zeros(groups, dtype=torch.bool, device=rewards_PG.device)
    kept_P[by_variance[: groups - dropped]] = True
    return kept_P
