"""Runs whose generation and training overlap: nothing is too old, lost or trained on twice, whoever is killed."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.loop.generation import METRICS
from tests.engine.loop.test_resume import in_phase, pid_of
from tests.engine.trainings import PARTS, RUN, Training

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

RATIO = 2
PROMPTS = range(5 * 6)
"""The prompts of all steps: in a run that waits for the overdue nothing beyond them is played, so all are trained
on."""
MISMATCH = """[recipe.mismatch]
mask = "token"
mask_bound = 1.5
"""


def toml(*schedule: str, recipe: str = "") -> str:
    fields = "\n".join(schedule)
    run = RUN.replace("[schedule]\n", f"[schedule]\n{fields}\n").replace("[recipe.reward]", f"{recipe}[recipe.reward]")
    assert fields in run
    return run


def training_of(text: str, folder: Path) -> Training:
    (folder / "run.toml").write_text(text)
    return Training(folder / "run.toml", folder / "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A run at ratio 2 with a mismatch mask, which nobody disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    with training_of(toml(f"async_ratio = {RATIO}", recipe=MISMATCH), folder) as training:
        training.finish("--in-process")
    return training


@pytest.fixture
def overlapping(tmp_path: Path) -> Iterator[Training]:
    with training_of(toml(f"async_ratio = {RATIO}"), tmp_path) as training:
        yield training


def trained(training: Training) -> Counter[str]:
    """How often each rollout was trained on, in the updates that still count."""
    updates: list[tuple[int, str]] = []
    for event in training.events():
        if event["kind"] == "started":
            updates = [update for update in updates if update[0] <= event["from_step"]]
        if event["kind"] == "trajectory" and event["trajectory"]["trained_at_step"] is not None:
            updates.append((event["trajectory"]["trained_at_step"], event["trajectory"]["id"]))
    return Counter(rollout for _, rollout in updates)


EACH_ONCE = Counter(f"train-{prompt}-{member}" for prompt in PROMPTS for member in range(4))


def rollouts(training: Training) -> list[dict[str, Any]]:
    found = [event["trajectory"] for event in training.of_kind("trajectory")]
    return [rollout for rollout in found if rollout["purpose"] == "train"]


def steps_of(training: Training) -> list[dict[str, float]]:
    return [event["values"] for event in training.of_kind("metric") if "train/reward" in event["values"]]


def versions_in(rollout: dict[str, Any]) -> set[int]:
    return {
        version for segment in rollout["segments"] for turn in segment["turns"] for version in turn["policy_versions"]
    }


def test_every_prompt_is_trained_on_once_and_nothing_is_older_than_the_ratio(finished: Training) -> None:
    assert trained(finished) == EACH_ONCE
    ages = [rollout["trained_at_step"] - 1 - rollout["sampled_at_version"] for rollout in rollouts(finished)]
    assert max(ages) <= RATIO
    assert max(ages) >= 1, "nothing overlapped"
    for values in steps_of(finished):
        assert sum(values[f"staleness/{age}"] for age in range(RATIO + 1)) == pytest.approx(1)
        assert values.keys() >= METRICS


def test_in_flight_exchange_gives_later_tokens_the_new_version(finished: Training) -> None:
    mixed = [rollout for rollout in rollouts(finished) if len(versions_in(rollout)) > 1]
    assert mixed
    assert all(rollout["sampled_at_version"] == min(versions_in(rollout)) for rollout in mixed)


def test_an_evaluation_beside_the_lane_measures_one_version(finished: Training) -> None:
    evaluated = [event["trajectory"] for event in finished.of_kind("trajectory")]
    evaluated = [rollout for rollout in evaluated if rollout["purpose"].startswith("eval")]
    assert {rollout["sampled_at_version"] for rollout in evaluated} == {0, 3, 5}
    assert all(versions_in(rollout) == {rollout["sampled_at_version"]} for rollout in evaluated)
    phases = [event for event in finished.of_kind("phase") if event["phase"] == "evaluate" and event["step"] == 3]
    began, ended = (event["at"] for event in phases)
    played = [span for event in finished.of_kind("lanes") for span in event["spans"] if span["lane"] == "rollouts"]
    beside = [span for span in played if span["began_at"] < ended and span["began_at"] + span["seconds"] > began]
    assert beside, "no group was played while the evaluation was"


def in_lanes(training: Training) -> list[dict[str, Any]]:
    """What was played before the last step was reported: no lanes come behind it."""
    found = [event["trajectory"] for event in training.of_kind("trajectory")]
    return [it for it in found if it["purpose"] == "train" or it["sampled_at_version"] < 5]


def test_the_lane_of_generation_has_each_turn_of_a_rollout_and_rollouts_have_their_groups(finished: Training) -> None:
    spans = [span for event in finished.of_kind("lanes") for span in event["spans"]]
    turns = Counter(
        (rollout["id"], turn["began_at"], turn["seconds"])
        for rollout in in_lanes(finished)
        for segment in rollout["segments"]
        for turn in segment["turns"]
    )
    assert {label.partition("-")[0] for label, _, _ in turns} == {"train", "eval"}
    assert all(began_at is not None and seconds > 0 for _, began_at, seconds in turns)
    drawn = Counter(
        (span["label"], span["began_at"], span["seconds"]) for span in spans if span["lane"] == "generation"
    )
    assert not any("joined" in span for span in spans), "so few turns have room"
    assert drawn == turns
    groups = {span["label"]: span for span in spans if span["lane"] == "rollouts"}
    assert groups.keys() == {f"prompt {prompt}" for prompt in PROMPTS}
    for label, began_at, seconds in (turn for turn in turns if turn[0].startswith("train-")):
        group = groups[f"prompt {label.split('-')[1]}"]
        assert group["began_at"] - 0.05 <= began_at
        assert began_at + seconds <= group["began_at"] + group["seconds"] + 0.05


def test_the_time_of_each_rollouts_tools_stands_in_the_environments_lane(finished: Training) -> None:
    spans = [span for event in finished.of_kind("lanes") for span in event["spans"] if span["lane"] == "environment"]
    calls = {
        (rollout["id"], call["began_at"])
        for rollout in in_lanes(finished)
        for segment in rollout["segments"]
        for turn in segment["turns"]
        for call in turn["tool_calls"]
        if call["began_at"] is not None
    }
    assert {(span["label"], span["began_at"]) for span in spans} <= calls
    played = {f"train-{prompt}" for prompt in PROMPTS}
    assert {label.rpartition("-")[0] for span in spans if (label := span["label"]).startswith("train-")} <= played
    assert all(span["seconds"] > 0 for span in spans)


OBJECTIVES = {
    "tis": '[recipe.objective]\nkind = "tis"\n{}\n',
    "topr": '[recipe.objective]\nkind = "topr"\n{}\n',
    "ipa": '[recipe.credit]\nkind = "chunk-return"\n[recipe.objective]\nkind = "ipa"\nmismatch_bound = 1e3\n{}\n',
}


@pytest.mark.parametrize("name", [*(pytest.param(other, marks=pytest.mark.soak) for other in ("tis", "topr")), "ipa"])
def test_the_weights_of_tis_topr_and_ipa_act_on_what_older_policies_sampled(name: str, tmp_path: Path) -> None:
    held_back = {}
    for ratio_to in ("auto", "old"):
        folder = tmp_path / ratio_to
        folder.mkdir()
        run = toml(f"async_ratio = {RATIO}", recipe=OBJECTIVES[name].format(f'ratio_to = "{ratio_to}"'))
        one_update = run.replace("minibatch_trajectories = 8", "minibatch_trajectories = 24")
        with training_of(one_update, folder) as training:
            training.finish("--in-process")
        held_back[ratio_to] = [values["train/clip_fraction"] for values in steps_of(training)]
    assert max(held_back["auto"]) > 0
    assert max(held_back["old"]) == 0


def test_the_mismatch_mask_acts_on_what_older_policies_sampled_and_on_nothing_else(
    finished: Training, undisturbed: Training
) -> None:
    shares = [values["train/mismatch_masked"] for values in steps_of(finished)]
    assert shares[0] == 0, "the first batch is of the present policy"
    assert max(shares) > 0
    assert max(values["train/mismatch_ratio_max"] for values in steps_of(finished)) > 1.1
    assert [values["train/mismatch_ratio_max"] for values in steps_of(undisturbed)] == pytest.approx([1] * 5, abs=1e-3)


def test_lanes_are_reported_once_a_step_and_only_where_they_overlap(finished: Training, undisturbed: Training) -> None:
    lanes = finished.of_kind("lanes")
    assert [event["step"] for event in lanes] == [1, 2, 3, 4, 5]
    spans = [span for event in lanes for span in event["spans"]]
    assert {span["lane"] for span in spans} == {"rollouts", "generation", "environment", "training", "weights"}
    assert sum(span["lane"] == "rollouts" for span in spans) == len(PROMPTS)
    assert undisturbed.of_kind("lanes") == []


@pytest.mark.soak  # the next one kills it at a moment of its collection
@pytest.mark.parametrize(
    ("phase", "step"), [("evaluate", 0), ("collect", 1), ("update", 3), ("checkpoint", 4), ("score", 5)]
)
def test_a_run_killed_in_any_phase_trains_on_every_prompt_once(overlapping: Training, phase: str, step: int) -> None:
    overlapping.die(phase, step, "--in-process")
    overlapping.finish("--in-process", "--resume")
    assert trained(overlapping) == EACH_ONCE


@pytest.mark.parametrize("delay_s", [0.9, *(pytest.param(other, marks=pytest.mark.soak) for other in (0.1, 1.7))])
def test_a_run_killed_at_any_moment_trains_on_every_prompt_once(overlapping: Training, delay_s: float) -> None:
    process = overlapping.start("--in-process")
    overlapping.wait_for(process, in_phase("collect", 2))
    time.sleep(delay_s)
    process.kill()
    process.communicate()
    overlapping.finish("--in-process", "--resume")
    assert trained(overlapping) == EACH_ONCE


def test_a_checkpoint_holds_what_is_in_play(overlapping: Training) -> None:
    overlapping.die("collect", 3, "--in-process")
    buffer = overlapping.state(2)["buffer"]
    held = [entry["plan"]["prompt"] for part in ("waiting", "ready") for entry in buffer[part]]
    assert len(held) == len(set(held))
    before = {int(rollout.split("-")[1]) for rollout in trained(overlapping)}
    assert len(before) == 2 * 6
    assert set(held) | before == set(range(max(held) + 1)), "every prompt that was planned is in play or trained on"


def test_at_episode_borders_each_trajectory_is_of_one_version(tmp_path: Path) -> None:
    exchange = 'weight_exchange = "episode-borders"'
    with training_of(toml(f"async_ratio = {RATIO}", exchange), tmp_path) as training:
        training.finish("--in-process")
    assert trained(training) == EACH_ONCE
    assert {len(versions_in(rollout)) for rollout in rollouts(training)} == {1}
    assert max(values["train/staleness_max"] for values in steps_of(training)) >= 1


def test_redundant_members_and_groups_cost_tokens_that_are_counted(tmp_path: Path) -> None:
    redundancy = "redundant_members = 2", "redundant_groups = 2"
    with training_of(toml(*redundancy), tmp_path) as training:
        training.finish("--in-process")
    counts = trained(training)
    assert set(counts.values()) == {1}
    assert Counter(Counter(rollout.rpartition("-")[0] for rollout in counts).values()) == {4: 30}
    steps = steps_of(training)
    assert sum(values["redundancy/unused_rollouts"] for values in steps) >= 2 * 24
    assert sum(values["redundancy/unused_tokens"] for values in steps) > 0
    assert {values["train/staleness_max"] for values in steps} == {0}


@pytest.mark.soak  # test_lost_nodes.py loses a generator with its node, test_kills.py kills a rollout worker
@pytest.mark.parametrize("exchange", ["in-flight", "episode-borders"])
def test_killed_actors_are_replaced_in_the_middle_and_nothing_is_lost_or_trained_on_twice(
    tmp_path: Path, exchange: str
) -> None:
    with training_of(toml(f"async_ratio = {RATIO}", f'weight_exchange = "{exchange}"'), tmp_path) as training:
        process = training.start()
        for step, actor in ((2, "rollout-0"), (3, "generator"), (4, "rollout-1")):
            training.wait_for(process, in_phase("collect", step))
            os.kill(pid_of(actor, training.events()), signal.SIGKILL)
        output, _ = process.communicate()
        assert process.returncode == 0, output
    replaced = [event["message"].split(" is process")[0] for event in training.of_kind("log")]
    assert {actor: replaced.count(actor) for actor in ("rollout-0", "rollout-1", "generator")} == {
        "rollout-0": 2,
        "rollout-1": 2,
        "generator": 2,
    }
    assert trained(training) == EACH_ONCE
    assert max(values["train/staleness_max"] for values in steps_of(training)) <= RATIO


@pytest.mark.soak  # in one process it is killed above, and test_kills.py kills the driver of a run on Ray
def test_a_run_on_ray_killed_and_resumed_trains_on_every_prompt_once(overlapping: Training) -> None:
    overlapping.die("collect", 4)
    overlapping.finish("--resume")
    assert trained(overlapping) == EACH_ONCE


@pytest.mark.soak  # test_resume.py kills a synchronous run of all parts
def test_a_run_of_all_parts_killed_and_resumed_trains_on_nothing_twice(tmp_path: Path) -> None:
    """Repairs, anchors, masks, dynamic sampling and a judge, each of which works on groups as they come."""
    parts = PARTS.replace("[schedule]\n", f"[schedule]\nasync_ratio = {RATIO}\n")
    with training_of(parts, tmp_path) as training:
        training.die("update", 4, "--in-process")
        training.finish("--in-process", "--resume")
    assert set(trained(training).values()) == {1}
    steps = steps_of(training)
    assert max(values["train/staleness_max"] for values in steps) in range(1, RATIO + 1)
    for key in ("train/groups_dropped", "train/prefilled_groups", "judge/good", "train/first_attempt_error_rate"):
        assert any(values.get(key, 0) > 0 for values in steps), key
    assert "judge" not in {event["phase"] for event in training.of_kind("phase")}
    assert "reward" in {span["lane"] for event in training.of_kind("lanes") for span in event["spans"]}
    verdicts = [
        turn["verdict"]
        for rollout in rollouts(training)
        if rollout["trained_at_step"] is not None
        for segment in rollout["segments"]
        for turn in segment["turns"]
        if not turn["prefilled"]
    ]
    assert set(verdicts) == {"good", "bad"}
