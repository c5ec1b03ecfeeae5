"""The policy with a KV cache: passes of fixed shape, so that what else is in the batch changes no bit.

Floating-point sums depend on their order, and the order that a matrix kernel picks depends on the
shape of its operands.  So every pass always runs at full shape (every slot, every cache column)
and masked places hold whatever they hold: each row is then computed by the same instructions
wherever it stands and whoever its neighbours are.

Shapes: S slots, R rows of a prefill, C tokens of a prefill row, L layers, D hidden size, H query heads, K key-value
heads, G = H / K, E head dim, W cache columns, V vocabulary, B rows of logits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.inference.torch.memory import Dtype, Layout
from engine.inference.torch.weights import DecoderWeights, LayerWeights
from engine.models.architecture import Architecture
from engine.models.rope import rotary_tables

TORCH_DTYPE: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class _Cache:
    keys_LSKEW: Tensor
    values_LSKWE: Tensor

    @classmethod
    def empty(
        cls, architecture: Architecture, rows: int, columns: int, device: torch.device, dtype: torch.dtype
    ) -> "_Cache":
        shape = (architecture.layers, rows, architecture.kv_heads)
        return cls(
            torch.zeros(*shape, architecture.head_dim, columns, device=device, dtype=dtype),
            torch.zeros(*shape, columns, architecture.head_dim, device=device, dtype=dtype),
        )


@dataclass(frozen=True)
class Prefix:
    """What the first tokens of a session leave in the cache; P of them."""

    keys_LKEP: Tensor
    values_LKPE: Tensor


class Decoder:
    """Weights and KV cache.  It knows slots and positions; sessions and requests are the generator's business.

    The cache has one column more than the context is long: padding is written there and nobody reads it.
    Beside the slots there are ``layout.prefill_rows`` rows in which prompts are read before they have one.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        context_tokens: int,
        slots: int,
        device: str,
        dtype: Dtype = "float32",
    ) -> None:
        self.architecture, self.device = architecture, torch.device(device)
        self.layout = Layout(architecture, context_tokens, slots, dtype)
        self.scratch_position = context_tokens
        columns, head_dim, torch_dtype = self.layout.columns, architecture.head_dim, TORCH_DTYPE[dtype]
        self._weights = DecoderWeights(architecture, self.device, torch_dtype)
        self._cache = _Cache.empty(architecture, slots, columns, self.device, torch_dtype)
        self._prompts = _Cache.empty(architecture, self.layout.prefill_rows, columns, self.device, torch_dtype)
        cos, sin = rotary_tables(columns, head_dim, architecture.rope)
        # With the sign of RoPE's half-turn in the table, rotation is one roll and two products.
        sin[:, : head_dim // 2] *= -1
        self._cos_WE, self._sin_WE = cos.to(self.device, torch_dtype), sin.to(self.device, torch_dtype)
        self._column_W = torch.arange(columns, device=self.device)
        # The scale of the scores stands in the queries' norm where that loses no digit, and is a product elsewhere.
        self._scale_in_norm = architecture.qk_norm and dtype == "float32"

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take weights by their Hugging Face names.  The cache stays: live sessions go on over the keys they have.

        Raises ValueError, with the old weights in place, for weights of another architecture.
        """
        self._weights.load(state)
        if self._scale_in_norm:
            for layer in self._weights.layers:
                assert layer.q_norm is not None
                layer.q_norm.mul_(self.architecture.head_dim**-0.5)

    @torch.inference_mode()
    def prefill(self, slots_R: Tensor, tokens_RC: Tensor, positions_RC: Tensor) -> None:
        """Put tokens into the cache.  Padding stands at ``scratch_position``; unused rows are all padding."""
        self._transformed(self._weights.embedding_VD[tokens_RC.flatten()], self._cache, slots_R, positions_RC)

    @torch.inference_mode()
    def read_prompts(self, tokens_RC: Tensor, positions_RC: Tensor) -> None:
        """As ``prefill``, in the rows beside the slots, all of which begin anew where a position is 0."""
        self._transformed(self._weights.embedding_VD[tokens_RC.flatten()], self._prompts, None, positions_RC)

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
        """Put one token per slot into the cache; the final hidden states [S, D] from which what follows is told.

        Idle slots pass ``scratch_position``.
        """
        x_SD = self._weights.embedding_VD[tokens_S]
        x_SD = self._transformed(x_SD, self._cache, None, positions_S.unsqueeze(1))
        return self._normed(x_SD, self._weights.final_norm_D)

    @torch.inference_mode()
    def logits(self, hidden_BD: Tensor) -> Tensor:
        """float32 [B, V] of ``layout.logit_rows`` hidden states: those of all slots may be too many at once."""
        return functional.linear(hidden_BD, self._weights.head_VD).float()

    def _transformed(self, x_ND: Tensor, cache: _Cache, slots_R: Tensor | None, positions_RC: Tensor) -> Tensor:
        """All layers over N = R * C tokens; ``slots_R`` None means every row of the cache in order."""
        rows, tokens = positions_RC.shape
        cos_N1E, sin_N1E = (table[positions_RC.flatten()].unsqueeze(1) for table in (self._cos_WE, self._sin_WE))
        groups = self.architecture.heads // self.architecture.kv_heads
        bias_RCW = torch.where(self._column_W > positions_RC.unsqueeze(-1), -torch.inf, 0.0)
        # Queries of one key-value head stand together, [G, C] flattened: the bias repeats G times (C = 1: no copy).
        bias_R1QW = (bias_RCW if tokens == 1 else bias_RCW.repeat(1, groups, 1)).unsqueeze(1)
        write = _written(positions_RC, slots_R, (self.architecture.kv_heads, self.architecture.head_dim))
        layers = self._weights.layers
        for layer, keys_SKEW, values_SKWE in zip(layers, cache.keys_LSKEW, cache.values_LSKWE, strict=True):
            q_NHE, k_NKE, v_NKE = self._projected(layer, x_ND, cos_N1E, sin_N1E)
            write(keys_SKEW, values_SKWE, k_NKE, v_NKE)
            keys_RKEW, values_RKWE = (
                (keys_SKEW, values_SKWE) if slots_R is None else (keys_SKEW[slots_R], values_SKWE[slots_R])
            )
            y_ND = _attended(q_NHE, keys_RKEW, values_RKWE, bias_R1QW)
            x_ND = x_ND + functional.linear(y_ND, layer.out, layer.out_bias)
            gate_up = functional.linear(self._normed(x_ND, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, dim=-1)
            x_ND = x_ND + functional.linear(functional.silu(gate) * up, layer.down, layer.down_bias)
        return x_ND

    def _projected(
        self, layer: LayerWeights, x_ND: Tensor, cos_N1E: Tensor, sin_N1E: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads, head_dim = self.architecture.heads, self.architecture.kv_heads, self.architecture.head_dim
        joined_NX = functional.linear(self._normed(x_ND, layer.input_norm), layer.qkv, layer.qkv_bias)
        qk_NXE, v_NKE = joined_NX.unflatten(-1, (-1, head_dim)).split((heads + kv_heads, kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q_NHE, k_NKE = qk_NXE.split((heads, kv_heads), dim=1)
            qk_NXE = torch.cat((self._normed(q_NHE, layer.q_norm), self._normed(k_NKE, layer.k_norm)), dim=1)
        qk_NXE = qk_NXE * cos_N1E + qk_NXE.roll(head_dim // 2, dims=-1) * sin_N1E
        q_NHE, k_NKE = qk_NXE.split((heads, kv_heads), dim=1)
        return q_NHE if self._scale_in_norm else q_NHE * head_dim**-0.5, k_NKE, v_NKE

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.architecture.norm_eps)


def _written(
    positions_RC: Tensor, slots_R: Tensor | None, shape: tuple[int, int]
) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    """How keys and values of one layer come into the cache: of one token per slot by ``scatter``, which costs less than
    indexing.  ``shape`` is [K, E]."""
    rows, tokens = positions_RC.shape
    if slots_R is None and tokens == 1:
        column_R111 = positions_RC.view(rows, 1, 1, 1)
        at_RKE1, at_RK1E = column_R111.expand(rows, *shape, 1), column_R111.expand(rows, shape[0], 1, shape[1])

        def scatter(keys_SKEW: Tensor, values_SKWE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> None:
            keys_SKEW.scatter_(3, at_RKE1, k_NKE.unsqueeze(3))
            values_SKWE.scatter_(2, at_RK1E, v_NKE.unsqueeze(2))

        return scatter
    slots = torch.arange(rows, device=positions_RC.device) if slots_R is None else slots_R
    slots_RC = slots.unsqueeze(1).expand(rows, tokens)

    def index(keys_SKEW: Tensor, values_SKWE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> None:
        keys_SKEW[slots_RC, :, :, positions_RC] = k_NKE.unflatten(0, (rows, tokens))
        values_SKWE[slots_RC, :, positions_RC] = v_NKE.unflatten(0, (rows, tokens))

    return index


def _attended(q_NHE: Tensor, keys_RKEW: Tensor, values_RKWE: Tensor, bias_R1QW: Tensor) -> Tensor:
    """Attention of N = R * C tokens over whole cache rows; [N, H * E]."""
    rows, kv_heads, head_dim, _ = keys_RKEW.shape
    tokens, heads = q_NHE.shape[0] // rows, q_NHE.shape[1]
    q_RKQE = (
        q_NHE.view(rows, tokens, kv_heads, heads // kv_heads, head_dim)
        .permute(0, 2, 3, 1, 4)
        .reshape(rows, kv_heads, -1, head_dim)
    )
    # In float32 also where keys and values are not, as transformers has it.
    weights_RKQW = torch.softmax(q_RKQE @ keys_RKEW + bias_R1QW, dim=-1).to(q_RKQE.dtype)
    y_RKGCE = (weights_RKQW @ values_RKWE).view(rows, kv_heads, heads // kv_heads, tokens, head_dim)
    return y_RKGCE.permute(0, 3, 1, 2, 4).reshape(rows * tokens, heads * head_dim)
