"""Small runs come to the same digits whatever becomes of the engine's inside: summary, metrics, rollouts and weights.

Where a change has to change them, ``python -m tests.engine.equality.runs --record`` writes the new ones; why they had
to change belongs into the commit's message.
"""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.equality.arithmetic import digest_of_this_machine, processor
from tests.engine.equality.comparing import differences, far_differences
from tests.engine.equality.runs import RUN_FILES, SETTINGS, Written, as_document, numbers_of, recorded, started

REMEDY = "if the change has to change them, say why and run: python -m tests.engine.equality.runs --record"
MOST_SHOWN = 40
SOAKED = ("household", "sokoban", "ppo")
"""The first two differ from others by their environment: ``ipa`` plays the first, with the loss that asks most of it.
The critic of the third learns in test_learner.py too."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in SOAKED else []) for name in RUN_FILES]
)
def test_a_small_run_comes_to_the_recorded_digits(name: str, tmp_path: Path) -> None:
    left, summary = started(name, tmp_path, SETTINGS)
    assert_worth_comparing(name, left)
    recording, now = recorded(), as_document(numbers_of(left, summary))
    different = differences(name, recording["runs"][name], now)
    if not different:
        return
    if digest_of_this_machine(SETTINGS) == recording["arithmetic"]:
        pytest.fail(
            f"{reported(different)}\nThis machine adds as the recorded one ({recording['processor']}); {REMEDY}"
        )
    warnings.warn(
        f"{name}: {processor()} adds otherwise than {recording['processor']}, where the digits were recorded: "
        f"{len(different)} of them differ, and were compared with a tolerance",
        stacklevel=1,
    )
    far = far_differences(name, recording["runs"][name], now)
    assert not far, f"{reported(far)}\n{REMEDY}"


def reported(different: list[str]) -> str:
    more = len(different) - MOST_SHOWN
    return "\n".join(different[:MOST_SHOWN] + ([f"and {more} more"] if more > 0 else []))


def assert_worth_comparing(name: str, left: Written) -> None:
    """Every part of the recipe had something to do."""
    assert any(values.get("train/grad_norm", 0.0) > 0 for _, values in left.metrics), "no step had a gradient"
    rewards = {rollout.numbers["rewards"][0] for rollout in left.rollouts if rollout.purpose == "train"}
    assert len(rewards) > 1, f"all rollouts earned the same: {rewards}"
    assert any(0 < values.get("train/success", 0.0) < 1 for _, values in left.metrics), "all succeeded, or none"
    assert OCCURRED[name](left), f"what {name} is about did not happen"


def _total(metric: str) -> Callable[[Written], float]:
    return lambda left: sum(values.get(metric, 0.0) for _, values in left.metrics)


OCCURRED: dict[str, Callable[[Written], Any]] = {
    "sample": _total("train/tool_error_rate"),
    "household": lambda left: len({tuple(rollout.numbers["advantages"]) for rollout in left.rollouts}) > 2,
    "sokoban": _total("train/turns"),
    "saar": lambda left: _total("train/repairs_shallow")(left) and _total("train/repairs_deep")(left),
    "spear": _total("sil/replayed"),
    "ipa": lambda left: _total("train/prefilled_groups")(left) and any(rollout.imitated for rollout in left.rollouts),
    "ppo": _total("critic/loss"),
}


@pytest.fixture
def run() -> dict[str, Any]:
    return recorded()["runs"]["spear"]


def changed(run: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    copied = copy.deepcopy(run)
    change(copied)
    return copied


def test_one_last_digit_is_reported_with_its_place_and_both_values(run: dict[str, Any]) -> None:
    loss = run["metrics"]["train/loss"]["2"]
    now = changed(run, lambda copied: copied["metrics"]["train/loss"].update({"2": loss * (1 + 2**-52)}))
    assert differences("spear", run, run) == []
    assert differences("spear", run, now) == [
        f"spear, step 2, train/loss: recorded {loss!r}, now {now['metrics']['train/loss']['2']!r}"
    ]


def test_a_number_that_is_no_longer_told_is_missed(run: dict[str, Any]) -> None:
    now = changed(run, lambda copied: copied["metrics"].pop("sil/replayed"))
    assert "spear, step 2, sil/replayed: recorded 11.0, now nothing" in differences("spear", run, now)
    assert far_differences("spear", run, now)


def test_other_weights_advantages_and_summaries_are_differences(run: dict[str, Any]) -> None:
    def change(copied: dict[str, Any]) -> None:
        copied["weights"] = "0" * 64
        copied["rollouts"]["train of step 3"]["advantages"] = "0" * 16
        copied["summary"]["trajectories_stored"] += 1

    assert len(differences("spear", run, changed(run, change))) == 3


def test_tolerance_forgives_noise_and_nothing_else(run: dict[str, Any]) -> None:
    def times(factor: float, metric: str, step: str) -> Callable[[dict[str, Any]], None]:
        return lambda copied: copied["metrics"][metric].update({step: run["metrics"][metric][step] * factor})

    def with_other_tokens(count: int) -> Callable[[dict[str, Any]], None]:
        return lambda copied: copied["rollouts"]["train of step 1"]["tokens"].__setitem__(
            slice(count), ["00000000"] * count
        )

    forgiven = [times(1 + 1e-5, "train/loss", "1"), times(1 + 1e-5, "sft/loss", "140"), with_other_tokens(1)]
    refused = [times(1.01, "train/loss", "1"), times(1.01, "sft/loss", "140"), with_other_tokens(5)]
    assert [far_differences("spear", run, changed(run, change)) for change in forgiven] == [[], [], []]
    assert all(far_differences("spear", run, changed(run, change)) for change in refused)
