"""Direct preference optimisation of a corrected tool call over the failed one.  Shapes: N pairs, T tokens."""

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo_loss(
    chosen_NT: Tensor,
    chosen_reference_NT: Tensor,
    chosen_mask_NT: Tensor,
    rejected_NT: Tensor,
    rejected_reference_NT: Tensor,
    rejected_mask_NT: Tensor,
    *,
    beta: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of -log sigmoid(beta (d_chosen - d_rejected)), d = sum over the mask of log pi - log pi_ref.

    DPO (arXiv:2305.18290, eq. 7) as CLEANER tried it (appendix C): the masks hold the tool call only.  The
    paper gives no beta.  Chosen and rejected may be padded to different T; a pair with an empty side is no
    pair and counts nowhere.  An ablation: the authors report that it collapses late in training.
    """
    chosen_N = (chosen_NT - chosen_reference_NT).where(chosen_mask_NT, 0.0).sum(1)
    rejected_N = (rejected_NT - rejected_reference_NT).where(rejected_mask_NT, 0.0).sum(1)
    pairs_N = chosen_mask_NT.any(1) & rejected_mask_NT.any(1)
    losses_N = -logsigmoid(beta * (chosen_N - rejected_N))
    return losses_N.where(pairs_N, 0.0).sum(), pairs_N.sum()
