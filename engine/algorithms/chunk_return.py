"""Returns of steps and chunks, discounted once per interaction and never per token.  Shape: K chunks."""

import torch
from torch import Tensor


def discounted_returns(rewards_K: Tensor, *, gamma: float) -> Tensor:
    """G_k = r_k + gamma G_{k+1}."""
    returns_K = rewards_K.clone()
    for k in reversed(range(len(rewards_K) - 1)):
        returns_K[k] += gamma * returns_K[k + 1]
    return returns_K


def chunk_returns(final_reward: float, chunks: int, *, gamma: float, intrinsic_K: Tensor | None = None) -> Tensor:
    """G_k = gamma^(K - k) R_final, shared by all tokens of chunk k (IPA; ALE, eq. 5).

    The paper leaves j of its Delta(j, k) open; here it is the last chunk, which earned the reward.
    ``intrinsic_K`` adds a reward to each chunk: G_k = r_k + gamma G_{k+1}.
    """
    rewards_K = torch.zeros(chunks) if intrinsic_K is None else intrinsic_K.clone()
    if chunks:
        rewards_K[-1] += final_reward
    return discounted_returns(rewards_K, gamma=gamma)
