"""Supervised fine-tuning on recorded trajectories.  Shapes: B sequences, T tokens.

Which turns are learned is decided in turn_masks.py.
"""

from torch import Tensor


def masked_likelihood_loss(logp_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of -sum_k m_k log pi(c_k | s_k) / sum_k m_k |c_k| (ALE, eq. 1).

    ``mask_BT`` holds the tokens of the turns whose m_k is 1.  The paper's epsilon keeps a batch without a learned turn
    from dividing by 0; here its sum and weight are both exactly 0 and such a batch moves nothing.
    """
    return -logp_BT.where(mask_BT, 0.0).sum(), mask_BT.sum()
