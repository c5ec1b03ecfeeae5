"""The run specs that come with the engine."""

import tomllib
from pathlib import Path

import engine.spec
from engine.spec.run import RunSpec

SAMPLES = Path(engine.spec.__file__).parent / "samples"


def sample(name):
    return RunSpec.model_validate(tomllib.loads((SAMPLES / name).read_text()))


def test_the_sample_run_changes_a_majority_of_guesses_and_is_judged_on_500_tasks():
    spec = sample("python_math.toml")
    assert spec.recipe.cold_start.wrong_fraction > 0.5
    assert spec.evaluation.tasks >= 500
    assert spec.environment.levels == [1, 2, 3]


def test_the_tiny_sample_visits_every_phase():
    spec = sample("tiny.toml")
    assert spec.recipe.cold_start is not None
    assert 0 < spec.evaluation.every < spec.schedule.steps
    assert spec.schedule.checkpoint_every < spec.schedule.steps
