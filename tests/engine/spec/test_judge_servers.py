"""What a run may say of the servers of its judge, and what is refused with the remedy."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.launch.preflight import BadSpec, with_pinned_model
from engine.loop.generator_requirements import SGLANG_PYTHON
from engine.loop.requirements import lacking
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from tests.engine.models.folders import folder_of

OWN = {"endpoint": "resources.judge", "model": "judge"}
SERVERS = {"path": "a-judge"}


def document(judge: dict[str, Any] | None = None, *, asked: dict[str, Any] | None = None, **tables: Any) -> Any:
    """A run whose turns are judged by ``asked``."""
    credit = {"kind": "attribution"} | ({"judge": {"kind": "llm", **asked}} if asked else {})
    return {"name": "a run", "recipe": {"credit": credit}, "resources": {"judge": judge}} | tables


def by_rubric(judge: dict[str, Any]) -> dict[str, Any]:
    rubric = {"kind": "rubric", "rubric": "Is it right?", "judge": judge}
    components = [{"name": "style", "verifier": rubric}]
    return {"environment": {"id": "qa", "components": components}, "dataset": {"folder": "rows"}}


@pytest.mark.parametrize(
    ("given", "field", "remedy"),
    [
        (document(None, asked=OWN), "recipe.credit.judge.endpoint", "resources.judge with a path or a version of the"),
        (
            document(None, **by_rubric(OWN), recipe={}),
            "environment.components.0.verifier.judge.endpoint",
            "resources.judge",
        ),
        (document(SERVERS), "resources.judge", "endpoint"),
        (document(SERVERS, asked={"endpoint": "http://j:1/v1", "model": "m"}), "resources.judge", "remove it"),
        (
            document(SERVERS, asked=OWN | {"api_key_variable": "PALESTRA_JUDGE_KEY"}),
            "recipe.credit.judge.api_key_variable",
            "remove it",
        ),
        (document({}, asked=OWN), "resources.judge.path", 'or catalog = "name@version"'),
        (document(SERVERS | {"catalog": "judge@1"}, asked=OWN), "resources.judge.path", "remove one of them"),
        (document({"catalog": "judge"}, asked=OWN), "resources.judge.catalog", "name@version"),
        (document(SERVERS | {"flags": ["trust-remote-code"]}, asked=OWN), "resources.judge.flags.0", "use some of"),
        (document(SERVERS, asked=OWN | {"endpoint": "resources.judge/v1"}), "recipe.credit.judge.endpoint", ""),
    ],
)
def test_servers_that_nobody_asks_and_askers_without_servers_are_refused(given: Any, field: str, remedy: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RunSpec.model_validate(given)
    problems = problems_in(refused.value, RunSpec)
    assert [problem.field.replace(".llm.", ".") for problem in problems][:1] == [field]
    assert remedy in problems[0].remedy


def test_turns_and_rubrics_may_be_judged_by_servers_of_the_run() -> None:
    RunSpec.model_validate(document(SERVERS, asked=OWN))
    RunSpec.model_validate(document({"catalog": "judge@1"}, **by_rubric(OWN), recipe={}))


def spec_of(**judge: Any) -> RunSpec:
    return RunSpec.model_validate(document({"path": str(folder_of("qwen3")), **judge}, asked=OWN))


def test_what_its_servers_lack_is_named_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.loop.generator_requirements._has_sglang", lambda _: True)
    assert lacking(spec_of()) == []
    [absent] = lacking(spec_of(path=str(tmp_path / "nothing")))
    assert absent.field == "resources.judge.path"
    [unpinned] = lacking(RunSpec.model_validate(document({"catalog": "judge@1"}, asked=OWN)))
    assert (unpinned.field, unpinned.value) == ("resources.judge.catalog", "judge@1")
    [longer] = lacking(spec_of(context_tokens=4096))
    assert (longer.field, longer.remedy) == ("resources.judge.context_tokens", "use at most 1024")
    [undivided] = lacking(spec_of(tensor_parallel=3))
    assert (undivided.field, undivided.remedy) == ("resources.judge.tensor_parallel", "use one of: 1, 2, 4")
    monkeypatch.undo()
    monkeypatch.setenv(SGLANG_PYTHON, "/nowhere/python")
    [without] = lacking(spec_of())
    assert (without.field, without.message) == ("resources.judge", "/nowhere/python does not exist")


def test_its_folder_is_found_as_the_models_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PALESTRA_MODELS", str(tmp_path))
    (tmp_path / "a-judge").mkdir()
    found = with_pinned_model(spec_of(path="a-judge"), None, named_in=Path("run.toml"), anywhere=False)
    assert found.resources.judge is not None
    assert found.resources.judge.path == str(tmp_path / "a-judge")
    for path in ("/etc", "../outside", "catalog/of-teams"):
        with pytest.raises(BadSpec, match=r"resources\.judge\.path = ") as refused:
            with_pinned_model(spec_of(path=path), None, named_in=Path("run.toml"), anywhere=False)
    assert refused.value.lines[0].endswith('; set resources.judge.catalog = "name@version"')


def test_a_version_without_a_catalog_is_refused_as_the_models_is(tmp_path: Path) -> None:
    judged = RunSpec.model_validate(document({"catalog": "judge@1"}, asked=OWN))
    trained = RunSpec.model_validate({"name": "x", "model": {"kind": "pretrained", "catalog": "judge@1"}})
    lines = []
    for spec in (judged, trained):
        with pytest.raises(BadSpec) as refused:
            with_pinned_model(spec, None, named_in=tmp_path / "run.toml", anywhere=True)
        lines += refused.value.lines
    assert lines[0] == lines[1].replace("model.", "resources.judge.")
    assert "resources.judge.catalog = 'judge@1': there is no catalog of models here" in lines[0]
    assert lines[0].endswith("or set resources.judge.path to the model's folder")
