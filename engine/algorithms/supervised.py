"""Supervised fine-tuning on recorded trajectories.  Shapes: B sequences, T tokens, K turns.

Which turns are learned is decided in turn_masks.py.
"""

from torch import Tensor

from engine.algorithms.chunks import over_tokens


def masked_likelihood_loss(logp_BT: Tensor, turn_BT: Tensor, learned_BK: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of -sum_k m_k log pi(c_k | s_k) / sum_k m_k |c_k| (ALE, eq. 1).

    ``turn_BT`` holds the number of the turn that wrote a token, -1 on given tokens; ``learned_BK`` is m_k,
    all turns by default.  The paper's epsilon keeps a batch without a learned turn from dividing by 0; here
    its sum and weight are both exactly 0 and the caller divides by max(weight, 1).
    """
    mask_BT = turn_BT >= 0
    if learned_BK is not None:
        mask_BT = over_tokens(learned_BK.long(), turn_BT) > 0
    return -logp_BT.where(mask_BT, 0.0).sum(), mask_BT.sum()
