"""What single tool calls earned, in the chunk that made them: intrinsic rewards for chunk returns.  No torch."""

from collections.abc import Sequence

ENOUGH_TOOL_CALLS = 10
"""Successful calls beyond these are not paid: min(1, 0.1 n) (SPEAR, eq. 16)."""


def call_rewards(
    worked_K: Sequence[int], failed_K: Sequence[int], *, for_calls: float, for_errors: float
) -> list[float]:
    """r_k of each chunk k of K, which made ``worked_K[k]`` calls that worked and ``failed_K[k]`` that failed.

    ``for_calls`` is what the first ENOUGH_TOOL_CALLS calls that worked earned together (SPEAR, eq. 16), and each of
    them has an equal part of it; ``for_errors`` is shared by all that failed.  So the r_k add up to what was earned.
    """
    paid_K = _paid(worked_K)
    calls, errors = sum(paid_K), sum(failed_K)
    per_call, per_error = for_calls / calls if calls else 0.0, for_errors / errors if errors else 0.0
    return [per_call * paid + per_error * failed for paid, failed in zip(paid_K, failed_K, strict=True)]


def _paid(worked_K: Sequence[int]) -> list[int]:
    """How many calls are paid, by chunk: of those that worked, the ones among the first ENOUGH_TOOL_CALLS."""
    paid_K, left = list[int](), ENOUGH_TOOL_CALLS
    for worked in worked_K:
        paid_K.append(min(worked, left))
        left -= paid_K[-1]
    return paid_K
