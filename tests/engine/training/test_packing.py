"""Packed rows: the same log-probs, losses and gradients as one row for each sample."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.training.backends.registry import trainer_backend
from engine.training.batch import sample_of
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.packing import packed
from tests.engine.models.folders import FAMILIES, folder_of
from tests.engine.training.cast import run_spec

SAMPLES = [
    sample_of([1, *range(20, 20 + length)], [False, *[number % 3 > 0 for number in range(length)]])
    for length in (4, 30, 9, 17, 2, 11)
]
BUILTIN = {"layers": 2, "hidden_size": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate_size": 48}


def made(model: str, **more: Any) -> Any:
    given = (
        BUILTIN | {"context_tokens": 128}
        if model == "builtin"
        else {"kind": "pretrained", "path": str(folder_of(model)), "context_tokens": 128} | more  # type: ignore[arg-type]
    )
    spec = run_spec({}, model=given)
    return trainer_backend(spec.model, spec.resources, seed=spec.seed)


def learned(backend: Any, samples: list[Any]) -> tuple[float, torch.Tensor]:
    loss = backend.forward_backward(samples, [LikelihoodLoss()])
    parameters = backend.network.module.parameters()
    return loss.mean, torch.cat([grad.flatten() for p in parameters if (grad := p.grad) is not None])


@pytest.mark.parametrize("model", ["builtin", *FAMILIES])
@pytest.mark.parametrize("row_tokens", [128, 40])
def test_packed_rows_have_the_loss_and_the_gradient_of_unpacked_ones(model: str, row_tokens: int) -> None:
    rows = packed(SAMPLES, row_tokens=row_tokens)
    assert len(rows) < len(SAMPLES)
    alone, together = learned(made(model), SAMPLES), learned(made(model), rows)
    assert together[0] == pytest.approx(alone[0], abs=1e-5)
    assert torch.allclose(together[1], alone[1], rtol=1e-4, atol=1e-5)


def test_packed_rows_train_an_adapter_as_unpacked_ones_do() -> None:
    lora = {"lora": {"rank": 4, "dropout": 0.0}}
    alone = learned(made("qwen3", **lora), SAMPLES)
    together = learned(made("qwen3", **lora), packed(SAMPLES, row_tokens=99))
    assert together[0] == pytest.approx(alone[0], abs=1e-5)
    assert torch.allclose(together[1], alone[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["builtin", "qwen3"])
def test_no_token_of_a_row_depends_on_its_neighbours(model: str) -> None:
    """Whatever stands before a part, each of its log-probs is the same; joined as one sequence, it would not be."""
    backend = made(model)
    ours, others = SAMPLES[3], (SAMPLES[0], replace(SAMPLES[0], token_ids=SAMPLES[0].token_ids + 7))
    rows = [packed([other, ours], row_tokens=128)[0] for other in others]
    values = [np.asarray(row)[: len(ours)] for row in backend.logprobs(rows)]  # the longest part stands first
    assert np.abs(values[0] - values[1]).max() < 1e-6
    apart, joined = (np.asarray(backend.logprobs([row])[0])[-4:] for row in (rows[0], replace(rows[0], positions=None)))
    assert np.abs(apart - joined).max() > 1e-3


def test_the_rows_hold_every_learned_token_once_and_no_row_is_too_long() -> None:
    rows = packed(SAMPLES, row_tokens=40)
    assert max(map(len, rows)) <= 40
    assert sum(int(row.loss_mask.sum()) for row in rows) == sum(int(sample.loss_mask.sum()) for sample in SAMPLES)
    for row in rows:
        assert row.positions is not None
        assert not row.loss_mask[row.positions == 0].any(), "nothing before a part's first token may predict it"


def test_what_teaches_nothing_takes_no_room_and_what_is_too_long_stands_alone() -> None:
    silent = sample_of([1, 2, 3], [False, False, False])
    rows = packed([silent, SAMPLES[1], SAMPLES[0]], row_tokens=10)
    assert [len(row) for row in rows] == [31, 4]
    assert packed([], row_tokens=10) == packed([silent], row_tokens=10) == []


def test_every_column_goes_with_its_token() -> None:
    """For a policy's update: advantages and old log-probs, and a column that only some samples have."""
    some = replace(SAMPLES[0], advantages=np.arange(5, dtype=np.float32), kept=np.zeros(5, dtype=np.bool_))
    [row] = packed([some, SAMPLES[4]], row_tokens=40)
    assert row.advantages.tolist() == [0, 1, 2, 3, 0, 0, 0], "what follows the last learned token teaches nothing"
    assert row.kept is not None
    assert row.kept.tolist() == [False] * 4 + [True] * 3


def test_segments_and_rows_are_not_packed() -> None:
    with pytest.raises(ValueError, match="segments of one trajectory"):
        packed([replace(SAMPLES[0], trained_tokens=3)], row_tokens=40)
    with pytest.raises(ValueError, match="packed again"):
        packed(packed(SAMPLES[:2], row_tokens=40), row_tokens=40)
    with pytest.raises(ValueError, match="cannot stand in one micro-batch"):
        made("builtin").logprobs([*packed(SAMPLES[:2], row_tokens=40), SAMPLES[2]])
