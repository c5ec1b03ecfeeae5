"""A step leaves out the slots that nobody is in where that changes no bit, and does not where it would."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.inference.torch.decoder import Decoder
from engine.inference.torch.memory import Dtype
from engine.inference.torch.rows import MOST_SIZES, Rows
from engine.models.architecture import Architecture
from tests.engine.inference.torch.cast import SPEC, VOCABULARY, weights

ARCHITECTURE = Architecture.of_builtin(SPEC, VOCABULARY)
SLOTS = 64
LENGTH = 40


def made(*, dtype: Dtype = "float32", proves: bool = True) -> Decoder:
    decoder = Decoder(ARCHITECTURE, context_tokens=SPEC.context_tokens, slots=SLOTS, device="cpu", dtype=dtype)
    decoder.load(weights())
    if not proves:
        decoder._rows = Rows(SLOTS, decoder._equal_in, proves=False)
    return decoder


def played(decoder: Decoder, companies: Sequence[Sequence[int]]) -> dict[int, torch.Tensor]:
    """What each slot's latest step gave, after a step for each of these companies, who read what is theirs."""
    read = [
        torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(slot)) for slot in range(64)
    ]
    reached, hidden = [0] * SLOTS, {}
    for company in companies:
        slots = np.array(company)
        positions = np.array([reached[slot] for slot in company])
        tokens = np.array([int(read[slot][reached[slot]]) for slot in company])
        hidden_SD = decoder.step(slots, tokens, positions)
        assert hidden_SD.shape == (SLOTS, SPEC.hidden_size)
        for slot in company:
            hidden[slot] = hidden_SD[slot]
            reached[slot] += 1
    return hidden


def companies_of(size: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(size)
    return [torch.randperm(SLOTS, generator=random)[:size].tolist() for _ in range(12)]


@pytest.mark.parametrize("size", [1, 3, 12, 16, 29, 33, 64])
def test_every_bit_is_that_of_a_step_of_all_slots(size: int) -> None:
    fewer, every = (played(made(proves=proves), companies_of(size)) for proves in (True, False))
    assert fewer.keys() == every.keys()
    assert all(torch.equal(fewer[slot], every[slot]) for slot in every)


def test_who_comes_and_goes_changes_no_bit_of_those_who_stay() -> None:
    sizes = (1, 60, 5, 20, 2, 33, 16, 64)
    stays = [[7, *[slot for slot in range(SLOTS) if slot != 7][: size - 1]] for size in sizes]
    assert torch.equal(played(made(), stays)[7], played(made(proves=False), [[7]] * len(sizes))[7])


def test_sizes_are_few_reach_to_half_of_the_slots_and_are_tried_once() -> None:
    asked: list[list[int]] = []

    def all_but_8(sizes: Sequence[int]) -> set[int]:
        asked.append(list(sizes))
        return set(sizes) - {8}

    rows = Rows(64, all_but_8, proves=True)
    assert [rows.of(live) for live in (1, 4, 5, 8, 9, 13, 32, 33, 64)] == [4, 4, 12, 12, 12, 16, 32, 64, 64]
    assert asked == [[4, 8, 12, 16, 20, 24, 28, 32]]
    many = Rows(1000, set, proves=True)
    assert len({many.of(live) for live in range(1, 501)} - {1000}) <= MOST_SIZES
    assert {Rows(slots, set, proves=True).of(1) for slots in (1, 2, 7)} == {1, 2, 7}


def test_a_kernel_that_gives_other_bits_for_fewer_rows_is_asked_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(x: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        output = real(x, *others)
        if len(x) == 16:
            output[-1, -1] = torch.nextafter(output[-1, -1], torch.tensor(torch.inf))
        return output

    real = torch.nn.functional.linear
    decoder = made()
    with torch.inference_mode():
        before = decoder._equal_in(range(4, 33, 4))
        monkeypatch.setattr("engine.inference.torch.decoder.functional.linear", linear)
        assert decoder._equal_in(range(4, 33, 4)) == before - {16}


def test_weights_that_make_nothing_of_a_row_prove_nothing() -> None:
    decoder = made()
    decoder._weights.final_norm_D.zero_()
    with torch.inference_mode():
        assert not decoder._equal_in([16])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_not_tried(dtype: Dtype) -> None:
    assert made(dtype=dtype)._rows.of(1) == SLOTS
