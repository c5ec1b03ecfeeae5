"""Rotary position embeddings (arXiv:2104.09864), plain and scaled to longer contexts than a model was first trained on.

The arithmetic follows transformers 5.23 in its order, so that angles agree to the last bit.  Frequencies that depend on
how long the sequence has become (``dynamic``, ``longrope``) are not here: a cached key would have to turn again.

Shapes: W positions, E head dim.
"""

import math

import torch
from torch import Tensor

from engine.models.architecture import LinearScaling, Llama3Scaling, Rope, YarnScaling


def rotary_tables(positions: int, head_dim: int, rope: Rope | None = None) -> tuple[Tensor, Tensor]:
    """cos and sin [W, E], float32; dimension i turns together with i + E/2."""
    turns, attention_factor = frequencies(rope or Rope(), head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), turns)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * attention_factor, angles.sin() * attention_factor


def frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Radians per position [E / 2], and the factor of cos and sin."""
    # Divided, not raised to a negative power: the last bit then agrees with transformers also at far positions.
    wavelengths = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match rope.scaling:
        case None:
            return 1.0 / wavelengths, 1.0
        case LinearScaling(factor):
            return 1.0 / wavelengths / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(1.0 / wavelengths, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(wavelengths, scaling, rope.theta), _yarn_attention_factor(scaling)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    longest = scaling.original_positions / scaling.low_freq_factor
    shortest = scaling.original_positions / scaling.high_freq_factor
    kept = (scaling.original_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    mixed = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    scaled = torch.where(wavelengths > longest, frequencies / scaling.factor, mixed)
    return torch.where(wavelengths < shortest, frequencies, scaled)


def _yarn(wavelengths: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    pairs = wavelengths.numel()
    first, last = (
        _yarn_dimension(turns, scaling, theta, 2 * pairs) for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.whole_dimensions:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    if first == last:
        last += 0.001
    ramp = torch.clamp((torch.arange(pairs, dtype=torch.float32) - first) / (last - first), 0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def _yarn_dimension(turns: float, scaling: YarnScaling, theta: float, head_dim: int) -> float:
    """The dimension that turns so often over the original positions."""
    return head_dim * math.log(scaling.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _yarn_attention_factor(scaling: YarnScaling) -> float:
    def warmth(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return warmth(scaling.mscale) / warmth(scaling.mscale_all_dim)
    return warmth(1.0)
