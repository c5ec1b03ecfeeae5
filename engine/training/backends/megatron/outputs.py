"""From a micro-batch to a stage's input, and from the last stage's hidden states to log-probs.

The head's vocabulary is divided over the tensor ranks.  Each computes its own logits, chunk by chunk; what they tell
each other of a position are four numbers (the largest logit, the sum of exponentials, the target's logit, the mean
logit), never the logits.  Only a truncated distribution gathers those of one chunk, to find what it keeps.  With
context parallelism each rank scores its own positions, and the log-probs, not the logits, are brought together, so that
every rank takes the same loss of whole rows.

Shapes: B sequences of a micro-batch, T their tokens, R rows and W positions of what is computed, S of the positions
this rank's, N scored tokens, C a chunk of them, V this rank's part of the vocabulary, D hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from engine.algorithms.truncation import lowest_kept
from engine.spec.generation import NO_TRUNCATION, Distribution
from engine.training.backends.megatron.attention import positions_on
from engine.training.backends.megatron.model import HiddenStates
from engine.training.microbatch import MicroBatch
from engine.training.policy import CHUNK_LOGITS

__all__ = ["Rows", "rows_of", "scored"]


@dataclass(frozen=True)
class Rows:
    """What the network reads of a micro-batch, on this rank, and where it says something of a scored token."""

    token_ids_RS: Tensor
    positions_RS: Tensor
    segments_RW: Tensor | None
    """Numbers the sequences of each row; None: each row is one."""
    targets_N: Tensor
    """The scored tokens in the order of the micro-batch's mask."""
    places_N: Tensor
    """Where in the flattened [S, R] this rank has the hidden state before each; -1: another rank has it."""
    scored_BT: Tensor


def rows_of(batch: MicroBatch, *, packs: bool, multiple: int) -> Rows:
    """``packs``: all sequences in one row without padding.  Rows are as wide as a multiple of ``multiple``."""
    ids_BT, scored_BT = batch.token_ids_BT[:, :-1], batch.scored_BT[:, 1:]
    positions_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
    segments_BT = None
    if batch.positions_BT is not None:
        positions_BT = batch.positions_BT[:, :-1]
        segments_BT = (positions_BT == 0).cumsum(1)
    kept_BT = torch.ones_like(scored_BT)
    if packs:
        kept_BT = _up_to_the_last(scored_BT)
        numbers_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
        first_B1 = torch.arange(len(ids_BT), device=ids_BT.device).unsqueeze(1) * (ids_BT.shape[1] + 1)
        segments_BT = numbers_BT + first_B1
    places_BT = (kept_BT.flatten().cumsum(0) - 1).view_as(ids_BT)
    width = int(kept_BT.sum()) if packs else ids_BT.shape[1]
    columns = [ids_BT, positions_BT, *([] if segments_BT is None else [segments_BT])]
    ids_RW, positions_RW, *segments = [
        _padded(column_BT[kept_BT].view(-1, width), -(-width // multiple) * multiple) for column_BT in columns
    ]
    return _of_this_rank(batch, ids_RW, positions_RW, segments[0] if segments else None, places_BT[scored_BT], width)


def _up_to_the_last(scored_BT: Tensor) -> Tensor:
    """bool: the tokens of each sequence that are read for its last scored one.  A row without any keeps its first."""
    kept_BT = scored_BT.flip(1).cumsum(1).flip(1) > 0
    kept_BT[:, 0] = True
    return kept_BT


def _padded(column_RW: Tensor, width: int) -> Tensor:
    """By repeating the last: what is added comes after all that it could be seen by."""
    added = width - column_RW.shape[1]
    return column_RW if added == 0 else torch.cat([column_RW, column_RW[:, -1:].expand(-1, added)], dim=1)


def _of_this_rank(
    batch: MicroBatch, ids_RW: Tensor, positions_RW: Tensor, segments_RW: Tensor | None, flat_N: Tensor, width: int
) -> Rows:
    """``flat_N`` counts positions row after row of ``width`` each."""
    rows, all_positions = ids_RW.shape
    part, parts = parallel_state.get_context_parallel_rank(), parallel_state.get_context_parallel_world_size()
    held_S = positions_on(part, parts, all_positions).to(ids_RW.device)
    local_W = torch.full((all_positions,), -1, device=ids_RW.device)
    local_W[held_S] = torch.arange(len(held_S), device=ids_RW.device)
    local_N = local_W[flat_N % width]
    return Rows(
        token_ids_RS=ids_RW[:, held_S],
        positions_RS=positions_RW[:, held_S],
        segments_RW=segments_RW,
        targets_N=batch.token_ids_BT[:, 1:][batch.scored_BT[:, 1:]],
        places_N=torch.where(local_N < 0, -1, local_N * rows + flat_N // width),
        scored_BT=batch.scored_BT,
    )


def scored(model: HiddenStates, hidden_SRD: Tensor, rows: Rows, distribution: Distribution) -> tuple[Tensor, Tensor]:
    """Log-probs [B, T] of the scored tokens, 0 elsewhere, and the entropies [N], which have no gradient; float32."""
    if model.config.sequence_parallel:
        hidden_SRD = gather_from_sequence_parallel_region(hidden_SRD)
    else:
        hidden_SRD = copy_to_tensor_model_parallel_region(hidden_SRD)
    own_N = rows.places_N >= 0
    hidden_ND = hidden_SRD.flatten(0, 1)[rows.places_N[own_N]]
    logp_N, entropy_N = _in_chunks(hidden_ND, model.head, rows.targets_N[own_N], distribution)
    count = len(rows.targets_N)
    logp_N, entropy_N = (column.new_zeros(count).masked_scatter(own_N, column) for column in (logp_N, entropy_N))
    if (group := parallel_state.get_context_parallel_group()).size() > 1:
        logp_N = _gathered(logp_N, group)
        dist.all_reduce(entropy_N, group=group)
    logp_BT = logp_N.new_zeros(rows.scored_BT.shape).masked_scatter(rows.scored_BT, logp_N)
    # A rank that scores nothing of this micro-batch still has a part in the collectives of its backward pass.
    return logp_BT + hidden_SRD.sum() * 0.0, entropy_N


class _Gathered(torch.autograd.Function):
    """The sum over the ranks, each of which has its own positions and zeros elsewhere.

    All of them take the same loss of the sum, so each already has the whole gradient of its own part.
    """

    @staticmethod
    def forward(ctx: Any, column_N: Tensor, group: dist.ProcessGroup) -> Tensor:
        gathered_N = column_N.clone()
        dist.all_reduce(gathered_N, group=group)
        return gathered_N

    @staticmethod
    def backward(ctx: Any, gradient_N: Tensor) -> tuple[Tensor, None]:
        return gradient_N, None


def _in_chunks(
    hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, distribution: Distribution
) -> tuple[Tensor, Tensor]:
    positions = max(1, CHUNK_LOGITS // len(head_VD))
    if len(targets_N) <= positions:
        return _of_chunk(hidden_ND, head_VD, targets_N, distribution)
    parts = [
        checkpoint(_of_chunk, hidden_CD, head_VD, targets_C, distribution, use_reentrant=False)
        for hidden_CD, targets_C in zip(hidden_ND.split(positions), targets_N.split(positions), strict=True)
    ]
    logp_N, entropy_N = (torch.cat(column) for column in zip(*parts, strict=True))
    return logp_N, entropy_N


def _of_chunk(
    hidden_CD: Tensor, head_VD: Tensor, targets_C: Tensor, distribution: Distribution
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [C]."""
    logits_CV = (hidden_CD @ head_VD.T).float()
    if distribution.temperature != 1:
        logits_CV = logits_CV / distribution.temperature
    first = parallel_state.get_tensor_model_parallel_rank() * len(head_VD)
    own_C = targets_C - first
    own_C = torch.where((own_C >= 0) & (own_C < len(head_VD)), own_C, -1)
    if distribution.truncation != NO_TRUNCATION and len(targets_C):
        logits_CV = _kept(logits_CV, own_C, distribution)
    logp_C, entropy_C = _divided_log_prob(logits_CV, own_C, parallel_state.get_tensor_model_parallel_group())
    return logp_C, entropy_C


def _kept(logits_CV: Tensor, own_C: Tensor, distribution: Distribution) -> Tensor:
    """-inf for what the distribution cuts, but for a target, which it has kept."""
    group, cut = parallel_state.get_tensor_model_parallel_group(), distribution.truncation
    with torch.no_grad():
        parts = [torch.empty_like(logits_CV) for _ in range(group.size())]
        dist.all_gather(parts, logits_CV.detach().contiguous(), group=group)
        floor_C1 = lowest_kept(
            torch.cat(parts, dim=1),
            torch.full_like(own_C, cut.top_k),
            torch.full_like(own_C, cut.top_p, dtype=torch.float64),
            torch.full_like(own_C, cut.min_p, dtype=torch.float64),
        )
        is_target_CV = torch.arange(logits_CV.shape[1], device=own_C.device) == own_C.unsqueeze(1)
    return logits_CV.masked_fill((logits_CV < floor_C1) & ~is_target_CV, -torch.inf)


class _DividedLogProb(torch.autograd.Function):
    """Log-softmax at the targets, over a vocabulary whose parts stand on the ranks of ``group``; and its entropy.

    ``own_C`` is the target's place in this rank's part, -1 where another has it.  What is cut is -inf.
    """

    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, own_C: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        largest_C = logits_CV.amax(1)
        _combined(largest_C, dist.ReduceOp.MAX, group)
        shifted_CV = logits_CV - largest_C.unsqueeze(1)
        exp_CV = shifted_CV.exp()
        held_C = shifted_CV.gather(1, own_C.clamp(min=0).unsqueeze(1)).squeeze(1).masked_fill(own_C < 0, 0.0)
        weighted_CV = (exp_CV * shifted_CV).masked_fill(exp_CV == 0, 0.0)
        sums_3C = torch.stack([exp_CV.sum(1), held_C, weighted_CV.sum(1)])
        _combined(sums_3C, dist.ReduceOp.SUM, group)
        total_C, target_C, weighted_C = sums_3C
        ctx.save_for_backward(exp_CV.div_(total_C.unsqueeze(1)), own_C)
        entropy_C = total_C.log() - weighted_C / total_C
        ctx.mark_non_differentiable(entropy_C)
        return target_C - total_C.log(), entropy_C

    @staticmethod
    def backward(ctx: Any, gradient_C: Tensor, _entropy: Tensor) -> tuple[Tensor, None, None]:
        probability_CV, own_C = ctx.saved_tensors
        gradient_CV = -probability_CV * gradient_C.unsqueeze(1)
        on_target_C1 = gradient_C.masked_fill(own_C < 0, 0.0).unsqueeze(1)
        return gradient_CV.scatter_add_(1, own_C.clamp(min=0).unsqueeze(1), on_target_C1), None, None


# Of a Function's methods torch says no types.
_gathered: Callable[[Tensor, dist.ProcessGroup], Tensor] = _Gathered.apply
_divided_log_prob: Callable[[Tensor, Tensor, dist.ProcessGroup], tuple[Tensor, Tensor]] = _DividedLogProb.apply


def _combined(numbers: Tensor, how: Any, group: dist.ProcessGroup) -> None:
    if group.size() > 1:
        dist.all_reduce(numbers, how, group=group)
