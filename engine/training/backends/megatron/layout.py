"""Which rank computes what, and which layouts a model does not divide into.

A run's ranks stand in a grid of four dimensions: tensor (parts of every matrix), context (parts of every sequence),
data (shares of every batch) and pipeline (parts of the network's depth), of which tensor is the innermost.  Experts are
divided over the ranks of one pipeline stage, across tensor, context and data: each rank holds whole experts.

This module knows neither torch nor Megatron: preflight asks it, on any machine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from engine.models.architecture import Architecture, UnsupportedArchitecture, YarnScaling
from engine.spec.megatron import Megatron
from engine.spec.model import PretrainedModel
from engine.spec.problems import Problem

__all__ = ["Experts", "Grid", "Shape", "layout_problems"]

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""Values of ``model_type``; Qwen2.5 is ``qwen2``."""
FIELD = "resources.megatron"


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of a run.  Numbers of ranks are those of the trainer's ranks."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    ranks: int

    @classmethod
    def of(cls, megatron: Megatron, ranks: int) -> "Grid":
        """The spec has refused sizes that do not divide the ranks."""
        return cls(megatron.tensor, megatron.pipeline, megatron.context, megatron.expert, ranks)

    @property
    def data(self) -> int:
        """Shares of a batch."""
        return self.ranks // (self.tensor * self.context * self.pipeline)

    def replica_of(self, rank: int) -> int:
        """Which share of a batch the rank computes."""
        return rank // (self.tensor * self.context) % self.data

    def speaker_of(self, replica: int) -> int:
        """The rank that answers for a share: the first of those that hold the head."""
        return (replica + (self.pipeline - 1) * self.data) * self.tensor * self.context

    def speaks(self, rank: int) -> bool:
        return self.speaker_of(self.replica_of(rank)) == rank


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a mixture's layers."""

    count: int
    per_token: int
    intermediate_size: int
    weights_sum_to_one: bool
    """Whether the weights of a token's experts are brought to a sum of 1."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A network that Megatron can be told of."""

    architecture: Architecture
    experts: Experts | None

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Shape":
        """The network of a ``config.json``.  Raises UnsupportedArchitecture."""
        family = config.get("model_type")
        if family not in FAMILIES:
            raise _unsupported("model_type", family, f"the families are {', '.join(FAMILIES)}")
        plain = {**config, "model_type": "qwen3"} if family == "qwen3_moe" else dict(config)
        architecture = Architecture.of_config(plain)
        _refuse_switches(architecture)
        return cls(architecture, _experts(config) if family == "qwen3_moe" else None)


def _refuse_switches(architecture: Architecture) -> None:
    for field, given in {
        "attention_bias": architecture.out_bias,
        "mlp_bias": architecture.mlp_bias,
        "sliding_window": architecture.sliding_window,
    }.items():
        if given:
            raise _unsupported(field, given, "its layers have no such part here")
    if isinstance(architecture.rope.scaling, YarnScaling):
        raise _unsupported(
            "rope_type", "yarn", "attention is not warmed here; default, linear and llama3 positions are"
        )


def _experts(config: Mapping[str, Any]) -> Experts:
    for field, only in {"decoder_sparse_step": 1, "mlp_only_layers": []}.items():
        if config.get(field) not in (None, only):
            raise _unsupported(field, config[field], "every layer is a mixture here")
    try:
        return Experts(
            count=int(config["num_experts"] if "num_experts" in config else config["num_local_experts"]),
            per_token=int(config["num_experts_per_tok"]),
            intermediate_size=int(config["moe_intermediate_size"]),
            weights_sum_to_one=bool(config.get("norm_topk_prob", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unsupported(str(error), None, "a mixture says how many experts it has, and of what size") from error


def _unsupported(field: str, value: object, why: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(field, value, why, 'use resources.trainer = "torch"')


def layout_problems(
    config: Mapping[str, Any], model: PretrainedModel, megatron: Megatron, ranks: int
) -> Iterator[Problem]:
    """Return why a model of this ``config.json`` cannot be trained in this layout."""
    yield from _model_problems(model)
    try:
        shape = Shape.of_config(config)
    except UnsupportedArchitecture as unsupported:
        problem = unsupported.problem
        message = f"Megatron cannot train it (config.json: {problem.field} = {problem.value!r}: {problem.message})"
        yield Problem("model.path", str(model.path), message, problem.remedy)
        return
    yield from _uneven(shape, Grid.of(megatron, ranks))
    if shape.experts is not None and megatron.tensor > 1 and not megatron.sequence_parallel:
        why = "a mixture's tokens are sent to their experts from each tensor rank's own part of the sequence"
        yield Problem(f"{FIELD}.sequence_parallel", False, why, f"set it to true, or {FIELD}.tensor = 1")


def _model_problems(model: PretrainedModel) -> Iterator[Problem]:
    if model.lora is not None:
        yield Problem("model.lora", "set", "Megatron trains all weights here", 'remove it, or use trainer = "torch"')
    if model.dtype == "float16":
        yield Problem("model.dtype", "float16", "losses are not scaled in Megatron here", 'use "bfloat16" or "float32"')


def _uneven(shape: Shape, grid: Grid) -> Iterator[Problem]:
    architecture, experts = shape.architecture, shape.experts
    inner = architecture.intermediate_size if experts is None else experts.intermediate_size
    divided = [
        ("tensor", grid.tensor, "num_attention_heads", architecture.heads),
        ("tensor", grid.tensor, "num_key_value_heads", architecture.kv_heads),
        ("tensor", grid.tensor, "vocab_size", architecture.vocab_size),
        ("pipeline", grid.pipeline, "num_hidden_layers", architecture.layers),
    ]
    if experts is None:
        divided.append(("tensor", grid.tensor, "intermediate_size", inner))
        if grid.expert > 1:
            why = "the model is no mixture of experts"
            yield Problem(f"{FIELD}.expert", grid.expert, why, "use 1")
    else:
        divided.append(("expert", grid.expert, "num_experts", experts.count))
    for field, parts, name, count in divided:
        if count % parts:
            common = gcd(*(other for beside, _, _, other in divided if beside == field))
            fitting = ", ".join(str(size) for size in range(1, min(common, grid.ranks) + 1) if common % size == 0)
            why = f"{name} = {count} does not divide into {parts} equal parts"
            yield Problem(f"{FIELD}.{field}", parts, why, f"use one of: {fitting}")
