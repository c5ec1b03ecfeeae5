"""Whole runs with two generators, one of which is lent to the trainer while a step trains."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.loop.device_turns import METRICS
from engine.spec.resources import Resources
from tests.engine.dying_in_a_move import dying_in_a_move
from tests.engine.loop.test_asynchronous_runs import (
    EACH_ONCE,
    RATIO,
    rollouts,
    steps_of,
    toml,
    trained,
    training_of,
    versions_in,
)
from tests.engine.loop.test_device_turns import MULTIPLEXED, shared_s
from tests.engine.trainings import Training

TWO = "rollout_workers = 2\ngenerators = 2\n"


def with_two(*schedule: str) -> str:
    return toml(*schedule).replace("rollout_workers = 2\n", TWO)


@pytest.mark.parametrize("generator", ["sglang"])
def test_generators_whose_sessions_cannot_move_are_refused_by_their_number(generator: str) -> None:
    with pytest.raises(ValidationError, match=r"resources\.sglang\.servers says how many"):
        Resources.model_validate({"generator": generator, "generators": 2})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Training:
    with training_of(with_two(*MULTIPLEXED), tmp_path_factory.mktemp("lending")) as training:
        training.finish("--in-process")
    return training


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestRuns:
    def test_every_prompt_is_trained_on_once_and_nothing_is_older_than_the_ratio(self, finished: Training) -> None:
        assert trained(finished) == EACH_ONCE
        ages = [rollout["trained_at_step"] - 1 - rollout["sampled_at_version"] for rollout in rollouts(finished)]
        assert max(ages) in range(1, RATIO + 1)

    def test_versions_only_rise_within_a_rollout_wherever_it_moved(self, finished: Training) -> None:
        mixed = [rollout for rollout in rollouts(finished) if len(versions_in(rollout)) > 1]
        assert mixed
        for rollout in mixed:
            versions = [
                version
                for segment in rollout["segments"]
                for turn in segment["turns"]
                for version in turn["policy_versions"]
            ]
            assert versions == sorted(versions)

    def test_one_of_two_is_lent_and_the_other_plays_on_while_a_step_trains(self, finished: Training) -> None:
        spans = [span for event in finished.of_kind("lanes") for span in event["spans"]]
        lent = [span for span in spans if span["label"] == "training (1 of 2)"]
        assert lent
        updates = [span for span in spans if span["label"] in ("credit", "update")]
        for update in updates:
            for turn in spans:
                if turn["lane"] == "devices" and turn["label"] == "rollouts":
                    assert shared_s(update, turn) < 0.02, "the clocks of two spans differ by less"
        for values in steps_of(finished):
            assert values.keys() >= METRICS
        assert sum(values["multiplexing/moved_turns"] for values in steps_of(finished)) > 0

    @pytest.mark.soak  # test_generator_fleet.py compares every turn with one generator's
    def test_a_synchronous_run_has_the_weights_of_one_generator(self, tmp_path: Path, undisturbed: Training) -> None:
        with training_of(with_two("async_ratio = 0"), tmp_path) as training:
            training.finish("--in-process")
        assert training.weights(5) == undisturbed.weights(5)

    @pytest.mark.soak  # test_lost_nodes.py loses another one in that moment, test_asynchronous_runs.py kills a run
    def test_a_run_that_is_killed_while_a_generator_is_lent_trains_on_every_prompt_once(self, tmp_path: Path) -> None:
        with training_of(with_two(*MULTIPLEXED), tmp_path) as training:
            training.die("update", 3, "--in-process")
            training.finish("--in-process", "--resume")
            assert trained(training) == EACH_ONCE

    @pytest.mark.soak  # test_lost_nodes.py loses one of two while the other is lent
    @pytest.mark.parametrize(
        ("victim", "method"),
        [("generator", "vacate"), ("generator", "occupy"), ("generator-1", "vacate"), ("rollout-0", "vacate")],
    )
    def test_whoever_dies_in_a_move_nothing_is_lost_and_nothing_is_trained_on_twice(
        self, tmp_path: Path, victim: str, method: Any
    ) -> None:
        with training_of(with_two(*MULTIPLEXED), tmp_path) as training:
            process = training.start(program=dying_in_a_move(victim, method))
            output, _ = process.communicate()
            assert process.returncode == 0, output
        messages = [event["message"] for event in training.of_kind("log")]
        made = Counter(message.split(" is process")[0] for message in messages if " is process" in message)
        assert made == {"learner": 1, "generator": 1, "generator-1": 1, "rollout-0": 1, "rollout-1": 1} | {victim: 2}
        assert trained(training) == EACH_ONCE
        assert max(values["train/staleness_max"] for values in steps_of(training)) <= RATIO
