"""Hugging Face's tensors become Megatron's parameters, on any number of tensor ranks, and come back bit by bit."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine.models.folder import opened_folder
from engine.training.backends.megatron.layout import Shape
from engine.training.backends.megatron.names import parameters_of
from tests.engine.models.folders import FAMILIES, folder_of, other_folder

FOLDERS = [*FAMILIES, "qwen3-moe", "tied"]


def folder(name: str) -> Path:
    if name == "tied":
        return folder_of("qwen2.5", tied=True)
    return other_folder("qwen3-moe") if name == "qwen3-moe" else folder_of(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", FOLDERS)
def test_every_tensor_of_a_folder_goes_in_and_comes_out_bit_by_bit(name: str, ranks: int) -> None:
    opened = opened_folder(folder(name))
    seen = {}
    for parameter in parameters_of(Shape.of_config(opened.config)):
        with safe_open(opened.tensors[parameter.tensors[0]].file, framework="pt") as file:
            given = [file.get_tensor(tensor) for tensor in parameter.tensors]
        whole = parameter.joined(given)
        if parameter.cut is not None:
            parts = parameter.cut.divided(whole, ranks)
            assert [len(parts), sum(part.numel() for part in parts)] == [ranks, whole.numel()]
            assert torch.equal(parameter.cut.put_together(parts), whole)
        assert all(map(torch.equal, parameter.taken_apart(whole), given))
        seen |= dict.fromkeys(parameter.tensors)
    assert seen.keys() == opened.tensors.keys(), "no tensor is left out, and none made up"


def test_a_tensor_rank_has_whole_groups_of_heads() -> None:
    """Its queries are those of its key heads: four heads of eight rows, two key heads, two ranks."""
    shape = Shape.of_config(opened_folder(folder_of("qwen3")).config)
    qkv = next(parameter for parameter in parameters_of(shape) if "linear_qkv" in parameter.name)
    query, key, value = torch.arange(32.0), 100 + torch.arange(16.0), 200 + torch.arange(16.0)
    assert qkv.cut is not None
    second = qkv.cut.divided(qkv.joined([query, key, value]), 2)[1]
    assert torch.equal(second, torch.cat([query[16:], key[8:], value[8:]]))


def test_a_tensor_rank_has_the_same_rows_of_both_halves_of_the_mlp() -> None:
    shape = Shape.of_config(opened_folder(folder_of("qwen3")).config)
    both = next(parameter for parameter in parameters_of(shape) if "linear_fc1" in parameter.name)
    gate, up = torch.arange(6.0), 10 + torch.arange(6.0)
    assert both.cut is not None
    assert both.cut.divided(both.joined([gate, up]), 3)[1].tolist() == [2, 3, 12, 13]
