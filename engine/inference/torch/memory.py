"""How many bytes the torch generator takes, before it takes them.

Everything that is kept is allocated once at its full size: weights, the KV cache of all slots at full context, the rows
in which prompts are read.  Slots do not grow with need, because passes of another shape may sum in another order, and
then what a session samples would depend on its company (engine/inference/torch/decoder.py, widths.py).

This module computes with numbers only; it asks no device.
"""

from dataclasses import dataclass
from typing import Literal

from engine.models.architecture import Architecture
from engine.models.memory import readable_bytes
from engine.spec.problems import Problem

Dtype = Literal["float32", "bfloat16", "float16"]
BYTES_OF: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

PREFILL_ROWS = 8
"""Prompts, or long observations, that are read at once where that costs little."""
PREFILL_TOKENS = 16
"""The tokens of each of them in one pass.  Where fewer are read at once, more tokens of each are: a pass has as many in
all."""
PREFILL_BYTES = 256 * 2**20
"""Up to which PREFILL_ROWS rows cost little; beyond it there is one for four slots."""
LOGITS_BYTES = 256 * 2**20
"""What logits and all that sampling makes of them may take at once; one row is computed in any case."""
BYTES_PER_LOGIT = 64
"""The bytes of one logit while it is sampled from: itself, scaled, its probability, float64 sums, and the order of
truncation."""
PROCESS_BYTES = 256 * 2**20
"""What a decoder's own process takes before it holds anything: the interpreter and torch."""
SHORTEST_CONTEXT = 16
"""Below which no context is offered as a remedy; `model.context_tokens` takes no smaller one."""
_COLUMN_MULTIPLE = 8
_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """The shapes in which a generator computes.  They follow from these four alone and never change while it lives."""

    architecture: Architecture
    context_tokens: int
    slots: int
    dtype: Dtype = "float32"

    @property
    def columns(self) -> int:
        """The width of a cache row: one more than the context is long, for padding, and then as many as make aligned
        rows."""
        return -(-(self.context_tokens + 1) // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        a = self.architecture
        return a.layers * a.kv_heads * a.head_dim * 2 * BYTES_OF[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Keys and values of a row of the cache, which one slot has."""
        return self.columns * self.bytes_per_token

    @property
    def prefill_rows(self) -> int:
        if PREFILL_ROWS * self.row_bytes <= PREFILL_BYTES:
            return PREFILL_ROWS
        return min(max(self.slots // 4, 1), PREFILL_ROWS)

    @property
    def prefill_tokens(self) -> int:
        return PREFILL_ROWS * PREFILL_TOKENS // self.prefill_rows

    @property
    def kept_prompts(self) -> int:
        """Prompts that are kept at most."""
        return max(self.slots, self.prefill_rows)

    @property
    def kept_prompt_tokens(self) -> int:
        """Tokens of prompts that are kept at most: a quarter of the slots full, or what one reading takes."""
        return max(self.slots // 4, self.prefill_rows) * self.context_tokens

    @property
    def logit_rows(self) -> int:
        """Rows whose logits are computed at once: the slots in as few equal blocks as LOGITS_BYTES leaves room for."""
        most = max(LOGITS_BYTES // (self.architecture.vocab_size * BYTES_PER_LOGIT), 1)
        blocks = -(-self.slots // most)
        return -(-self.slots // blocks)


@dataclass(frozen=True, slots=True)
class GeneratorMemory:
    """Bytes of one torch generator, by what they are for."""

    weights: int
    kv_cache: int
    """Keys and values of all slots."""
    prompts: int
    """Keys and values of the prompts that are being read and of those kept for others that begin with them."""
    scratch: int
    """An upper bound of what a pass takes and gives back: scores, activations, logits; and the tables of positions."""

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.prompts + self.scratch

    def __str__(self) -> str:
        parts = (
            f"{name.replace('_', ' ')} {readable_bytes(getattr(self, name))}" for name in self.__dataclass_fields__
        )
        return f"{' + '.join(parts)} = {readable_bytes(self.total)}"


def memory_of(
    architecture: Architecture, *, context_tokens: int, slots: int, dtype: Dtype = "float32"
) -> GeneratorMemory:
    """Return what a generator with so many slots takes on its device."""
    layout = Layout(architecture, context_tokens, slots, dtype)
    return GeneratorMemory(
        weights=architecture.parameters * BYTES_OF[dtype],
        kv_cache=slots * layout.row_bytes,
        prompts=layout.prefill_rows * layout.row_bytes + layout.kept_prompt_tokens * layout.bytes_per_token,
        scratch=_scratch(layout),
    )


def slots_within(architecture: Architecture, *, context_tokens: int, dtype: Dtype, budget_bytes: int) -> int:
    """The most slots whose keys and values fit into the budget; 0 where not one does."""
    return budget_bytes // Layout(architecture, context_tokens, 1, dtype).row_bytes


def divided_bytes(
    architecture: Architecture, *, context_tokens: int, slots: int, dtype: Dtype = "float32", decoders: int = 1
) -> int:
    """Return what a generator takes whose slots are divided among so many processes; 1: what it takes in its own."""
    each = memory_of(architecture, context_tokens=context_tokens, slots=-(-slots // decoders), dtype=dtype).total
    return each if decoders == 1 else decoders * (each + PROCESS_BYTES)


def lacking_memory(
    architecture: Architecture,
    *,
    context_tokens: int,
    slots: int,
    dtype: Dtype,
    free_bytes: int,
    decoders: int = 1,
    generators: int = 1,
) -> Problem | None:
    """Return what preflight says where ``generators`` do not fit into ``free_bytes``; None where they do.

    The remedy names the most slots that fit, and a context that fits with as many slots as asked for.
    """

    def fits(some_slots: int, tokens: int) -> bool:
        taken = divided_bytes(architecture, context_tokens=tokens, slots=some_slots, dtype=dtype, decoders=decoders)
        return generators * taken <= free_bytes

    if fits(slots, context_tokens):
        return None
    memory = memory_of(architecture, context_tokens=context_tokens, slots=-(-slots // decoders), dtype=dtype)
    process = f" and {readable_bytes(PROCESS_BYTES)} of its process, {decoders} times" if decoders > 1 else ""

    step = -(-context_tokens // 64)
    fewer = next((some for some in range(slots - 1, decoders - 1, -1) if fits(some, context_tokens)), 0)
    shorter = next((tokens for tokens in range(context_tokens - step, 0, -step) if fits(slots, tokens)), 0)
    remedies = ["lower resources.decoders"] * (decoders > 1)
    remedies += [f"lower resources.kv_slots to {fewer}"] * bool(fewer)
    remedies += [f"lower model.context_tokens to {shorter}"] * (shorter >= SHORTEST_CONTEXT)
    remedies += ["use fewer resources.generators"] * (generators > 1)
    whose = "the generator takes" if generators == 1 else f"each of {generators} generators takes"
    return Problem(
        "resources.kv_slots",
        slots,
        f"{whose} {memory}{process}; this machine has {readable_bytes(free_bytes)} free",
        " or ".join(remedies) or "use a smaller model, or more memory",
    )


def _scratch(layout: Layout) -> int:
    a, columns, size = layout.architecture, layout.columns, BYTES_OF[layout.dtype]
    tables = columns * (2 * a.head_dim * _FLOAT32 + 8)
    queries = max(layout.slots, PREFILL_ROWS * PREFILL_TOKENS)
    # The product, its sum with the bias, the softmax and its cast; the bias per group, with its mask.
    scores = queries * columns * (a.heads * (2 * size + 2 * _FLOAT32) + (a.heads // a.kv_heads + 2) * _FLOAT32)
    # A prefill reads its slots' rows of one layer as copies; the products take contiguous ones.
    rows = max(layout.slots, layout.prefill_rows)
    gathered = 2 * rows * columns * a.kv_heads * a.head_dim * 2 * size
    widest = 4 * a.intermediate_size + 6 * (a.heads + 2 * a.kv_heads) * a.head_dim + 4 * a.hidden_size
    logits = layout.logit_rows * a.vocab_size * BYTES_PER_LOGIT
    return tables + scores + gathered + queries * widest * _FLOAT32 + logits
