"""How a total reward of another library is paid."""

import math

from palestra_env import Rewards, VerifierFailed

COMPONENT = "environment"


def rewards_of(total: float, success_at: float) -> Rewards:
    """Success from ``success_at`` on; success and the component together are the total, to the rounding of a sum.

    Raises VerifierFailed for a total that is no finite number.
    """
    if not math.isfinite(total):
        raise VerifierFailed(f"the reward is {total}")
    success = total >= success_at
    return Rewards(success, {COMPONENT: total - success})
