"""Beginnings that several rows of a micro-batch have in common, computed once.

    prompt ─┬─ rollout 1         one row of the network:  [ prompt | rollout 1 | rollout 2 | ... ]
            ├─ rollout 2         a rollout's positions go on from the end of its prompt,
            └─ ...               and its tokens see the prompt and themselves

The hidden state of a token is what it is in a row of its own, up to rounding, and the prompt's gradient is the sum of
its rollouts'.  What rows have in common is found by their tokens up to the first one that is learned.

Attention computes every pair of tokens of a tree, those of two rollouts included, which do not see each other.  So a
tree of many rollouts behind a short prompt costs more than their rows; how long one may be is reckoned from both.

Shapes: B rows of the micro-batch, T tokens of each; R trees, L tokens of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.training.batch import Sample


@dataclass(frozen=True)
class PrefixTrees:
    """What the network computes in place of the rows of a micro-batch."""

    token_ids_RL: Tensor
    positions_RL: Tensor
    seen_R1LL: Tensor
    """bool: which tokens [.., second L] a token [.., first L] sees.  Padding sees itself."""
    places_BT: Tensor
    """Where the hidden state of each row's token is, counted over all trees; 0 where nothing depends on it."""


def longest_worth(given: int, even_attention: float) -> int:
    """Tokens of a tree beyond which one more rollout behind ``given`` tokens costs more than in a tree of its own.

    A tree of L tokens costs L + L^2 / ``even_attention``, in units of what one token costs but for attention.  Per
    rollout of t tokens, with L = given + n t, that is least where L - given = sqrt(given (given + even_attention)).
    """
    return given + int(math.sqrt(given * (given + even_attention)))


def trees_of(samples: Sequence[Sample], *, max_tokens: int, even_attention: float) -> list[list[int]]:
    """Samples by number, those of a tree together: as many as ``max_tokens`` has room for and as are worth it (see
    ``longest_worth``), one at least.

    They come in the order of their lengths, ties in that of their first samples; samples without a learned token are
    left out.
    """
    open_trees: dict[bytes, list[int]] = {}
    lengths: dict[int, int] = {}
    trees: list[list[int]] = []
    for number, sample in enumerate(samples):
        if not sample.learned_length:
            continue
        given = _given(sample)
        prefix, tail = sample.token_ids[:given].tobytes(), sample.learned_length - 1 - given
        tree = open_trees.get(prefix)
        if tree is None or lengths[tree[0]] + tail > min(max_tokens, longest_worth(given, even_attention)):
            tree = open_trees[prefix] = []
            trees.append(tree)
            lengths[number] = given
        tree.append(number)
        lengths[tree[0]] += tail
    return sorted(trees, key=lambda tree: lengths[tree[0]])


def tree_length(samples: Sequence[Sample]) -> int:
    """Tokens that the network computes for the samples of one tree."""
    return _given(samples[0]) + sum(map(_tail, samples))


def prefix_trees(trees: Sequence[Sequence[Sample]], row_tokens: int, device: torch.device) -> PrefixTrees:
    """The trees of a micro-batch whose rows are their samples, in that order, with ``row_tokens`` tokens each."""
    longest = max(map(tree_length, trees))
    shape = (len(trees), longest)
    token_ids_RL, positions_RL = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    parts_RL = np.full(shape, _PADDING, dtype=np.int32)
    places_BT = np.zeros((sum(map(len, trees)), row_tokens), dtype=np.int64)
    row = 0
    for number, samples in enumerate(trees):
        given = _given(samples[0])
        token_ids_RL[number, :given] = samples[0].token_ids[:given]
        positions_RL[number, :given], parts_RL[number, :given] = range(given), _PREFIX
        end = given
        for part, sample in enumerate(samples, start=_PREFIX + 1):
            tail = _tail(sample)
            at = slice(end, end + tail)
            token_ids_RL[number, at] = sample.token_ids[given : given + tail]
            positions_RL[number, at], parts_RL[number, at] = range(given, given + tail), part
            places_BT[row, :given] = number * longest + np.arange(given)
            places_BT[row, given : given + tail] = number * longest + np.arange(end, end + tail)
            row, end = row + 1, end + tail
    ids_RL, at_RL, parts_RL_, where_BT = (
        torch.from_numpy(array).to(device) for array in (token_ids_RL, positions_RL, parts_RL, places_BT)
    )
    return PrefixTrees(ids_RL, at_RL, _seen(parts_RL_), where_BT)


_PADDING, _PREFIX = -1, 0


def _given(sample: Sample) -> int:
    """Tokens before the first one that is learned; at least one, which predicts it."""
    return int(np.flatnonzero(sample.scored)[0])


def _tail(sample: Sample) -> int:
    """Tokens behind the prefix whose hidden states something depends on: all but the last one that is learned."""
    return sample.learned_length - 1 - _given(sample)


def _seen(parts_RL: Tensor) -> Tensor:
    of_RL1, to_R1L = parts_RL.unsqueeze(2), parts_RL.unsqueeze(1)
    tokens = parts_RL.shape[1]
    causal_LL = torch.ones(tokens, tokens, dtype=torch.bool, device=parts_RL.device).tril()
    own_RLL = (of_RL1 == to_R1L) | ((to_R1L == _PREFIX) & (of_RL1 > _PREFIX))
    return (own_RLL & causal_LL).unsqueeze(1)
