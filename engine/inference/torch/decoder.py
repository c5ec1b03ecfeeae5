"""The policy with a KV cache: passes of fixed shape, so that what else is in the batch changes no bit.

Floating-point sums depend on their order, and the order that a matrix kernel picks depends on the
shape of its operands.  So every pass runs over every slot, and masked places hold whatever they hold:
each row is then computed by the same instructions wherever it stands and whoever its neighbours are.  Columns
that nobody has reached are left out of attention, and slots that nobody is in out of a step, where that was seen to
change no bit (widths.py, rows.py).

Shapes: S slots, N sessions of a step, R rows of a pass, C tokens of a row, L layers, D hidden size, H query heads,
K key-value heads, G = H / K, E head dim, W cache columns (in attention: those that are looked at), V vocabulary, B rows
of logits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.inference.torch import attention
from engine.inference.torch.memory import Dtype, Layout
from engine.inference.torch.rows import Rows
from engine.inference.torch.weights import DecoderWeights, LayerWeights
from engine.inference.torch.widths import Widths
from engine.models.architecture import Architecture
from engine.models.rope import rotary_tables

TORCH_DTYPE: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


ROW_PROOFS = 2
IntArray = NDArray[np.int64]
_LayerCache = tuple[LayerWeights, Tensor, Tensor]
"""A layer with its keys [S, K, E, W] and values [S, K, W, E]."""


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
        proves = self.device.type == "cpu" and torch_dtype is torch.float32
        self._widths = Widths(architecture, columns, self.scratch_position, proves=proves)
        self._rows = Rows(slots, self._equal_in, proves=proves)
        # The scale of the scores stands in the queries' norm where that loses no digit, and is a product elsewhere.
        self._scale_in_norm = architecture.qk_norm and dtype == "float32"

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take weights by their Hugging Face names.  The cache stays: live sessions go on over the keys they have.

        Raises ValueError, with the old weights in place, for weights of another architecture.
        """
        self._weights.load(state)
        if self._scale_in_norm:
            for layer in self._weights.layers:
                assert layer.qk_norm is not None
                layer.qk_norm[: self.architecture.heads].mul_(self.architecture.head_dim**-0.5)

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
    def step(self, slots_N: IntArray, tokens_N: IntArray, positions_N: IntArray) -> Tensor:
        """Put one token into the cache of each of these slots; the final hidden states from which what follows is told.

        [S, D]: those of other slots mean nothing.
        """
        rows = self._rows.of(len(slots_N))
        fewer = rows < self.layout.slots
        at_N = np.arange(len(slots_N)) if fewer else slots_N
        slots_R = self._placed(slots_N, at_N, rows, filler=0) if fewer else None
        positions_R = self._placed(positions_N, at_N, rows, filler=self.scratch_position)
        x_RD = self._weights.embedding_VD[self._placed(tokens_N, at_N, rows, filler=0)]
        x_RD = self._transformed(x_RD, self._cache, slots_R, positions_R.unsqueeze(1))
        hidden_RD = self._normed(x_RD, self._weights.final_norm_D)
        if not fewer:
            return hidden_RD
        hidden_SD = hidden_RD.new_zeros(self.layout.slots, hidden_RD.shape[1])
        return hidden_SD.index_copy_(0, torch.from_numpy(slots_N).to(self.device), hidden_RD[: len(slots_N)])

    @torch.inference_mode()
    def logits(self, hidden_BD: Tensor) -> Tensor:
        """float32 [B, V] of ``layout.logit_rows`` hidden states: those of all slots may be too many at once."""
        return functional.linear(hidden_BD, self._weights.head_VD).float()

    def _transformed(self, x_ND: Tensor, cache: _Cache, slots_R: Tensor | None, positions_RC: Tensor) -> Tensor:
        """All layers over N = R * C tokens; ``slots_R`` None means every row of the cache in order."""
        layers = zip(self._weights.layers, cache.keys_LSKEW, cache.values_LSKWE, strict=True)
        columns = self._widths.of(positions_RC, gathers=slots_R is not None)
        return self._through(layers, x_ND, slots_R, positions_RC, columns)

    def _through(
        self,
        layers: Iterable[_LayerCache],
        x_ND: Tensor,
        slots_R: Tensor | None,
        positions_RC: Tensor,
        columns: int,
    ) -> Tensor:
        cos_N1E, sin_N1E = (table[positions_RC.flatten()].unsqueeze(1) for table in (self._cos_WE, self._sin_WE))
        groups = self.architecture.heads // self.architecture.kv_heads
        bias_R1QW = attention.bias(self._column_W[:columns], positions_RC, groups)
        write = _written(positions_RC, slots_R, (self.architecture.kv_heads, self.architecture.head_dim))
        for layer, keys_SKEW, values_SKWE in layers:
            q_NHE, k_NKE, v_NKE = self._projected(layer, x_ND, cos_N1E, sin_N1E)
            write(keys_SKEW, values_SKWE, k_NKE, v_NKE)
            keys_RKEW, values_RKWE = attention.looked_at(keys_SKEW, values_SKWE, slots_R, columns)
            y_ND = attention.attended(q_NHE, keys_RKEW, values_RKWE, bias_R1QW)
            x_ND = x_ND + functional.linear(y_ND, layer.out, layer.out_bias)
            gate_up = functional.linear(self._normed(x_ND, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, dim=-1)
            x_ND = x_ND + functional.linear(functional.silu(gate) * up, layer.down, layer.down_bias)
        return x_ND

    def _equal_in(self, sizes: Sequence[int]) -> Set[int]:
        """The sizes in which the first layer gives rows the bits that it gives them among all, over random keys and
        values; the other layers have its shapes.
        """
        random = torch.Generator().manual_seed(0)
        equal = set(sizes)
        for _ in range(ROW_PROOFS):
            equal &= self._drawn_equal_in(sizes, random)
        return equal

    def _drawn_equal_in(self, sizes: Sequence[int], random: torch.Generator) -> Set[int]:
        """Empty where the weights make nothing of a row, which would prove nothing."""
        a, slots, columns = self.architecture, self.layout.slots, self.layout.columns
        x_SD = torch.randn(slots, a.hidden_size, generator=random)
        keys_SKEW = torch.randn(slots, a.kv_heads, a.head_dim, columns, generator=random)
        values_SKWE = torch.randn(slots, a.kv_heads, columns, a.head_dim, generator=random)
        positions_S1 = torch.randint(0, self.scratch_position, (slots, 1), generator=random)
        order_S = torch.randperm(slots, generator=random)

        def passed(x_ND: Tensor, slots_R: Tensor | None, positions_R1: Tensor) -> Tensor:
            layer = (self._weights.layers[0], keys_SKEW, values_SKWE)
            x_ND = self._through([layer], x_ND, slots_R, positions_R1, columns)
            return self._normed(x_ND, self._weights.final_norm_D)

        def alone(slots_R: Tensor) -> Tensor:
            return passed(x_SD[slots_R], slots_R, positions_S1[slots_R])

        every_SD = passed(x_SD, None, positions_S1)
        if not every_SD.std(dim=0).gt(0).all():
            return set()
        return {size for size in sizes if torch.equal(alone(order_S[:size]), every_SD[order_S[:size]])}

    def _projected(
        self, layer: LayerWeights, x_ND: Tensor, cos_N1E: Tensor, sin_N1E: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads, head_dim = self.architecture.heads, self.architecture.kv_heads, self.architecture.head_dim
        joined_NX = functional.linear(self._normed(x_ND, layer.input_norm), layer.qkv, layer.qkv_bias)
        qk_NXE, v_NKE = joined_NX.unflatten(-1, (-1, head_dim)).split((heads + kv_heads, kv_heads), dim=1)
        if layer.qk_norm is not None:
            normed_NXE = functional.rms_norm(qk_NXE.float(), (head_dim,), eps=self.architecture.norm_eps)
            qk_NXE = (normed_NXE * layer.qk_norm).to(qk_NXE.dtype)
        qk_NXE = qk_NXE * cos_N1E + qk_NXE.roll(head_dim // 2, dims=-1) * sin_N1E
        q_NHE, k_NKE = qk_NXE.split((heads, kv_heads), dim=1)
        return q_NHE if self._scale_in_norm else q_NHE * head_dim**-0.5, k_NKE, v_NKE

    def _placed(self, values_N: IntArray, at_N: IntArray, rows: int, *, filler: int) -> Tensor:
        """These at their places among so many."""
        placed_R = np.full(rows, filler)
        placed_R[at_N] = values_N
        return torch.from_numpy(placed_R).to(self.device)

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
