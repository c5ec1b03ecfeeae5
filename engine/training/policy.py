"""Log-probs of sampled tokens, computed in one way for every purpose.

Shapes: B sequences, T tokens, N masked tokens, V vocabulary.
"""

import torch
from torch import Tensor

from engine.models.qwen3 import Qwen3


def token_logprobs(
    model: Qwen3, token_ids_BT: Tensor, mask_BT: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-prob [B, T] of each masked token given what stands before it, and the entropy [N] there (no gradient).

    Of softmax(logits / ``temperature``).  0 outside the mask.  Only masked positions pay for the vocabulary.
    """
    hidden_BTD = model.hidden(token_ids_BT[:, :-1])
    targets_BT = mask_BT[:, 1:]
    logits_NV = model.logits(hidden_BTD[targets_BT])
    logp_NV = torch.log_softmax(logits_NV if temperature == 1 else logits_NV / temperature, dim=-1)
    logp_N = logp_NV.gather(1, token_ids_BT[:, 1:][targets_BT].unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    logp_BT = torch.zeros(token_ids_BT.shape, device=logp_N.device).masked_scatter(mask_BT, logp_N)
    return logp_BT, entropy_N
