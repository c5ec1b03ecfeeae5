"""Which groups are worth an update.  Plain numbers: no torch, which the process of the loop does not load.

A filter answers for whole groups; it changes no reward and no statistic.
"""

import math
from collections.abc import Sequence
from statistics import pvariance


def is_informative(successes: int, rollouts: int) -> bool:
    """Return whether 0 < accuracy < 1 in a group (DAPO's dynamic sampling, arXiv:2503.14476, eq. 11).

    The same predicate over the rollouts of one task is CLEANER's difficulty filter: drop 0 and 8 of 8.
    """
    return 0 < successes < rollouts


def highest_variance_groups(rewards: Sequence[Sequence[float]], *, keep: float = 0.75) -> list[bool]:
    """For each group's rewards whether it stays: all but the floor((1 - keep) P) groups whose rewards vary least.

    Of equal groups the earlier stay (Dr.BoT; SPEAR, A.8).  ``keep`` 1 keeps everything, also groups that teach nothing.
    """
    # 1e-9: (1 - 0.9) * 10 is 0.999... in floating point and means 1.
    dropped = math.floor((1 - keep) * len(rewards) + 1e-9)
    # In exact fractions: rounding must not rank groups of equal rewards, or the same rewards in another order.
    variances = [pvariance(group) for group in rewards]
    by_variance = sorted(range(len(rewards)), key=lambda group: -variances[group])
    kept = set(by_variance[: len(rewards) - dropped])
    return [group in kept for group in range(len(rewards))]
