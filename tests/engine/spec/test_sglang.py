"""What a run may say of its SGLang servers, and what is refused with the remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.launch.sample_model import make_sample_model
from engine.loop.generator_requirements import SGLANG_PYTHON, lacking_in_generator
from engine.models.origin import model_origin
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from tests.engine.models.folders import folder_of, other_folder

URL = "http://127.0.0.1:30000"
MODEL = {"kind": "pretrained", "path": "tiny"}
ADAPTED = MODEL | {"lora": {"rank": 4}}


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
        (document({"weights": "broadcast"}, model=ADAPTED), "resources.sglang.weights", "merged"),
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
    RunSpec.model_validate(document({"weights": "broadcast", "lora": "merged"}, model=ADAPTED))
    RunSpec.model_validate(document({"weights": "tensor"}, model=ADAPTED))
    RunSpec.model_validate(
        document({"logprobs_at": "sampling"}, schedule={"logprobs_at": "sampling", "temperature": 0.5})
    )
    RunSpec.model_validate(document({}, schedule={"logprobs_at": "truncated", "top_k": 5, "temperature": 0.5}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    make_sample_model(made, seed=0)
    return made


def lacking(folder: Path, sglang: dict[str, Any], **of_model: Any) -> list[tuple[str, str, str]]:
    spec = RunSpec.model_validate(document(sglang, model=MODEL | {"path": str(folder), **of_model}))
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


def test_an_adapter_goes_to_the_generator_alone_only_where_servers_get_it_so(folder: Path) -> None:
    def sends(sglang: dict[str, Any], **tables: Any) -> bool:
        spec = RunSpec.model_validate(document(sglang, **tables))
        return spec.resources.sends_adapter_of(spec.model)

    assert sends({}, model=ADAPTED)
    assert not sends({"lora": "merged"}, model=ADAPTED)
    assert not sends({})
    torch_run = RunSpec.model_validate({"name": "a run", "model": ADAPTED})
    assert not torch_run.resources.sends_adapter_of(torch_run.model)


def test_adapters_that_servers_cannot_compute_are_named_before_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("engine.loop.generator_requirements._has_sglang", lambda _: True)
    assert lacking(folder, {}, lora={"rank": 4}) == []
    assert lacking(other_folder("qwen3-moe"), {}, lora={"rank": 2}) == [], "experts get none, attention does"
    untied = folder_of("qwen3")
    with_head = {"rank": 2, "targets": ["q_proj", "lm_head"]}
    [(field, message, remedy)] = lacking(untied, {}, lora=with_head)
    assert field == "resources.sglang.lora"
    assert "adapts lm_head" in message
    assert "merged" in remedy
    assert lacking(untied, {"lora": "merged"}, lora=with_head) == []
    monkeypatch.setattr("engine.loop.generator_requirements.is_mixture", lambda _: True)
    [(_, message, _)] = lacking(untied, {}, lora={"rank": 2})
    assert "adapts down_proj, gate_proj, up_proj" in message


def test_a_run_that_begins_with_an_adapter_apart_is_told_that_servers_lack_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("engine.loop.generator_requirements._has_sglang", lambda _: True)
    spec = RunSpec.model_validate(document({}, model=ADAPTED | {"path": str(folder)}))
    begun = replace(model_origin(spec.model), adapter=tmp_path)
    monkeypatch.setattr("engine.loop.generator_requirements.model_origin", lambda _: begun)
    [problem] = lacking_in_generator(spec)
    assert (problem.field, problem.value) == ("resources.sglang.lora", "adapter")
    assert str(tmp_path) in problem.message
