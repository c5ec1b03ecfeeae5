"""Log-probs of sampled tokens, computed in one way for every purpose.

The logits of all positions over a large vocabulary never stand in memory at once: beyond ``CHUNK_LOGITS`` they are
taken chunk by chunk, and taken again in the backward pass.  What is held beyond hidden states and weights is then at
most six chunks (384 MiB; a truncated distribution sorts them, which takes as much again), and two copies of the
head's gradient where the head is trained.

Shapes: B sequences, T tokens, N masked tokens, V vocabulary, D hidden size.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.algorithms.truncation import lowest_kept, without_the_cut
from engine.models.network import PolicyNetwork
from engine.spec.generation import MODELS_OWN, NO_TRUNCATION, Distribution
from engine.training.prefix_trees import PrefixTrees

CHUNK_LOGITS = 2**24
"""Logits of a chunk, at most: 64 MiB of float32.  A single position with more of them stands alone."""


def token_logprobs(
    network: PolicyNetwork,
    token_ids_BT: Tensor,
    mask_BT: Tensor,
    *,
    distribution: Distribution = MODELS_OWN,
    positions_BT: Tensor | None = None,
    trees: PrefixTrees | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-prob [B, T] of each masked token given what stands before it, and the entropy [N] there (no gradient).

    In float32; 0 outside the mask.  Only masked positions pay for the vocabulary.  ``positions_BT`` are those of packed
    rows, in which the first token of a part is never masked; ``trees`` compute what rows have in common once.
    """
    with network.computing():
        targets_BT = mask_BT[:, 1:]
        targets_N = token_ids_BT[:, 1:][targets_BT]
        if trees is None:
            hidden_BTD = network.hidden(token_ids_BT[:, :-1], None if positions_BT is None else positions_BT[:, :-1])
            hidden_ND = hidden_BTD[targets_BT]
        else:
            hidden_RLD = network.hidden(trees.token_ids_RL, trees.positions_RL, trees.seen_R1LL)
            hidden_ND = hidden_RLD.flatten(0, 1)[trees.places_BT[:, :-1][targets_BT]]
        positions = max(1, CHUNK_LOGITS // network.vocab_size)
        if len(targets_N) <= positions:
            logp_N, entropy_N = _scored(network, hidden_ND, targets_N, distribution)
        else:
            parts = [
                checkpoint(_scored, network, hidden_CD, targets_C, distribution, use_reentrant=False)
                for hidden_CD, targets_C in zip(hidden_ND.split(positions), targets_N.split(positions), strict=True)
            ]
            logp_N, entropy_N = (torch.cat(column) for column in zip(*parts, strict=True))
    logp_BT = torch.zeros(token_ids_BT.shape, device=logp_N.device).masked_scatter(mask_BT, logp_N)
    return logp_BT, entropy_N


def _scored(
    network: PolicyNetwork, hidden_ND: Tensor, targets_N: Tensor, distribution: Distribution
) -> tuple[Tensor, Tensor]:
    """Log-probs [N] of the targets and the entropies [N], which have no gradient."""
    logits_NV = network.logits(hidden_ND).float()
    logp_NV = torch.log_softmax(logits_of(distribution, logits_NV, targets_N), dim=-1)
    logp_N = logp_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        entropy_N = entropy(logp_NV)
    return logp_N, entropy_N


class Scoring(nn.Module):
    """``token_logprobs`` as a module.

    Sharded, it is the root: what stands outside of the network's layers is whole from its beginning to its end, however
    often the head is used in between.
    """

    def __init__(self, network: PolicyNetwork) -> None:
        super().__init__()
        self.network = network.module
        self._network = (network,)  # in a tuple, or it would be registered a second time

    def forward(
        self,
        token_ids_BT: Tensor,
        mask_BT: Tensor,
        distribution: Distribution,
        positions_BT: Tensor | None = None,
        trees: PrefixTrees | None = None,
    ) -> tuple[Tensor, Tensor]:
        return token_logprobs(
            self._network[0], token_ids_BT, mask_BT, distribution=distribution, positions_BT=positions_BT, trees=trees
        )


def logits_of(distribution: Distribution, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """The logits [N, V] whose softmax is the distribution: divided by its temperature, -inf where it cuts.

    What is kept is decided by these logits alone, without a gradient; a target always is (docs/sampling.md).
    """
    temperature, truncation = distribution.temperature, distribution.truncation
    scaled_NV = logits_NV if temperature == 1 else logits_NV / temperature
    if truncation == NO_TRUNCATION or not len(targets_N):
        return scaled_NV
    floor_N1 = lowest_kept(
        scaled_NV.detach(),
        torch.full_like(targets_N, truncation.top_k),
        torch.full_like(targets_N, truncation.top_p, dtype=torch.float64),
        torch.full_like(targets_N, truncation.min_p, dtype=torch.float64),
    )
    return without_the_cut(scaled_NV, floor_N1, targets_N)


def entropy(logp_NV: Tensor) -> Tensor:
    """[N], in nats; a token that is cut adds nothing."""
    return -(logp_NV.exp() * logp_NV).masked_fill(logp_NV == -torch.inf, 0.0).sum(-1)
