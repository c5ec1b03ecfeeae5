"""The policy with a KV cache: passes of fixed shape, so that what else is in the batch changes no bit.

Floating-point sums depend on their order, and the order that a matrix kernel picks depends on the
shape of its operands.  So every pass always runs at full shape (every slot, every cache column)
and masked places hold whatever they hold: each row is then computed by the same instructions
wherever it stands and whoever its neighbours are.

Shapes: S slots, R rows of a prefill, C tokens of a prefill row, L layers, D hidden size, H query heads, K key-value
heads, G = H / K, E head dim, W cache columns, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.qwen3 import NORM_EPS, rotary_tables
from engine.spec.run import Model

PREFILL_ROWS = 8
PREFILL_TOKENS = 16
_COLUMN_MULTIPLE = 8


@dataclass(frozen=True)
class _LayerWeights:
    """A layer's parameters, with those that read the same input joined: fewer, larger products."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class _Cache:
    keys_LSKEW: Tensor
    values_LSKWE: Tensor

    @classmethod
    def empty(cls, model: Model, rows: int, columns: int, device: torch.device) -> "_Cache":
        shape = (model.layers, rows, model.kv_heads)
        return cls(
            torch.zeros(*shape, model.head_dim, columns, device=device),
            torch.zeros(*shape, columns, model.head_dim, device=device),
        )


@dataclass(frozen=True)
class Prefix:
    """What the first tokens of a session leave in the cache; P of them."""

    keys_LKEP: Tensor
    values_LKPE: Tensor


class Decoder:
    """Weights and KV cache.  It knows slots and positions; sessions and requests are the generator's business.

    The cache has one column more than the context is long: padding is written there and nobody reads it.
    Beside the slots there are PREFILL_ROWS rows in which prompts are read before they have one.
    """

    def __init__(self, model: Model, *, slots: int, device: str) -> None:
        self.spec, self.slots, self.device = model, slots, torch.device(device)
        self.scratch_position = model.context_tokens
        columns = -(-(model.context_tokens + 1) // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE
        self._cache = _Cache.empty(model, slots, columns, self.device)
        self._prompts = _Cache.empty(model, PREFILL_ROWS, columns, self.device)
        cos, sin = rotary_tables(columns, model.head_dim)
        # With the sign of RoPE's half-turn in the table, rotation is one roll and two products.
        sin[:, : model.head_dim // 2] *= -1
        self._cos_WE, self._sin_WE = cos.to(self.device), sin.to(self.device)
        future_WW = torch.ones(columns, columns, dtype=torch.bool).triu(1)
        self._bias_WW = torch.zeros(columns, columns).masked_fill(future_WW, -torch.inf).to(self.device)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take weights by their Hugging Face names.  The cache stays: live sessions go on over the keys they have."""
        self._embedding_VD = self._taken(state, "model.embed_tokens.weight")
        self._final_norm_D = self._taken(state, "model.norm.weight")
        self._layers = [self._layer(state, f"model.layers.{i}.") for i in range(self.spec.layers)]

    @torch.inference_mode()
    def prefill(self, slots_R: Tensor, tokens_RC: Tensor, positions_RC: Tensor) -> None:
        """Put tokens into the cache.  Padding stands at ``scratch_position``; unused rows are all padding."""
        self._transformed(self._embedding_VD[tokens_RC.flatten()], self._cache, slots_R, positions_RC)

    @torch.inference_mode()
    def read_prompts(self, tokens_RC: Tensor, positions_RC: Tensor) -> None:
        """As ``prefill``, in the rows beside the slots, all of which begin anew where a position is 0."""
        self._transformed(self._embedding_VD[tokens_RC.flatten()], self._prompts, None, positions_RC)

    @torch.inference_mode()
    def prefix(self, row: int, tokens: int) -> Prefix:
        """A copy of the first ``tokens`` of the prompt in this row."""
        keys_LKEW, values_LKWE = self._prompts.keys_LSKEW[:, row], self._prompts.values_LSKWE[:, row]
        return Prefix(keys_LKEW[..., :tokens].clone(), values_LKWE[:, :, :tokens].clone())

    @torch.inference_mode()
    def begin(self, slot: int, prefix: Prefix) -> None:
        """Let the slot hold these tokens, at the positions from 0."""
        tokens = prefix.values_LKPE.shape[2]
        self._cache.keys_LSKEW[:, slot, :, :, :tokens] = prefix.keys_LKEP
        self._cache.values_LSKWE[:, slot, :, :tokens] = prefix.values_LKPE

    @torch.inference_mode()
    def step(self, tokens_S: Tensor, positions_S: Tensor) -> Tensor:
        """Put one token per slot into the cache; the logits [S, V] of what follows.

        Idle slots pass ``scratch_position``.
        """
        x_SD = self._embedding_VD[tokens_S]
        x_SD = self._transformed(x_SD, self._cache, None, positions_S.unsqueeze(1))
        return functional.linear(_normed(x_SD, self._final_norm_D), self._embedding_VD)

    def _transformed(self, x_ND: Tensor, cache: _Cache, slots_R: Tensor | None, positions_RC: Tensor) -> Tensor:
        """All layers over N = R * C tokens; ``slots_R`` None means every row of the cache in order."""
        rows, tokens = positions_RC.shape
        cos_N1E, sin_N1E = (table[positions_RC.flatten()].unsqueeze(1) for table in (self._cos_WE, self._sin_WE))
        groups = self.spec.heads // self.spec.kv_heads
        # Queries of one key-value head stand together: [G, C] flattened, so the bias repeats G times.
        bias_R1QW = self._bias_WW[positions_RC].repeat(1, groups, 1).unsqueeze(1)
        write_at = (
            (torch.arange(rows, device=self.device) if slots_R is None else slots_R).unsqueeze(1).expand(rows, tokens),
            positions_RC,
        )
        for layer, keys_SKEW, values_SKWE in zip(self._layers, cache.keys_LSKEW, cache.values_LSKWE, strict=True):
            q_NHE, k_NKE, v_NKE = self._projected(layer, x_ND, cos_N1E, sin_N1E)
            keys_SKEW[write_at[0], :, :, write_at[1]] = k_NKE.unflatten(0, (rows, tokens))
            values_SKWE[write_at[0], :, write_at[1]] = v_NKE.unflatten(0, (rows, tokens))
            keys_RKEW, values_RKWE = (
                (keys_SKEW, values_SKWE) if slots_R is None else (keys_SKEW[slots_R], values_SKWE[slots_R])
            )
            x_ND = x_ND + functional.linear(_attended(q_NHE, keys_RKEW, values_RKWE, bias_R1QW), layer.out)
            gate, up = functional.linear(_normed(x_ND, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x_ND = x_ND + functional.linear(functional.silu(gate) * up, layer.down)
        return x_ND

    def _projected(
        self, layer: _LayerWeights, x_ND: Tensor, cos_N1E: Tensor, sin_N1E: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads, head_dim = self.spec.heads, self.spec.kv_heads, self.spec.head_dim
        joined_NXE = functional.linear(_normed(x_ND, layer.input_norm), layer.qkv).unflatten(-1, (-1, head_dim))
        q_NHE, k_NKE, v_NKE = joined_NXE.split((heads, kv_heads, kv_heads), dim=1)
        qk_NXE = torch.cat((_normed(q_NHE, layer.q_norm), _normed(k_NKE, layer.k_norm)), dim=1)
        qk_NXE = qk_NXE * cos_N1E + qk_NXE.roll(head_dim // 2, dims=-1) * sin_N1E
        q_NHE, k_NKE = qk_NXE.split((heads, kv_heads), dim=1)
        return q_NHE, k_NKE, v_NKE

    def _layer(self, state: Mapping[str, Tensor], prefix: str) -> _LayerWeights:
        def joined(*names: str) -> Tensor:
            return torch.cat([self._taken(state, f"{prefix}{name}.weight") for name in names])

        scale = self.spec.head_dim**-0.5  # of the attention scores, folded into the queries' norm
        return _LayerWeights(
            input_norm=joined("input_layernorm"),
            qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            q_norm=joined("self_attn.q_norm") * scale,
            k_norm=joined("self_attn.k_norm"),
            out=joined("self_attn.o_proj"),
            mlp_norm=joined("post_attention_layernorm"),
            gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
            down=joined("mlp.down_proj"),
        )

    def _taken(self, state: Mapping[str, Tensor], name: str) -> Tensor:
        return state[name].detach().to(self.device, torch.float32, copy=True)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, NORM_EPS)


def _attended(q_NHE: Tensor, keys_RKEW: Tensor, values_RKWE: Tensor, bias_R1QW: Tensor) -> Tensor:
    """Attention of N = R * C tokens over whole cache rows; [N, H * E]."""
    rows, kv_heads, head_dim, _ = keys_RKEW.shape
    tokens, heads = q_NHE.shape[0] // rows, q_NHE.shape[1]
    q_RKQE = (
        q_NHE.view(rows, tokens, kv_heads, heads // kv_heads, head_dim)
        .permute(0, 2, 3, 1, 4)
        .reshape(rows, kv_heads, -1, head_dim)
    )
    weights_RKQW = torch.softmax(q_RKQE @ keys_RKEW + bias_R1QW, dim=-1)
    y_RKGCE = (weights_RKQW @ values_RKWE).view(rows, kv_heads, heads // kv_heads, tokens, head_dim)
    return y_RKGCE.permute(0, 3, 1, 2, 4).reshape(rows * tokens, heads * head_dim)
