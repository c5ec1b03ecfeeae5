"""A whole run on several of Ray's nodes, one of which dies in the middle, with whoever stands there."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.launch import exit_codes
from tests.engine.loop.test_asynchronous_runs import EACH_ONCE, RATIO, steps_of, toml, trained, training_of
from tests.engine.loop.test_device_turns import MULTIPLEXED
from tests.engine.losing_node import NOBODY, losing_node_of
from tests.engine.trainings import Training

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

PLACED = """rollout_workers = 2
[resources.placement]
rollout_cpus = 2
reserve_threads = true
"""
"""The trainer and its generator on one node, each rollout worker on another, and a node to spare."""


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[Training]:
    text = toml(f"async_ratio = {RATIO}")
    assert "rollout_workers = 2\n" in text
    with training_of(text.replace("rollout_workers = 2\n", PLACED), tmp_path) as training:
        yield training


def made(training: Training) -> Counter[str]:
    """How often each actor was."""
    messages = [event["message"] for event in training.of_kind("log")]
    return Counter(message.split(" is process")[0] for message in messages if " is process" in message)


def summary(training: Training) -> dict[str, Any]:
    """What it says of members that were made anew."""
    (finished,) = training.of_kind("finished")
    return {key: finished["summary"][key] for key in ("replaced", "moved") if key in finished["summary"]}


@pytest.mark.soak  # the next one loses more
def test_a_run_goes_on_without_the_node_of_a_rollout_worker(placed: Training) -> None:
    process = placed.start(program=losing_node_of("rollout-0", "collect", 3))
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert made(placed) == {"learner": 1, "generator": 1, "rollout-0": 2, "rollout-1": 1}
    assert trained(placed) == EACH_ONCE
    assert max(values["train/staleness_max"] for values in steps_of(placed)) <= RATIO
    assert summary(placed) == {"replaced": {"rollout-0": 1}, "moved": {"rollout-0": 1}}


def test_a_run_goes_on_without_the_node_of_a_generator_while_another_one_is_lent(tmp_path: Path) -> None:
    """The trainer and its generator on one node, the second generator on another, each rollout worker on a third and
    a fourth, and a node to spare."""
    text = toml(*MULTIPLEXED).replace("rollout_workers = 2\n", f"generators = 2\n{PLACED}")
    with training_of(text, tmp_path) as training:
        process = training.start(program=losing_node_of("generator-1", "update", 2, nodes=5))
        output, _ = process.communicate()
        assert process.returncode == 0, output
    assert made(training) == {"learner": 1, "generator": 1, "generator-1": 2, "rollout-0": 1, "rollout-1": 1}
    assert trained(training) == EACH_ONCE
    assert max(values["train/staleness_max"] for values in steps_of(training)) <= RATIO
    assert summary(training) == {"replaced": {"generator-1": 1}, "moved": {"generator-1": 1}}


@pytest.mark.soak  # test_learner_on_ray.py kills a rank of the trainer
def test_without_the_trainers_node_the_attempt_ends_and_names_it_and_the_next_one_resumes(placed: Training) -> None:
    process = placed.start(program=losing_node_of("learner", "collect", 4))
    output, _ = process.communicate()
    assert process.returncode == exit_codes.ATTEMPT_FAILED, output
    assert re.search(r"learner died on node \S+ \([0-9a-f]{56}\): ", output), output
    again = placed.start("--resume", program=losing_node_of(NOBODY, "collect", 1))
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert [event["from_step"] for event in placed.of_kind("started")] == [0, 2]
    assert trained(placed) == EACH_ONCE
    assert summary(placed) == {}
