"""Log-probs of sampled tokens, computed in one way for every purpose.

Shapes: B sequences, T tokens, N masked tokens, V vocabulary.
"""

import torch
from torch import Tensor

from engine.models.qwen3 import Qwen3


def token_logprobs(model: Qwen3, token_ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob [B, T] of each masked token given what stands before it, and the entropy [N] there (no gradient).

    0 outside the mask.  Only masked positions pay for the vocabulary.
    """
    hidden_BTD = model.hidden(token_ids_BT[:, :-1])
    targets_BT = mask_BT[:, 1:]
    logp_NV = torch.log_softmax(model.logits(hidden_BTD[targets_BT]), dim=-1)
    logp_N = logp_NV.gather(1, token_ids_BT[:, 1:][targets_BT].unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    logp_BT = torch.zeros(token_ids_BT.shape, device=logp_N.device).masked_scatter(mask_BT, logp_N)
    return logp_BT, entropy_N
