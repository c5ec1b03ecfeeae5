"""A run that was killed, whoever was killed and when, ends as if nothing had happened."""

import os
import shutil
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.engine.dying import begin_of
from tests.engine.trainings import Training, step_of

pytestmark = pytest.mark.timeout(900)
"""Whole runs: half a minute on a quiet machine, ten times as long on a busy one."""


BY_ROLE = ("perf/cpu_", "perf/memory_mib_")
"""What these name are processes, of which a run on Ray has others than one that is all in one."""


def metric_keys(events: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter(
        (key, event["step"])
        for event in events
        if event["kind"] == "metric"
        for key in event["values"]
        if not key.startswith(BY_ROLE)
    )


def tokens(events: list[dict[str, Any]]) -> dict[str, list[list[int]]]:
    return {
        event["trajectory"]["id"]: [turn["token_ids"] for turn in event["trajectory"]["segments"][0]["turns"]]
        for event in events
        if event["kind"] == "trajectory"
    }


def masks(events: list[dict[str, Any]]) -> dict[str, str | None]:
    return {
        event["trajectory"]["id"]: event["trajectory"]["masked_because"]
        for event in events
        if event["kind"] == "trajectory"
    }


def assert_same_run(training: Any, undisturbed: Any) -> None:
    """Weights, trajectories and curves are equal, and nothing counts twice."""
    assert training.weights(5) == undisturbed.weights(5)
    assert tokens(training.lineage()) == tokens(undisturbed.events())
    assert metric_keys(training.lineage()) == metric_keys(undisturbed.events())
    assert set(metric_keys(training.lineage()).values()) == {1}
    [finished] = training.of_kind("finished")
    trajectories = [event for event in training.lineage() if event["kind"] == "trajectory"]
    assert len(trajectories) == finished["summary"]["trajectories_stored"]
    assert [event["seq"] for event in training.events()] == list(range(1, finished["summary"]["events_emitted"] + 1))
    for measure in ("success_sampled", "success_greedy", "tool_error_rate", "steps"):
        assert finished["summary"][measure] == undisturbed.of_kind("finished")[0]["summary"][measure]


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def in_phase(phase: str, step: int) -> Any:
    return lambda events: any(begin_of(phase, step).items() <= event.items() for event in events)


def test_the_undisturbed_run_really_changes_its_weights(undisturbed: Any) -> None:
    assert undisturbed.weights(2) != undisturbed.weights(4) != undisturbed.weights(5)
    assert any(event["values"].get("train/tool_calls", 0) > 0 for event in undisturbed.of_kind("metric"))


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        ("collect", 1),
        *(
            pytest.param(phase, step, marks=pytest.mark.soak)
            for phase, step in (("cold-start", 0), ("evaluate", 0), ("update", 3), ("checkpoint", 4), ("collect", 5))
        ),
    ],
)
def test_a_run_killed_in_any_phase_ends_with_the_same_weights(
    training: Any, undisturbed: Any, phase: str, step: int
) -> None:
    training.die(phase, step, "--in-process")
    training.finish("--in-process", "--resume")
    assert_same_run(training, undisturbed)


def test_the_run_of_all_parts_really_uses_them(undisturbed_parts: Any) -> None:
    values = [event["values"] for event in undisturbed_parts.of_kind("metric") if "train/reward" in event["values"]]
    for key in (
        "train/groups_dropped",
        "train/prefilled_groups",
        "train/masked/void-turn",
        "train/masked/low-variance-group",
        "judge/good",
        "train/first_attempt_error_rate",
    ):
        assert any(value[key] > 0 for value in values), key
    assert any(value["train/sampling_rounds"] == 2 for value in values)
    experts = undisturbed_parts.state(5)["experts"]["tasks"].values()
    assert any(expert["own"] for expert in experts)
    assert any(tally["rollouts"] > 4 for expert in experts for tally in expert["tallies"].values())


def test_dynamic_sampling_goes_on_until_it_has_its_batch_or_its_rounds_are_over(undisturbed_parts: Any) -> None:
    trained = [event["trajectory"] for event in undisturbed_parts.of_kind("trajectory")]
    for event in undisturbed_parts.of_kind("metric"):
        if "train/sampling_rounds" in event["values"]:
            played = [
                rollout for rollout in trained if (rollout["purpose"], step_of(rollout)) == ("train", event["step"])
            ]
            rounds = event["values"]["train/sampling_rounds"]
            goes_on = [_goes_on_after(number + 1, played) for number in range(int(rounds))]
            assert goes_on == [True] * (len(goes_on) - 1) + [False]


def _goes_on_after(rounds: int, played: list[dict[str, Any]]) -> bool:
    """A round plays 6 groups, numbered on from those of the round before."""
    outcomes = defaultdict(set)
    for trajectory in played:
        outcomes[trajectory["prompt"]].add(trajectory["success"])
    informative = sum(len(found) == 2 for _, found in sorted(outcomes.items())[: 6 * rounds])
    return informative < 6 and rounds < 2


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        ("update", 5),
        *(pytest.param(phase, step, marks=pytest.mark.soak) for phase, step in (("collect", 2), ("judge", 4))),
    ],
)
def test_a_run_of_all_parts_killed_in_any_phase_ends_with_the_same_weights_and_the_same_state(
    parts_training: Any, undisturbed_parts: Any, phase: str, step: int
) -> None:
    parts_training.die(phase, step, "--in-process")
    parts_training.finish("--in-process", "--resume")
    assert_same_run(parts_training, undisturbed_parts)
    for field in ("experts", "tasks_taken", "sampled_tokens"):
        assert parts_training.state(5)[field] == undisturbed_parts.state(5)[field]
    assert masks(parts_training.lineage()) == masks(undisturbed_parts.events())


@pytest.mark.slow
@pytest.mark.soak  # test_kills.py kills the driver of one, and in one process it comes to the same weights above
def test_a_run_on_ray_killed_and_resumed_ends_with_the_same_weights(training: Any, undisturbed: Any) -> None:
    training.die("collect", 4)
    training.finish("--resume")
    assert_same_run(training, undisturbed)


@pytest.fixture(scope="module")
def killed(run_toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed in its last step, with checkpoints after 0, 2 and 4."""
    with Training(run_toml, tmp_path_factory.mktemp("killed") / "run") as training:
        training.die("collect", 5, "--in-process")
    return training.folder


def test_a_run_goes_on_from_the_newest_checkpoint_that_the_disk_gives_back_as_it_was_written(
    killed: Path, training: Any, undisturbed: Any
) -> None:
    shutil.copytree(killed, training.folder)
    checkpoints = training.folder / "checkpoints"
    flip_a_bit(checkpoints / "step-000004" / "model" / "model.safetensors")
    (checkpoints / "step-000002" / "trainer.pt").unlink()
    training.finish("--in-process", "--resume")
    assert_same_run(training, undisturbed)
    warnings = [event["message"] for event in training.of_kind("log") if event["source"] == "checkpoint"]
    assert [message.split("(")[0] for message in warnings] == [
        "the checkpoint after step 4 is damaged: model/model.safetensors has other bytes than were written ",
        "the checkpoint after step 2 is damaged: trainer.pt is missing; it is set aside as damaged-000002, "
        "and the run goes on after step 0",
    ]
    assert {path.name for path in checkpoints.glob("damaged-*")} == {"damaged-000004", "damaged-000002"}
    assert training.of_kind("started")[-1]["from_step"] == 0


@pytest.mark.soak  # above one goes on from its first checkpoint, and test_checkpoint.py damages every file
def test_a_run_all_of_whose_checkpoints_are_damaged_begins_anew(killed: Path, training: Any, undisturbed: Any) -> None:
    shutil.copytree(killed, training.folder)
    for checkpoint in (training.folder / "checkpoints").iterdir():
        flip_a_bit(checkpoint / "state.json")
    training.finish("--in-process", "--resume")
    assert training.weights(5) == undisturbed.weights(5)
    assert tokens(training.lineage()) == tokens(undisturbed.events())
    assert metric_keys(training.lineage()).keys() == metric_keys(undisturbed.events()).keys()
    summaries = [item.of_kind("finished")[0]["summary"] for item in (training, undisturbed)]
    assert summaries[0]["trajectories_stored"] == summaries[1]["trajectories_stored"]


def pid_of(actor: str, events: list[dict[str, Any]]) -> int | None:
    pids = [
        int(event["message"].split()[-1])
        for event in events
        if event["kind"] == "log" and event["message"].startswith(f"{actor} is process")
    ]
    return pids[-1] if pids else None


@pytest.mark.slow
@pytest.mark.soak  # test_kills.py kills a rollout worker, test_lost_nodes.py a generator with its node
@pytest.mark.parametrize("actor", ["generator", "rollout-0", "rollout-1"])
def test_a_killed_actor_is_replaced_and_its_episodes_are_played_again(
    training: Any, undisturbed: Any, actor: str
) -> None:
    process = training.start()
    for step in (1, 3):
        training.wait_for(process, in_phase("collect", step))
        os.kill(pid_of(actor, training.events()), signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert len([event for event in training.of_kind("log") if event["message"].startswith(f"{actor} is process")]) == 3
    assert_same_run(training, undisturbed)


@pytest.mark.slow
@pytest.mark.soak  # test_learner_on_ray.py kills a rank, and test_kills.py resumes a run whose attempt ended
def test_a_killed_learner_ends_the_attempt_and_the_next_one_goes_on(training: Any, undisturbed: Any) -> None:
    process = training.start()
    training.wait_for(process, in_phase("collect", 3))
    os.kill(pid_of("learner", training.events()), signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == 1
    assert "learner died" in output
    assert training.of_kind("finished") == []
    training.finish("--resume")
    assert_same_run(training, undisturbed)
