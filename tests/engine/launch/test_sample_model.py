"""The model of the pretrained sample: what ``python -m engine make-model`` writes."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from engine.launch.preflight import BadSpec
from engine.launch.sample_model import make_sample_model
from engine.models.pretrained_tokenizer import PretrainedTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "sample"
    make_sample_model(made, seed=0)
    return made


def test_it_has_one_to_five_million_parameters(folder: Path) -> None:
    counted = sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    assert 1_000_000 <= counted <= 5_000_000


def test_each_digit_is_a_token_of_its_own(folder: Path) -> None:
    tokenizer = PretrainedTokenizer(folder)
    assert tokenizer.pieces(tokenizer.encode("715+505=?")) == ["7", "1", "5", "+", "5", "0", "5", "=?"]


def test_equal_seeds_make_equal_bytes_and_others_other_weights(folder: Path, tmp_path: Path) -> None:
    make_sample_model(tmp_path / "again", seed=0)
    make_sample_model(tmp_path / "other", seed=1)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    weights = "model.safetensors"
    assert (folder / weights).read_bytes() != (tmp_path / "other" / weights).read_bytes()


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(BadSpec, match="exists already"):
        make_sample_model(tmp_path, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
