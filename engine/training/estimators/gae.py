"""Generalised advantage estimation, token by token."""

import numpy as np
import torch

from engine.algorithms.gae import generalised_advantages
from engine.spec.credit import Gae


def generalised(
    credit: Gae, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns [T] of one rollout."""
    rewards_1T, values_1T, mask_1T = (torch.from_numpy(column)[None] for column in (rewards, values, mask))
    advantages_1T, returns_1T = generalised_advantages(
        rewards_1T, values_1T, mask_1T, gamma=credit.gamma, lam=credit.lam
    )
    return advantages_1T[0].numpy(), returns_1T[0].numpy()
