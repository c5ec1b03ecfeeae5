"""Weights that are no numbers are named by file and tensor, whatever the type, the place and the size of a slice."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models import finite_weights
from engine.models.finite_weights import nonfinite_problem, read_weights
from engine.models.folder import opened_folder
from tests.engine.models.folders import folder_of

UP, FILE = "model.layers.1.mlp.up_proj.weight", "model.safetensors"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder_of("qwen3"), tmp_path / "model"))


def spoilt(folder: Path, value: float, *names: str, dtype: torch.dtype = torch.float32) -> Path:
    """The last element of each of these tensors is another one."""
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / FILE).items()}
    for name in names:
        tensors[name].view(-1)[-1] = value
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Inf"), (-float("inf"), "Inf")]
)  # fmt: skip
def test_one_element_that_is_no_number_is_named_in_every_type(
    folder: Path, dtype: str, value: float, word: str
) -> None:
    opened = opened_folder(spoilt(folder, value, UP, dtype=DTYPES[dtype]))
    assert opened.tensors[UP].dtype == dtype
    assert nonfinite_problem(opened) == f"{FILE}: {UP} holds {word}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_and_the_smallest_numbers_are_numbers(folder: Path, dtype: str) -> None:
    bounds = torch.finfo(DTYPES[dtype])
    for value in (bounds.max, bounds.min, bounds.tiny, -0.0, bounds.smallest_normal / 2):
        assert nonfinite_problem(opened_folder(spoilt(folder, value, UP, dtype=DTYPES[dtype]))) is None


def test_others_are_counted_and_a_mended_file_is_read_anew(folder: Path) -> None:
    names = [UP, "model.norm.weight", "model.layers.0.mlp.up_proj.weight"]
    found = nonfinite_problem(opened_folder(spoilt(folder, float("nan"), *names)))
    assert found is not None
    assert found.endswith(", and 2 other weights hold NaN or Inf too")
    shutil.copy(folder_of("qwen3") / FILE, folder / FILE)
    assert nonfinite_problem(opened_folder(folder)) is None


def test_files_are_read_once_by_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opened_folder(folder)
    assert nonfinite_problem(opened) is None
    monkeypatch.setattr(finite_weights, "read_weights", lambda _: pytest.fail("read again"))
    assert nonfinite_problem(opened_folder(folder)) is None


def test_a_tensor_is_read_piece_by_piece_to_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite_weights, "PIECE_BYTES", 100)  # no multiple of 8, and less than any matrix has
    for dtype in DTYPES.values():
        opened = opened_folder(spoilt(folder, float("inf"), UP, dtype=dtype))
        assert read_weights(opened).problem == f"{FILE}: {UP} holds Inf"


def test_slices_together_read_every_weight_once(folder: Path) -> None:
    opened, done, problems, slices = opened_folder(spoilt(folder, float("nan"), UP)), 0, [], 0
    while True:
        read = read_weights(opened, after_bytes=done, seconds=0)
        assert done < read.bytes_done <= read.bytes
        problems += [read.problem] if read.problem else []
        done, slices = read.bytes_done, slices + 1
        if done == read.bytes:
            break
    assert read.bytes == 4 * opened.parameters
    assert problems == [f"{FILE}: {UP} holds NaN"]
    assert slices == len(opened.tensors)
