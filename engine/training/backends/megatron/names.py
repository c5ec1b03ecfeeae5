"""Names of weights, Hugging Face's and Megatron's: which tensors belong to which parameter, and in what order.

Megatron multiplies queries, keys and values by one matrix, group after group (the queries that share a key head, then
the key head, then the value head), and the MLP's gate and its other half by another.  A tensor rank has an equal part
of each group's rows, or of both halves.  Nothing is rounded either way: what goes in comes out bit by bit.

A ``Parameter`` is one parameter of Megatron by its name on the whole network, with the names of the tensors that it is
made of.  This module moves nothing between ranks and reads no file (``weights.py``).

Shapes are those of whole tensors; P parts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.architecture import Architecture
from engine.training.backends.megatron.layout import Shape

__all__ = ["FIRST", "LAST", "Cut", "Parameter", "parameters_of"]

FIRST, LAST = -1, -2
"""In place of a layer's number: what stands before the first layer, and after the last."""


@dataclass(frozen=True)
class Cut:
    """A parameter over the tensor ranks."""

    divided: Callable[[Tensor, int], Sequence[Tensor]]
    """What each of so many ranks holds of the whole."""
    put_together: Callable[[Sequence[Tensor]], Tensor]
    """Back again."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of Megatron's, over all ranks."""

    name: str
    """In the rank that has it; layers and experts are numbered from 0 on each rank, ``{layer}`` and ``{expert}``."""
    tensors: tuple[str, ...]
    """Hugging Face's names of what it is made of."""
    layer: int
    """The number in the order of the whole network, or FIRST or LAST."""
    expert: int | None = None
    """The number in the order of the whole network; None outside of a mixture's experts."""
    joined: Callable[[Sequence[Tensor]], Tensor] = lambda tensors: tensors[0]
    """The whole parameter from the whole tensors."""
    taken_apart: Callable[[Tensor], Sequence[Tensor]] = lambda whole: [whole]
    """Back again."""
    cut: Cut | None = None
    """How the tensor ranks divide it; None: each holds all of it."""


def parameters_of(shape: Shape) -> Iterator[Parameter]:
    """All of them, in the order of the forward pass: the same on every rank."""
    yield Parameter("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), FIRST, cut=ROWS)
    for layer in range(shape.architecture.layers):
        yield from _attention(shape.architecture, layer)
        yield from _mlp(shape, layer)
    yield Parameter("decoder.final_layernorm.weight", ("model.norm.weight",), LAST)
    if not shape.architecture.tied:
        yield Parameter("output_layer.weight", ("lm_head.weight",), LAST, cut=ROWS)


def _attention(architecture: Architecture, layer: int) -> Iterator[Parameter]:
    here, there = "decoder.layers.{layer}", f"model.layers.{layer}"
    groups = _Groups(architecture.heads, architecture.kv_heads, architecture.head_dim)

    def qkv(what: str) -> Parameter:
        tensors = tuple(f"{there}.self_attn.{part}_proj.{what}" for part in "qkv")
        name = f"{here}.self_attention.linear_qkv.{what}"
        return Parameter(name, tensors, layer, None, groups.joined, groups.taken_apart, cut=ROWS)

    yield Parameter(f"{here}.input_layernorm.weight", (f"{there}.input_layernorm.weight",), layer)
    yield qkv("weight")
    if architecture.qkv_bias:
        yield qkv("bias")
    if architecture.qk_norm:
        for part in "qk":
            name = f"{here}.self_attention.{part}_layernorm.weight"
            yield Parameter(name, (f"{there}.self_attn.{part}_norm.weight",), layer)
    tensors = (f"{there}.self_attn.o_proj.weight",)
    yield Parameter(f"{here}.self_attention.linear_proj.weight", tensors, layer, cut=COLUMNS)


def _mlp(shape: Shape, layer: int) -> Iterator[Parameter]:
    here, there = "decoder.layers.{layer}", f"model.layers.{layer}"
    yield Parameter(f"{here}.pre_mlp_layernorm.weight", (f"{there}.post_attention_layernorm.weight",), layer)
    if shape.experts is None:
        yield from _halves(f"{here}.mlp", f"{there}.mlp", layer)
        return
    yield Parameter(f"{here}.mlp.router.weight", (f"{there}.mlp.gate.weight",), layer)
    for expert in range(shape.experts.count):
        local = f"{here}.mlp.experts.local_experts.{{expert}}"
        yield from _halves(local, f"{there}.mlp.experts.{expert}", layer, expert)


def _halves(here: str, there: str, layer: int, expert: int | None = None) -> Iterator[Parameter]:
    """An MLP's two matrices; those of an expert are whole on their rank."""
    tensors = (f"{there}.gate_proj.weight", f"{there}.up_proj.weight")
    both, columns = (HALVES, COLUMNS) if expert is None else (None, None)
    yield Parameter(f"{here}.linear_fc1.weight", tensors, layer, expert, _stacked, _unstacked, both)
    yield Parameter(f"{here}.linear_fc2.weight", (f"{there}.down_proj.weight",), layer, expert, cut=columns)


@dataclass(frozen=True)
class _Groups:
    """Queries, keys and values as Megatron interleaves them, by rows; also of a bias, which has no columns."""

    heads: int
    kv_heads: int
    head_dim: int

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        parts = [tensor.unflatten(0, (self.kv_heads, -1)) for tensor in tensors]
        return torch.cat(parts, dim=1).flatten(0, 1)

    def taken_apart(self, whole: Tensor) -> Sequence[Tensor]:
        rows = [self.heads // self.kv_heads * self.head_dim, self.head_dim, self.head_dim]
        parts = whole.unflatten(0, (self.kv_heads, -1)).split(rows, dim=1)
        return [part.flatten(0, 1) for part in parts]


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors))


def _unstacked(whole: Tensor) -> Sequence[Tensor]:
    return whole.chunk(2)


def _parts_of_halves(whole: Tensor, parts: int) -> Sequence[Tensor]:
    gates, ups = (half.chunk(parts) for half in whole.chunk(2))
    return [torch.cat(pair) for pair in zip(gates, ups, strict=True)]


def _halves_of_parts(parts: Sequence[Tensor]) -> Tensor:
    gates, ups = zip(*(part.chunk(2) for part in parts), strict=True)
    return torch.cat([*gates, *ups])


ROWS = Cut(lambda whole, parts: whole.chunk(parts), _stacked)
COLUMNS = Cut(lambda whole, parts: whole.chunk(parts, dim=1), lambda parts: torch.cat(list(parts), dim=1))
HALVES = Cut(_parts_of_halves, _halves_of_parts)
