"""Where a policy comes from: below the models folder, by an absolute path, or from another run."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.models.origin import model_origin, pinned
from engine.models.refusal import ModelFolderRefused
from engine.spec.model import BuiltinModel, CheckpointModel, Lora, PretrainedModel
from engine.spec.run import RunSpec


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path))
    monkeypatch.delenv("PALESTRA_MODELS", raising=False)
    monkeypatch.delenv("PALESTRA_RUNS", raising=False)
    (tmp_path / "models").mkdir()
    return tmp_path


def checkpoint(home: Path, step: int = 10, *, run: str = "runs/a1", model: dict[str, Any] | None = None) -> Path:
    spec = RunSpec.model_validate({"name": "x", "model": model or {"layers": 3}})
    folder = home / run / "checkpoints" / f"step-{step:06d}"
    (folder / "model").mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"spec": spec.model_dump(mode="json")}))
    return folder


PRETRAINED = {"kind": "pretrained", "path": "/models/q", "context_tokens": 512, "lora": {"rank": 4}}


def test_a_built_in_model_comes_from_nowhere() -> None:
    origin = model_origin(BuiltinModel())
    assert (origin.weights, origin.adapter) == (None, None)


def test_a_relative_path_is_below_the_models_folder_and_an_absolute_one_is_itself(home: Path) -> None:
    assert model_origin(PretrainedModel(path="q/three")).weights == home / "models" / "q" / "three"
    assert model_origin(PretrainedModel(path="/q")).weights == Path("/q")


@pytest.mark.parametrize("path", ["../runs/a1", "a/../../x", "link/x"])
def test_no_relative_path_leads_out_of_the_models_folder(home: Path, path: str) -> None:
    (home / "models" / "link").symlink_to(home)
    with pytest.raises(ModelFolderRefused, match=r"model\.path.*leads out"):
        model_origin(PretrainedModel(path=path))


@pytest.mark.parametrize(
    ("model", "field"), [({"hub": "org/name", "revision": "main"}, "hub"), ({"catalog": "name@1"}, "catalog")]
)
def test_what_is_not_on_this_machine_is_refused_with_what_to_do(model: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFolderRefused) as refused:
        model_origin(PretrainedModel(**model))
    assert refused.value.problem.field == f"model.{field}"
    assert "model.path" in refused.value.problem.remedy


def test_a_checkpoint_of_a_built_in_model_is_that_model_with_its_weights(home: Path) -> None:
    folder = checkpoint(home)
    origin = model_origin(CheckpointModel(run="a1", context_tokens=256))
    assert origin.model == BuiltinModel(layers=3, context_tokens=256)
    assert origin.weights == folder / "model"


def test_the_newest_checkpoint_counts_unless_a_step_is_named(home: Path) -> None:
    first, newest = checkpoint(home, 10), checkpoint(home, 20)
    assert model_origin(CheckpointModel(run="a1")).weights == newest / "model"
    assert model_origin(CheckpointModel(run="a1", step=10)).weights == first / "model"


def test_a_merged_checkpoint_begins_without_the_other_runs_adapter(home: Path) -> None:
    folder = checkpoint(home, model=PRETRAINED)
    origin = model_origin(CheckpointModel(run="a1"))
    assert origin.model == PretrainedModel(path=str(folder / "model"), context_tokens=512)
    assert (origin.weights, origin.adapter) == (folder / "model", None)


def test_an_adapter_apart_is_added_to_the_model_that_it_was_trained_on(home: Path) -> None:
    folder = checkpoint(home, model=PRETRAINED)
    (folder / "model" / "adapter_config.json").write_text("{}")
    origin = model_origin(CheckpointModel(run="a1", lora=Lora(rank=2), dtype="bfloat16"))
    assert (origin.weights, origin.adapter) == (Path("/models/q"), folder / "model")
    assert isinstance(origin.model, PretrainedModel)
    assert (origin.model.lora, origin.model.dtype) == (Lora(rank=2), "bfloat16")


def test_checkpoints_of_checkpoints_lead_to_their_model(home: Path) -> None:
    checkpoint(home)
    checkpoint(home, run="runs/b2", model={"kind": "checkpoint", "run": "a1"})
    assert model_origin(CheckpointModel(run="b2")).model == BuiltinModel(layers=3)


@pytest.mark.parametrize(
    ("model", "reported"),
    [
        ({"run": "nobody"}, "no such run"),
        ({"run": "../../etc"}, "no such run"),
        ({"run": "."}, "no such run"),
        ({"run": "/nowhere"}, "cannot be read"),
        ({"run": "a1", "step": 11}, "use one of: 10"),
        ({"run": "a1", "lora": {"rank": 1}}, "built-in model, which has no such field"),
    ],
)
def test_a_run_or_step_that_is_not_there_is_refused(home: Path, model: dict[str, Any], reported: str) -> None:
    checkpoint(home)
    with pytest.raises(ModelFolderRefused, match=reported):
        model_origin(CheckpointModel.model_validate(model))


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"spec": {"model": {"kind": "other"}}}'])
def test_a_checkpoint_whose_state_says_nothing_is_refused(home: Path, state: str) -> None:
    (checkpoint(home) / "state.json").write_text(state)
    with pytest.raises(ModelFolderRefused, match="no model that is known"):
        model_origin(CheckpointModel(run="a1"))


def test_pinned_once_the_newest_stays_what_it_was(home: Path) -> None:
    first = checkpoint(home, 10)
    meant = pinned(CheckpointModel(run="a1"), anywhere=False)
    checkpoint(home, 20)
    assert model_origin(meant).weights == first / "model"
    assert pinned(meant, anywhere=True) == meant


@pytest.mark.parametrize("model", [PretrainedModel(path="/etc"), CheckpointModel(run="/home/x")])
def test_the_services_engine_takes_no_absolute_path(model: Any) -> None:
    with pytest.raises(ModelFolderRefused, match="absolute path"):
        pinned(model, anywhere=False)
