"""The TOML of the guide is a run, and the fields and metrics that it names are there."""

import re
import tomllib
from pathlib import Path

from engine.rollout.context_metrics import context_metrics
from engine.spec.context import Context, ContextRecord
from engine.spec.run import RunSpec
from engine.spec.trajectory import Task, Trajectory

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guide/context.md").read_text()


def test_the_toml_of_the_guide_is_a_run_with_a_window() -> None:
    [block] = re.findall(r"```toml\n(.*?)```", GUIDE, flags=re.DOTALL)
    context = RunSpec.model_validate({"name": "guide", **tomllib.loads(block)}).recipe.context
    assert context is not None
    assert (context.template, context.window_turns, context.repeated_calls) == ("sliding-window", 2, 3)


def test_every_field_of_a_context_stands_in_the_guide() -> None:
    named = set(re.findall(r"`(\w+)[` =]", GUIDE))
    assert Context.model_fields.keys() <= named


def test_every_metric_that_the_guide_names_is_told() -> None:
    task = Task(id="t", split="train", question="q", answer="a", level=1)
    rollout = Trajectory(
        id="train-0-0", purpose="train", prompt=0, member=0, sampled_at_version=0, task=task, segments=[],
        stop_reason="truncated", answer=None, success=False, reward=0.0, rewards={}, context=ContextRecord(),
    )  # fmt: skip
    named = set(re.findall(r"`(context/\w+)`", GUIDE))
    assert len(named) == 10
    assert named <= context_metrics([rollout]).keys()
