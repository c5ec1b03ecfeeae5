"""A run whose experts are another run's successes, in other tokens."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.trainings import SCALE, Training

STUDENT = f"""
name = "student"
seed = 4
[environment]
id = "python-math"
levels = [1]
[environment.sandbox]
snapshots = true
[dataset]
train_tasks = 24
[model]
vocabulary = "household"
layers = 1
hidden_size = 32
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
[recipe]
preset = "ipa"
[recipe.expert_starts]
share = 1.0
demonstrations = false
teacher = "teacher.jsonl"
[[recipe.stages]]
data = {{kind = "demonstrations", count = 64}}
steps = 10
batch_size = 16
{SCALE}"""
"""It can do next to nothing by itself; its words are other tokens than its teacher's characters."""


@pytest.fixture(scope="module")
def student(undisturbed_parts: Training, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("student")
    spool = sorted((undisturbed_parts.folder / "spool").glob("*.jsonl"))
    (folder / "teacher.jsonl").write_bytes(b"".join(path.read_bytes() for path in spool))
    (folder / "run.toml").write_text(STUDENT)
    with Training(folder / "run.toml", folder / "run") as training:
        training.finish("--in-process")
        yield training


def rollouts_of(training: Training) -> list[dict[str, Any]]:
    stored = [event["trajectory"] for event in training.of_kind("trajectory")]
    return [trajectory for trajectory in stored if trajectory["purpose"] == "train"]


def test_rollouts_begin_behind_the_teachers_turns_which_do_again_what_they_did(student: Training) -> None:
    begun = [rollout for rollout in rollouts_of(student) if rollout["start"] and rollout["start"]["prefix"]]
    assert begun
    assert {rollout["start"]["expert"] for rollout in begun} == {
        f"teacher-{rollout['task']['id']}" for rollout in begun
    }
    metrics = [event["values"] for event in student.of_kind("metric") if "train/prefilled_groups" in event["values"]]
    assert sum(values["train/prefilled_groups"] for values in metrics) > 0
    assert sum(values["train/replay_diverged"] for values in metrics) == 0
    [message] = [log["message"] for log in student.of_kind("log") if log["source"] == "teacher"]
    assert "tasks have an expert of the teacher's" in message
    assert "left out: failed" in message


def test_the_teachers_turns_are_imitated_where_the_policy_never_succeeds_and_then_the_weights_move(
    student: Training,
) -> None:
    turns = [turn for rollout in rollouts_of(student) for turn in rollout["segments"][0]["turns"]]
    assert any(turn["imitated"] for turn in turns)
    assert all(turn["prefilled"] for turn in turns if turn["imitated"])
    assert student.weights(5) != student.weights(4)


@pytest.mark.soak  # test_resume.py kills a run with experts, and below another teacher is refused
def test_a_run_that_was_killed_goes_on_with_the_same_teacher_to_the_same_weights(
    student: Training, tmp_path: Path
) -> None:
    for name in ("run.toml", "teacher.jsonl"):
        (tmp_path / name).write_bytes((student.folder.parent / name).read_bytes())
    with Training(tmp_path / "run.toml", tmp_path / "run") as training:
        training.die("collect", 4, "--in-process")
        training.finish("--in-process", "--resume")
        assert training.weights(5) == student.weights(5)


def test_a_run_does_not_go_on_with_another_teacher(student: Training, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes((student.folder.parent / "run.toml").read_bytes())
    teacher = (student.folder.parent / "teacher.jsonl").read_bytes()
    (tmp_path / "teacher.jsonl").write_bytes(teacher)
    with Training(tmp_path / "run.toml", tmp_path / "run") as training:
        training.die("collect", 2, "--in-process")
        (tmp_path / "teacher.jsonl").write_bytes(teacher.replace(b'"success":true', b'"success":false', 1))
        output, _ = training.start("--in-process", "--resume").communicate()
        assert "recipe.expert_starts.teacher" in output
        assert "is not what this run began with" in output
