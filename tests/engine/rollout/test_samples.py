"""The run specs that come with the engine."""

import tomllib
from pathlib import Path

import pytest

import engine.spec
from engine.environments.registry import environment_for
from engine.loop.requirements import lacking
from engine.spec.run import RunSpec

SAMPLES = Path(engine.spec.__file__).parent / "samples"


def sample(name):
    return RunSpec.model_validate(tomllib.loads((SAMPLES / name).read_text()))


def test_the_sample_run_changes_a_majority_of_guesses_and_is_judged_on_500_tasks():
    spec = sample("python_math.toml")
    assert spec.recipe.stages[0].data.wrong_fraction > 0.5
    assert spec.evaluation.tasks >= 500
    assert spec.environment.levels == [1, 2, 3]


def test_the_tiny_sample_visits_every_phase():
    spec = sample("tiny.toml")
    assert spec.recipe.stages
    assert 0 < spec.evaluation.every < spec.schedule.steps
    assert spec.schedule.checkpoint_every < spec.schedule.steps


@pytest.mark.parametrize("name", ["household", "sokoban", "webshop", "search-qa", "apps"])
def test_a_sample_of_a_simulated_world_needs_no_sandbox_and_holds_its_demonstrations(name):
    spec = sample(f"{name.replace('-', '_')}.toml")
    assert spec.environment.id == name
    assert spec.environment.sandbox is None
    assert spec.environment.can_be_restored
    assert lacking(spec, {}) == []
    assert len(environment_for(spec.environment, spec.dataset).tasks("train")) == spec.dataset.train_tasks


def test_an_environment_without_an_id_is_python_math():
    document = tomllib.loads((SAMPLES / "python_math.toml").read_text())
    named = RunSpec.model_validate(document)
    del document["environment"]["id"]
    assert RunSpec.model_validate(document) == named
    assert named.environment.id == "python-math"
