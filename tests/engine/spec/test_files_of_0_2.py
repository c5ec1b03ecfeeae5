"""Specs of version 0.2, whose recipes had a cold start, are read as specs with stages."""

import json
from typing import Any

import pytest

from engine.loop.state import RunState
from engine.spec import files_of_0_2
from engine.spec.run import RunSpec
from engine.spec.supervised import Demonstrations, Recordings, Stage

COLD_START = {
    "demonstrations": 512, "wrong_fraction": 0.5, "tool_error_fraction": 0.1, "steps": 7, "batch_size": 4,
    "learning_rate": 1e-3, "mask_errors": True, "mask_irrelevant": False, "recorded": None,
}  # fmt: skip
MADE = Demonstrations(count=512, wrong_fraction=0.5, tool_error_fraction=0.1)


def read(cold_start: Any) -> tuple[Stage, ...]:
    document = {"spec": {"name": "old", "recipe": {"cold_start": cold_start}}, "finished_steps": 1, "prompts": {}}
    return RunState.model_validate_json(json.dumps(document)).spec.recipe.stages


@pytest.mark.parametrize(
    ("cold_start", "stages"),
    [
        (COLD_START, (Stage(data=MADE, steps=7, batch_size=4, learning_rate=1e-3, mask_errors=True),)),
        (COLD_START | {"recorded": "a/b.jsonl"}, (Stage(data=Recordings(file="a/b.jsonl"), steps=7, batch_size=4,
                                                       learning_rate=1e-3, mask_errors=True),)),
        (COLD_START | {"steps": 0}, ()),
        (None, ()),
        (False, ()),
        ({}, (Stage(),)),
    ],
)  # fmt: skip
def test_a_cold_start_is_one_stage_or_none(cold_start: Any, stages: tuple[Stage, ...]) -> None:
    assert read(cold_start) == stages


def test_a_spec_that_somebody_writes_today_has_no_cold_start() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        RunSpec.model_validate({"name": "new", "recipe": {"cold_start": COLD_START}})


@pytest.mark.parametrize("document", [None, 3, [], {}, {"recipe": None}, {"recipe": {"stages": []}}])
def test_what_is_not_recognised_stays_as_it_is(document: Any) -> None:
    assert files_of_0_2.run_spec(document) == document


def test_a_trainer_of_0_2_was_in_its_cold_start() -> None:
    assert files_of_0_2.training_stage("cold-start") == "supervised"
    assert files_of_0_2.training_stage("reinforcement") == "reinforcement"
