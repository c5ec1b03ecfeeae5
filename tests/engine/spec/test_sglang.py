"""What a run may say of its SGLang servers, and what is refused with the remedy."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.launch.sample_model import make_sample_model
from engine.loop.generator_requirements import SGLANG_PYTHON, lacking_in_generator
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec

URL = "http://127.0.0.1:30000"
MODEL = {"kind": "pretrained", "path": "tiny"}


def document(sglang: dict[str, Any], **tables: Any) -> dict[str, Any]:
    return {"name": "a run", "model": MODEL, "resources": {"generator": "sglang", "sglang": sglang}} | tables


@pytest.mark.parametrize(
    ("given", "field", "remedy"),
    [
        (document({}, model={"kind": "builtin"}), "resources.generator", "pretrained"),
        (document({"urls": ["file:///etc"], "weights": "tensor"}), "resources.sglang.urls.0", ""),
        (document({"urls": [URL, URL], "weights": "tensor"}), "resources.sglang.urls", "each once"),
        (document({"urls": [URL]}), "resources.sglang.exchange_folder", "tensor"),
        (document({"urls": [URL], "servers": 2}), "resources.sglang.servers", "remove servers"),
        (document({"flags": ["page-size=16", "trust-remote-code"]}), "resources.sglang.flags.1", "use some of"),
        (document({"flags": ["page-size=1; rm -rf"]}), "resources.sglang.flags.0", ""),
        (document({"python": "/bin/sh"}), "resources.sglang.python", ""),
        (document({"weights": "pigeon"}), "resources.sglang.weights", "disk"),
        (
            document({}, schedule={"logprobs_at": "sampling", "temperature": 0.5}),
            "resources.sglang.logprobs_at",
            'use "sampling"',
        ),
        (
            document(
                {"logprobs_at": "sampling"},
                schedule={"logprobs_at": "sampling", "temperature": 0.5},
                evaluation={"temperature": 0.7},
            ),
            "evaluation.temperature",
            "use 1",
        ),
        (
            document({}, schedule={"logprobs_at": "truncated", "top_k": 5}, recipe={"preset": "cleaner"}),
            "schedule.logprobs_at",
            'use "one"',
        ),
    ],
)
def test_what_servers_cannot_do_is_refused_with_the_remedy(given: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RunSpec.model_validate(given)
    [problem] = problems_in(refused.value, RunSpec)
    assert problem.field == field
    assert remedy in problem.remedy
    assert problem.remedy


def test_what_they_can_do_is_taken() -> None:
    RunSpec.model_validate(document({"servers": 4, "tensor_parallel": 2, "flags": ["page-size=16"]}))
    RunSpec.model_validate(document({"urls": [URL], "exchange_folder": "/shared"}))
    RunSpec.model_validate(
        document({"logprobs_at": "sampling"}, schedule={"logprobs_at": "sampling", "temperature": 0.5})
    )
    RunSpec.model_validate(document({}, schedule={"logprobs_at": "truncated", "top_k": 5, "temperature": 0.5}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    make_sample_model(made, seed=0)
    return made


def lacking(folder: Path, sglang: dict[str, Any]) -> list[tuple[str, str, str]]:
    spec = RunSpec.model_validate(document(sglang, model=MODEL | {"path": str(folder)}))
    return [(problem.field, problem.message, problem.remedy) for problem in lacking_in_generator(spec)]


def test_an_interpreter_without_sglang_is_named_before_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SGLANG_PYTHON, "/nowhere/python")
    [(field, message, remedy)] = lacking(folder, {})
    assert (field, message) == ("resources.generator", "/nowhere/python does not exist")
    assert SGLANG_PYTHON in remedy
    monkeypatch.delenv(SGLANG_PYTHON)
    assert "has no SGLang" in lacking(folder, {})[0][1]
    assert lacking(folder, {"urls": [URL], "weights": "tensor"}) == []


def test_heads_that_do_not_divide_and_relative_folders_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.loop.generator_requirements._has_sglang", lambda _: True)
    [(field, message, remedy)] = lacking(folder, {"tensor_parallel": 3})
    assert (field, remedy) == ("resources.sglang.tensor_parallel", "use one of: 1, 2, 4")
    assert "4 attention heads" in message
    [(field, _, _)] = lacking(folder, {"exchange_folder": "weights"})
    assert field == "resources.sglang.exchange_folder"
    assert lacking(folder, {"tensor_parallel": 2}) == []
