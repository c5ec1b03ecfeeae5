"""Runs whose contexts leave something out: what was sampled in several segments is trained, in turn and beside it."""

from pathlib import Path
from typing import Any

import pytest

from engine.launch import exit_codes
from engine.spec.run import RunSpec
from tests.engine.rigs import Rig

pytestmark = pytest.mark.timeout(600)
RUN = {
    "name": "contexts",
    "seed": 5,
    "environment": {"id": "household", "levels": [1], "max_turns": 5, "max_turn_tokens": 12},
    "dataset": {"train_tasks": 200, "heldout_tasks": 4},
    "model": {"layers": 2, "hidden_size": 48, "heads": 2, "kv_heads": 1, "head_dim": 24, "intermediate_size": 96,
              "context_tokens": 224},
    "resources": {"threads": 1, "kv_slots": 8},
    "schedule": {"steps": 3, "prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
    "evaluation": {"tasks": 4, "interim_tasks": 4, "every": 0},
    "recipe": {
        "preset": "grpo",
        "stages": [{"data": {"kind": "demonstrations", "count": 256, "wrong_fraction": 0.5}, "steps": 150,
                    "batch_size": 16, "learning_rate": 4e-3}],
        "context": {"template": "sliding-window", "window_turns": 1, "repeated_calls": 2},
    },
}  # fmt: skip


@pytest.mark.parametrize("ratio", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_windows_are_trained_and_measured(tmp_path: Path, service: Any, ratio: int) -> None:
    spec = RunSpec.model_validate({**RUN, "schedule": {**RUN["schedule"], "async_ratio": ratio}})
    assert Rig(spec, tmp_path, service).start().ended() == exit_codes.ENDED
    rollouts = [event["trajectory"] for event in service.of_kind("trajectory")]
    trained = [rollout for rollout in rollouts if rollout["trained_at_step"] is not None]
    assert any(len(rollout["segments"]) > 2 for rollout in trained)
    assert len({rollout["id"] for rollout in trained}) == len(trained)
    measured = [event["values"] for event in service.of_kind("metric") if "context/segments" in event["values"]]
    assert max(values["context/segments"] for values in measured) > 1
    assert all(0 < values["context/longest_tokens"] < values["context/read_tokens"] for values in measured)


def test_a_context_with_tools_is_learned_measured_and_evaluated(tmp_path: Path, service: Any) -> None:
    context = {"template": "self-managing", "manage_tokens": 40, "subagent_turns": 2}
    spec = RunSpec.model_validate({
        **RUN,
        "environment": {**RUN["environment"], "max_turn_tokens": 48},
        "model": {**RUN["model"], "context_tokens": 480},
        "schedule": {**RUN["schedule"], "steps": 1},
        "recipe": {**RUN["recipe"], "context": context},
    })  # fmt: skip
    assert Rig(spec, tmp_path, service).start().ended() == exit_codes.ENDED
    [measured] = [event["values"] for event in service.of_kind("metric") if "context/segments" in event["values"]]
    assert measured.keys() >= {"context/notes", "context/left_turns", "context/subagents"}
    assert measured["context/manage_prompts"] > 0
