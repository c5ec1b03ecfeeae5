"""What repeated tries at tasks say about success: pass@k and intervals.  Counts in, numbers out; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

Z_95 = 1.959964
"""The normal quantile of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """A share of successes with its 95 % interval."""

    rate: float
    low: float
    high: float


def pass_at_k(tries: int, successes: int, k: int) -> float:
    """The chance that one of ``k`` tries of a task succeeds, 1 - C(n - c, k) / C(n, k) (arXiv:2107.03374, eq. 1).

    Unbiased for n >= k.  Raises ValueError where there are fewer tries than ``k``.
    """
    if not 1 <= k <= tries or not 0 <= successes <= tries:
        raise ValueError(f"pass@{k} of {tries} tries with {successes} successes cannot be estimated")
    return 1.0 - comb(tries - successes, k) / comb(tries, k)


def success_rate(successes: Sequence[int], tries: Sequence[int]) -> SuccessRate:
    """All successes / all tries, with Wilson's interval at the effective number of independent tries.

    Tries of one task resemble each other.  The ratio estimator's variance over tasks says by how much:
    n_eff = p (1 - p) / var, between the number of tasks and that of all tries.  Where nothing varies at all (every try
    succeeds, or none) it is the number of tasks.  Raises ValueError without a try.
    """
    total = sum(tries)
    if total < 1:
        raise ValueError("no tries: there is no rate")
    rate = sum(successes) / total
    return SuccessRate(rate, *_wilson(rate, _effective_tries(rate, successes, tries)))


def _effective_tries(rate: float, successes: Sequence[int], tries: Sequence[int]) -> float:
    tasks, total = len(tries), sum(tries)
    if tasks == 1 or rate in (0.0, 1.0):
        return float(tasks)
    spread = sum((won - rate * tried) ** 2 for won, tried in zip(successes, tries, strict=True))
    variance = tasks / (tasks - 1) * spread / total**2
    return min(max(rate * (1 - rate) / variance, tasks), total) if variance else float(total)


def _wilson(rate: float, tries: float) -> tuple[float, float]:
    """Wilson's score interval (1927), which stays within 0 and 1 and has a width at both ends."""
    square = Z_95**2 / tries
    centre = (rate + square / 2) / (1 + square)
    half = Z_95 * sqrt(rate * (1 - rate) / tries + square / (4 * tries)) / (1 + square)
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))
