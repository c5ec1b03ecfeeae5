"""What a run may say of its model: one of three kinds, and a document that says none means the built-in one."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.model import BuiltinModel, CheckpointModel, Lora, PretrainedModel
from engine.spec.problems import Problem, problems_in
from engine.spec.run import RunSpec


def model_of(model: Any) -> Any:
    return RunSpec.model_validate({"name": "x", "model": model}).model


def refused(model: dict[str, Any]) -> Problem:
    with pytest.raises(ValidationError) as error:
        model_of(model)
    [problem] = problems_in(error.value, RunSpec)
    return problem


def test_a_document_without_a_kind_is_about_the_built_in_model() -> None:
    assert model_of({"layers": 3}) == BuiltinModel(layers=3)
    assert model_of({}) == RunSpec(name="x").model == BuiltinModel()


@pytest.mark.parametrize("world", ["household", "sokoban"])
def test_a_pretrained_model_has_no_vocabulary_of_ours(world: str) -> None:
    document = {"name": "x", "environment": {"id": world}, "model": {"kind": "pretrained", "path": "q"}}
    assert RunSpec.model_validate(document).model == PretrainedModel(path="q")
    without = {"name": "x", "environment": {"id": world}}
    assert RunSpec.model_validate(without).model == BuiltinModel(vocabulary=world)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "pretrained", "path": "q", "lora": {"rank": 2, "targets": "q_proj"}, "dtype": "float16"},
        {"kind": "pretrained", "hub": "org/name", "revision": "main"},
        {"kind": "pretrained", "catalog": "name@3"},
        {"kind": "checkpoint", "run": "a run", "step": 3, "lora": {}},
    ],
)
def test_every_kind_travels_as_json(model: dict[str, Any]) -> None:
    spec = RunSpec.model_validate({"name": "x", "model": model})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.model.kind == model["kind"]


def test_one_target_needs_no_list() -> None:
    assert Lora(targets="q_proj").targets == ["q_proj"]  # type: ignore[arg-type]
    assert Lora(targets="all-linear") == Lora()  # type: ignore[arg-type]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "pretrained"}, "model.path", "exactly one of path, catalog and hub, not 0"),
    ({"kind": "pretrained", "path": "q", "hub": "a/b"}, "model.path", "not 2"),
    ({"kind": "pretrained", "path": "q", "revision": "main"}, "model.revision", "only a model of the hub"),
    ({"kind": "pretrained", "path": ""}, "model.path", "at least 1"),
    ({"kind": "pretrained", "path": "a\nb"}, "model.path", "pattern"),
    ({"kind": "pretrained", "path": "a\0b"}, "model.path", "pattern"),
    ({"kind": "pretrained", "hub": "../../etc"}, "model.hub", "pattern"),
    ({"kind": "pretrained", "hub": "a/b", "revision": "--upload-pack=x"}, "model.revision", "pattern"),
    ({"kind": "pretrained", "catalog": "name"}, "model.catalog", "pattern"),
    ({"kind": "pretrained", "path": "q", "layers": 2}, "model.layers", "Extra"),
    ({"kind": "pretrained", "path": "q", "dtype": "int8"}, "model.dtype", "'float32', 'bfloat16' or 'float16'"),
    ({"kind": "pretrained", "path": "q", "context_tokens": 2**40}, "model.context_tokens", "less than or equal"),
    ({"kind": "pretrained", "path": "q", "lora": {"targets": []}}, "model.lora.targets", "nothing would be trained"),
    (
        {"kind": "pretrained", "path": "q", "lora": {"targets": ["all-linear", "q"]}},
        "model.lora.targets",
        "every linear",
    ),
    ({"kind": "pretrained", "path": "q", "lora": {"rank": 0}}, "model.lora.rank", "greater than or equal"),
    ({"kind": "pretrained", "path": "q", "lora": {"dropout": 1}}, "model.lora.dropout", "less than 1"),
    ({"kind": "checkpoint"}, "model.run", "required"),
    ({"kind": "checkpoint", "run": "a", "path": "q"}, "model.path", "Extra"),
    ({"kind": "downloaded"}, "model.kind", "does not match"),
]


@pytest.mark.parametrize(("model", "field", "reported"), REFUSED)
def test_what_makes_no_sense_is_refused_by_its_field(model: dict[str, Any], field: str, reported: str) -> None:
    problem = refused(model)
    assert problem.field == field
    assert reported in problem.message
    assert problem.remedy


def test_a_checkpoint_changes_nothing_that_it_does_not_name() -> None:
    named = {"kind", "run", "step"}
    assert all(
        getattr(CheckpointModel(run="a"), name) is None for name in CheckpointModel.model_fields if name not in named
    )
