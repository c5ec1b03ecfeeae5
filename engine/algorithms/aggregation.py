"""How token losses become one number.  Shapes: B sequences, T tokens.

Every aggregation is a ``(sum, weight)`` whose parts add up over micro-batches and ranks: the caller
divides once, by the weight of the whole batch, so how the batch was cut changes no gradient.
Sequences without a trained token count nowhere.

A trajectory of several segments is several rows.  Where sequences are what a mean is over, the trajectory is meant: it
weighs once, however it was cut into segments, so each row weighs by its share of the trajectory's tokens.
"""

from torch import Tensor

from engine.spec.objective import Aggregation


def aggregated(
    losses_BT: Tensor,
    mask_BT: Tensor,
    how: Aggregation,
    *,
    max_response_tokens: int,
    trajectory_tokens_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum of the masked losses as ``how`` weighs them, and the weight to divide it by.

    ``trajectory_tokens_B`` are the masked tokens of the whole trajectory of each row; None: every row is a whole one.

    - ``token-mean``: every token weighs the same (DAPO, arXiv:2503.14476, eq. 8).
    - ``seq-mean-token-mean``: every sequence weighs the same (GRPO, arXiv:2402.03300, eq. 3).
    - ``seq-mean-token-sum``: sequences weigh as many times as they have tokens.
    - ``seq-mean-token-sum-norm``: the same over the constant ``max_response_tokens`` (Dr. GRPO, arXiv:2503.20783).
    """
    losses_BT = losses_BT.where(mask_BT, 0.0)
    tokens_B = mask_BT.sum(1)
    if trajectory_tokens_B is None:
        whole_B, sequences = tokens_B.clamp(min=1), (tokens_B > 0).sum()
    else:
        whole_B = trajectory_tokens_B.clamp(min=1)
        sequences = (tokens_B.double() / whole_B).sum()
    match how:
        case "token-mean":
            return losses_BT.sum(), tokens_B.sum()
        case "seq-mean-token-mean":
            return (losses_BT.sum(1) / whole_B).sum(), sequences
        case "seq-mean-token-sum":
            return losses_BT.sum(), sequences
        case "seq-mean-token-sum-norm":
            return losses_BT.sum() / max_response_tokens, sequences
