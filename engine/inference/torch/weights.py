"""The decoder's parameters: where each Hugging Face tensor stands, and how new ones come in.

Matrices that read the same input stand joined: fewer, larger products.  All memory is taken once; new weights are
copied over the old ones, one tensor at a time, so that a model never stands here twice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.architecture import Architecture


@dataclass(frozen=True)
class LayerWeights:
    """One layer's parameters; absent where the architecture has no such bias or norm."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """One norm for each head, those of the queries first: [H + K, E]."""
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    @classmethod
    def empty(cls, architecture: Architecture, device: torch.device, dtype: torch.dtype) -> "LayerWeights":
        def tensor(*shape: int) -> Tensor:
            return torch.empty(*shape, device=device, dtype=dtype)

        a = architecture
        queries, joined = a.heads * a.head_dim, (a.heads + 2 * a.kv_heads) * a.head_dim
        return cls(
            input_norm=tensor(a.hidden_size),
            qkv=tensor(joined, a.hidden_size),
            qkv_bias=tensor(joined) if a.qkv_bias else None,
            qk_norm=tensor(a.heads + a.kv_heads, a.head_dim) if a.qk_norm else None,
            out=tensor(a.hidden_size, queries),
            out_bias=tensor(a.hidden_size) if a.out_bias else None,
            mlp_norm=tensor(a.hidden_size),
            gate_up=tensor(2 * a.intermediate_size, a.hidden_size),
            gate_up_bias=tensor(2 * a.intermediate_size) if a.mlp_bias else None,
            down=tensor(a.hidden_size, a.intermediate_size),
            down_bias=tensor(a.hidden_size) if a.mlp_bias else None,
        )

    def places(self, architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name within its layer, and the memory that it has here, which may be that of each head."""
        queries, keys = architecture.heads * architecture.head_dim, architecture.kv_heads * architecture.head_dim
        qkv = (("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys))
        gate_up = tuple((f"mlp.{name}_proj", architecture.intermediate_size) for name in ("gate", "up"))
        yield from _parts(qkv, "weight", self.qkv)
        yield from _parts(qkv, "bias", self.qkv_bias)
        yield from _parts(gate_up, "weight", self.gate_up)
        yield from _parts(gate_up, "bias", self.gate_up_bias)
        q_norm, k_norm = (
            (None, None) if self.qk_norm is None else self.qk_norm.split((architecture.heads, architecture.kv_heads))
        )
        for name, place in (
            ("input_layernorm.weight", self.input_norm),
            ("post_attention_layernorm.weight", self.mlp_norm),
            ("self_attn.q_norm.weight", q_norm),
            ("self_attn.k_norm.weight", k_norm),
            ("self_attn.o_proj.weight", self.out),
            ("self_attn.o_proj.bias", self.out_bias),
            ("mlp.down_proj.weight", self.down),
            ("mlp.down_proj.bias", self.down_bias),
        ):
            if place is not None:
                yield name, place


class DecoderWeights:
    """All parameters on one device, of one dtype.  What they hold means nothing before the first ``load``."""

    def __init__(self, architecture: Architecture, device: torch.device, dtype: torch.dtype) -> None:
        self._architecture = architecture
        shape = (architecture.vocab_size, architecture.hidden_size)
        self.embedding_VD = torch.empty(*shape, device=device, dtype=dtype)
        self.final_norm_D = torch.empty(architecture.hidden_size, device=device, dtype=dtype)
        self.head_VD = self.embedding_VD if architecture.tied else torch.empty(*shape, device=device, dtype=dtype)
        self.layers = [LayerWeights.empty(architecture, device, dtype) for _ in range(architecture.layers)]

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take all weights by their Hugging Face names, whatever their dtype.

        Raises ValueError, with the old weights in place, where a name is missing, unknown or of another shape.
        """
        self._check(state)
        for name, place in self._places():
            place.copy_(state[name].detach())

    def _places(self) -> Iterator[tuple[str, Tensor]]:
        yield "model.embed_tokens.weight", self.embedding_VD
        yield "model.norm.weight", self.final_norm_D
        if not self._architecture.tied:
            yield "lm_head.weight", self.head_VD
        for number, layer in enumerate(self.layers):
            for name, place in layer.places(self._architecture):
                yield f"model.layers.{number}.{name}", place

    def _check(self, state: Mapping[str, Tensor]) -> None:
        shapes = dict(self._architecture.weights())
        for name, shape in shapes.items():
            if name not in state:
                raise ValueError(f"the weights have no {name!r}, which this architecture needs")
            if tuple(state[name].shape) != shape:
                raise ValueError(f"{name!r} is {tuple(state[name].shape)}: the architecture needs {shape}")
        for name in state:
            if name not in shapes and not _is_redundant(name):
                raise ValueError(f"the weights have {name!r}, which this architecture has not")


def _is_redundant(name: str) -> bool:
    """A tied head that is written out all the same, and tables that old folders carry."""
    return name == "lm_head.weight" or name.endswith(".rotary_emb.inv_freq")


def _parts(parts: tuple[tuple[str, int], ...], kind: str, joined: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    if joined is not None:
        rows = joined.split([size for _, size in parts])
        yield from ((f"{name}.{kind}", place) for (name, _), place in zip(parts, rows, strict=True))
