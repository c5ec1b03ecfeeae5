"""One token per row from logits and uniforms.  Shapes: S rows, V vocabulary."""

import numpy as np
import torch
from torch import Tensor


def turn_uniforms(seed: int, count: int) -> np.ndarray:
    """The draws in [0, 1) of one turn: number n belongs to its n-th token, whatever happens around it."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


NOT_FORCED = -1


def sample(
    logits_SV: Tensor, temperature_S: Tensor, uniform_S: Tensor, forced_S: Tensor, logprob_temperature_S: Tensor
) -> tuple[Tensor, Tensor]:
    """Token ids [S] and their log-probs [S], of softmax(logits / ``logprob_temperature_S``).

    A temperature of 0 takes the likeliest token.  Otherwise the token is where the cumulative
    softmax(logits / temperature) first exceeds the uniform: a token of probability 0 is never drawn.
    Where ``forced_S`` is a token, that one is taken.
    """
    greedy_S = temperature_S == 0
    probs_SV = torch.softmax(logits_SV / torch.where(greedy_S, 1.0, temperature_S).unsqueeze(1), dim=-1)
    cumulative_SV = probs_SV.double().cumsum(-1)
    # u < 1 in float64 keeps u * total below total, so the search always ends at a token.
    threshold_S1 = (uniform_S * cumulative_SV[:, -1]).unsqueeze(1)
    drawn_S = torch.searchsorted(cumulative_SV, threshold_S1, right=True).squeeze(1)
    token_S = torch.where(greedy_S, logits_SV.argmax(-1), drawn_S)
    token_S = torch.where(forced_S == NOT_FORCED, token_S, forced_S)
    logp_SV = torch.log_softmax(logits_SV / logprob_temperature_S.unsqueeze(1), dim=-1)
    logprob_S = logp_SV.gather(1, token_S.unsqueeze(1)).squeeze(1)
    return token_S, logprob_S
