"""Looking at fewer columns of the cache changes no bit, or is not done."""

import numpy as np
import pytest
import torch

from engine.inference.torch import attention, widths
from engine.inference.torch.decoder import Decoder
from engine.inference.torch.memory import Dtype
from engine.inference.torch.widths import Widths
from engine.models.architecture import Architecture
from tests.engine.inference.torch.cast import SPEC, VOCABULARY, weights

ARCHITECTURE = Architecture.of_builtin(SPEC, VOCABULARY)
SLOTS, COLUMNS = 16, 136
SCRATCH = SPEC.context_tokens


def made(*, dtype: Dtype = "float32", proves: bool) -> Decoder:
    decoder = Decoder(ARCHITECTURE, context_tokens=SPEC.context_tokens, slots=SLOTS, device="cpu", dtype=dtype)
    decoder.load(weights())
    if not proves:
        decoder._widths = Widths(ARCHITECTURE, COLUMNS, SCRATCH, proves=False)
    return decoder


def played(decoder: Decoder) -> list[torch.Tensor]:
    """Prompts, an observation, and steps of which some slots are idle, up to the end of the context."""
    random = torch.Generator().manual_seed(3)
    rows, chunk = decoder.layout.prefill_rows, decoder.layout.prefill_tokens
    tokens = torch.randint(0, VOCABULARY, (rows, chunk), generator=random)
    positions = torch.arange(chunk).repeat(rows, 1)
    decoder.read_prompts(tokens, positions)
    for slot in range(SLOTS):
        decoder.begin(slot, decoder.prefix(slot % rows, chunk))
    decoder.prefill(torch.arange(rows), tokens, positions + chunk)
    hidden = []
    for position in range(2 * chunk, SPEC.context_tokens, 5):
        slots = np.array([slot for slot in range(SLOTS) if slot % 3])
        at = np.where(slots % 3 == 1, position - chunk, position)
        tokens = torch.randint(0, VOCABULARY, slots.shape, generator=random)
        hidden.append(decoder.step(slots, tokens.numpy(), at)[slots])
    return hidden


def asked(last: int) -> torch.Tensor:
    return torch.tensor([[last], [SCRATCH]] + [[0]] * (SLOTS - 2))


def test_every_bit_is_that_of_a_decoder_that_looks_at_all_columns() -> None:
    for fewer, all_of_them in zip(played(made(proves=True)), played(made(proves=False)), strict=True):
        assert torch.equal(fewer, all_of_them)


def test_padding_does_not_widen_a_pass_and_the_last_position_is_looked_at() -> None:
    looked_at = Widths(ARCHITECTURE, COLUMNS, SCRATCH, proves=True)
    for last in (0, 15, 16, 17, 63, 100, SCRATCH - 1):
        assert last < looked_at.of(asked(last), gathers=False) <= COLUMNS
    if looked_at._proven[SLOTS, 1, False]:  # else this machine's kernels give other bits at every width
        assert looked_at.of(asked(0), gathers=False) < COLUMNS


@pytest.mark.parametrize("gathers", [False, True])
def test_a_kernel_that_gives_other_bits_for_fewer_columns_is_asked_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, gathers: bool
) -> None:
    def attended(q_NHE: torch.Tensor, keys_RKEW: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        output = real(q_NHE, keys_RKEW, *others)
        if keys_RKEW.shape[-1] in (32, 64):
            output[-1, -1] = torch.nextafter(output[-1, -1], torch.tensor(torch.inf))
        return output

    real = attention.attended
    before = Widths(ARCHITECTURE, COLUMNS, SCRATCH, proves=True)
    before.of(asked(0), gathers=gathers)
    monkeypatch.setattr(widths, "attended", attended)
    after = Widths(ARCHITECTURE, COLUMNS, SCRATCH, proves=True)
    after.of(asked(0), gathers=gathers)
    assert after._proven[SLOTS, 1, gathers] == [
        width for width in before._proven[SLOTS, 1, gathers] if width not in (32, 64)
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_not_tried(dtype: Dtype) -> None:
    decoder = made(dtype=dtype, proves=True)
    assert decoder._widths.of(asked(3), gathers=False) == COLUMNS


def test_a_long_context_has_sixteen_widths_at_most() -> None:
    few = Widths(ARCHITECTURE, 4104, 4096, proves=True)
    positions = torch.zeros(2, 1, dtype=torch.int64)
    few.of(positions, gathers=False)
    assert len(few._proven[2, 1, False]) <= widths.MOST_WIDTHS
