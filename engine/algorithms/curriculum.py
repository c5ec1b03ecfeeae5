"""Weights that change over the training steps.  Plain numbers: no torch."""

import math


def tool_call_weight(step: int, decay_steps: int) -> float:
    """mu = (cos(pi t / T_decay) + 1) / 2 until T_decay, then 0 (SPEAR, eq. 14).  0 steps: always 0."""
    return (math.cos(math.pi * step / decay_steps) + 1) / 2 if step < decay_steps else 0.0


def self_imitation_weight(step: int, warmup_steps: int) -> float:
    """gamma = (1 - cos(pi t / T_warmup)) / 2 until T_warmup, then 1 (SPEAR, eq. 13).  0 steps: always 1."""
    return (1 - math.cos(math.pi * step / warmup_steps)) / 2 if step < warmup_steps else 1.0


def attribution_weight(step: int, decay_steps: int | None, *, alpha: float = 0.1) -> float:
    """AgentEvolver's alpha, constant by default, or falling to 0 over ``decay_steps`` on half a cosine.

    The paper (5.3) suggests a decrease and gives no form.
    """
    return alpha if decay_steps is None else alpha * tool_call_weight(step, decay_steps)


def linear_weight(step: int, first_step: int, last_step: int, *, first_weight: float, last_weight: float) -> float:
    """From one weight to another on a straight line between two steps, constant before and behind."""
    if step >= last_step:
        return last_weight
    share = (step - first_step) / (last_step - first_step) if step > first_step else 0.0
    return first_weight + share * (last_weight - first_weight)
