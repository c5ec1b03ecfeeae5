"""A checkpoint is sampled outside of its run, whatever that was trained in and whoever judged it."""

from pathlib import Path
from typing import Any

import pytest

from engine.launch.model_choice import ModelChoice, chosen_model, spec_of_model
from engine.launch.preflight import BadSpec
from engine.loop.state import RunState
from engine.spec.run import RunSpec

SUMS: dict[str, Any] = {"id": "python-math"}
JUDGE = {"kind": "llm", "endpoint": "resources.judge", "model": "judge"}


def rubric(endpoint: str) -> dict[str, Any]:
    """An environment that ``endpoint`` scores."""
    verifier = {"kind": "rubric", "rubric": "Is it right?", "judge": {"endpoint": endpoint, "model": "judge"}}
    return {
        "environment": {"id": "qa", "components": [{"name": "style", "verifier": verifier}]},
        "dataset": {"folder": "rows"},
    }


def run_of(**tables: Any) -> RunSpec:
    return RunSpec.model_validate({"name": "trained", **tables})


def spec_of_checkpoint(folder: Path, trained: RunSpec, played: RunSpec | None = None, *, slots: int = 2) -> RunSpec:
    checkpoint = folder / "checkpoints" / "step-000001"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "state.json").write_text(RunState(spec=trained).model_dump_json())
    chosen = chosen_model(ModelChoice(run=str(folder), step=1))
    return spec_of_model(chosen, played or trained, name="sampled", slots=slots, threads=1)


def test_a_checkpoint_of_a_run_whose_parts_take_sandboxes_each_has_one_for_each(tmp_path: Path) -> None:
    parts = [{"name": name, "environment": SUMS} for name in ("first", "second", "third")]
    trained = run_of(environment={"id": "mixture", "parts": parts})
    assert spec_of_checkpoint(tmp_path, trained).resources.sandboxes == 3


def test_a_run_is_named_by_its_folder_from_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert spec_of_checkpoint(Path("my-run"), run_of()).model.run == str(tmp_path / "my-run")
    with pytest.raises(BadSpec, match="model.run = 'home': there is no such run"):
        chosen_model(ModelChoice(run="home"))


def test_a_checkpoint_of_a_run_without_sandboxes_is_one_of_a_run_that_could_have_one(tmp_path: Path) -> None:
    assert spec_of_checkpoint(tmp_path, run_of(environment={"id": "household"})).resources.sandboxes == 1


def test_the_judge_of_a_recipe_is_left_out_with_the_recipe(tmp_path: Path) -> None:
    recipe = {"credit": {"kind": "attribution", "judge": JUDGE}}
    trained = run_of(recipe=recipe, resources={"judge": {"path": "a-judge"}})
    assert spec_of_checkpoint(tmp_path, trained).resources.judge is None


def test_the_judge_that_an_environment_names_is_that_of_the_run_it_comes_from(tmp_path: Path) -> None:
    named = run_of(**rubric("resources.judge"), resources={"judge": {"path": "a-judge"}})
    for number, trained in enumerate((named, run_of())):
        spec = spec_of_checkpoint(tmp_path / str(number), trained, named)
        assert spec.resources.judge == named.resources.judge


def test_an_environment_that_the_resources_of_a_checkpoint_do_not_suit_is_refused_by_field(tmp_path: Path) -> None:
    """A server cannot be asked for a verdict that has the policy's weights."""
    trained = run_of(
        model={"kind": "pretrained", "path": "a-model"},
        resources={"generator": "sglang", "sglang": {"urls": ["http://judge:1"], "exchange_folder": "/shared"}},
    )
    with pytest.raises(BadSpec, match="environment.components.0.verifier.judge.endpoint"):
        spec_of_checkpoint(tmp_path, trained, run_of(**rubric("http://judge:1/v1")))
