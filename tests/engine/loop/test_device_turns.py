"""Generator and trainer take turns: moved by a clock by hand, and in runs whose generation and training overlap."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from engine.cluster.workers import WorkerGroup
from engine.loop.device_turns import METRICS, DeviceTurns, Groups, multiplexing_of
from engine.loop.lane_spans import SpanLog
from engine.spec.placement import Placement
from engine.spec.resources import Resources
from engine.spec.run import RunSpec
from engine.spec.schedule import Schedule
from tests.engine.loop.test_asynchronous_runs import EACH_ONCE, RATIO, rollouts, steps_of, toml, trained, training_of
from tests.engine.trainings import Training


class Generator:
    """A generator, as far as turns are concerned; two of them are played on elsewhere."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def suspend(self) -> int:
        self.calls.append("suspend")
        return 2

    async def resume(self) -> None:
        self.calls.append("resume")


class Scene:
    def __init__(self, hold_s: float = 0.0, generators: int = 1) -> None:
        self.now_s = 100.0
        self.groups = Groups(ready=0, running=4, may_train=False)
        self.generator, self.spans = Generator(), SpanLog()
        self.turns = DeviceTurns(
            cast(WorkerGroup, self.generator),
            self.spans,
            lambda: self.groups,
            settings=multiplexing_of(
                Schedule(async_ratio=1, prompts_per_step=4, multiplexing_hold_s=hold_s),
                Resources(generators=generators),
            ),
            now_s=lambda: self.now_s,
        )

    async def train(self) -> None:
        self.groups = Groups(ready=4, running=0, may_train=True)
        await self.turns.for_training()


async def test_a_step_gets_the_devices_and_rollouts_get_them_back() -> None:
    scene = Scene()
    await scene.train()
    assert scene.generator.calls == ["suspend"]
    scene.now_s += 3
    scene.groups = Groups(ready=1, running=3, may_train=False)
    assert await scene.turns.give_back() is None
    assert scene.generator.calls == ["suspend", "resume"]
    scene.now_s += 2
    assert scene.turns.metrics() == {
        "multiplexing/moves": 2,
        "multiplexing/rollout_seconds": 2,
        "multiplexing/training_seconds": 3,
        "multiplexing/held_seconds": 0,
        "multiplexing/moved_turns": 2,
    }
    spans = {(span.lane, span.label, span.seconds) for span in scene.spans.taken()}
    assert spans == {("devices", "rollouts", 0), ("devices", "training", 3)}
    assert set(scene.turns.metrics().values()) == {0}


async def test_where_others_play_on_an_idle_trainer_is_patient_and_the_lane_says_how_many_it_has() -> None:
    scene = Scene(hold_s=5, generators=4)
    await scene.train()
    scene.now_s += 6
    scene.groups = Groups(ready=3, running=2, may_train=False)
    assert await scene.turns.give_back() == 10, "twice the hold, from the moment when it was seen to be idle"
    scene.now_s += 10
    assert await scene.turns.give_back() is None
    assert scene.generator.calls == ["suspend", "resume"]
    assert {span.label for span in scene.spans.taken()} == {"rollouts", "training (1 of 4)"}


async def test_a_trainer_whose_next_batch_is_ready_keeps_them() -> None:
    scene = Scene()
    await scene.train()
    scene.now_s += 60
    assert await scene.turns.give_back() is None
    await scene.turns.for_training()
    assert scene.generator.calls == ["suspend"]


async def test_a_batch_that_lacks_a_straggler_is_none_however_many_are_ready() -> None:
    scene = Scene()
    await scene.train()
    scene.groups = Groups(ready=7, running=1, may_train=False)
    assert await scene.turns.give_back() is None
    assert scene.generator.calls == ["suspend", "resume"]


async def test_they_change_sides_no_sooner_than_they_are_held_and_whoever_waits_gives_back_then() -> None:
    scene = Scene(hold_s=5)
    await scene.train()
    scene.groups = Groups(ready=0, running=4, may_train=False)
    scene.now_s += 2
    assert await scene.turns.give_back() == 3
    assert scene.generator.calls == ["suspend"]
    scene.now_s += 3 - 1e-3
    changed = asyncio.Event()
    waiting = asyncio.create_task(scene.turns.change(changed))
    await asyncio.sleep(0)
    scene.now_s += 1e-3
    async with asyncio.timeout(30):
        while scene.generator.calls != ["suspend", "resume"]:  # noqa: ASYNC110  a call sets no event
            await asyncio.sleep(0.001)
    changed.set()
    await waiting


async def test_an_evaluation_and_a_pause_have_them_at_once() -> None:
    scene = Scene(hold_s=5)
    await scene.train()
    await scene.turns.for_rollouts()
    await scene.turns.for_rollouts()
    assert scene.generator.calls == ["suspend", "resume"]


@pytest.mark.parametrize(
    ("schedule", "resources", "reason"),
    [
        ({"async_ratio": 0}, {}, "take turns anyway"),
        ({"weight_exchange": "episode-borders"}, {}, "could not go on"),
        ({"multiplexing_hold_s": 300}, {}, "is a stall"),
        ({}, {"device": "cuda", "placement": Placement(generator="apart")}, "nothing to share"),
    ],
)
def test_it_is_refused_where_there_is_nothing_to_take_turns_on(
    schedule: dict[str, Any], resources: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        RunSpec(
            name="r",
            schedule=Schedule(**({"async_ratio": 1, "multiplexing": True} | schedule)),
            resources=Resources(**resources),
        )


MULTIPLEXED = (f"async_ratio = {RATIO}", "multiplexing = true", "multiplexing_hold_s = 0.05")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("multiplexed")
    with training_of(toml(*MULTIPLEXED), folder) as training:
        training.finish("--in-process")
    return training


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestRuns:
    def test_every_prompt_is_trained_on_once_and_nothing_is_older_than_the_ratio(self, finished: Training) -> None:
        assert trained(finished) == EACH_ONCE
        ages = [rollout["trained_at_step"] - 1 - rollout["sampled_at_version"] for rollout in rollouts(finished)]
        assert max(ages) in range(1, RATIO + 1)

    def test_the_devices_change_sides_and_nothing_is_trained_while_rollouts_have_them(self, finished: Training) -> None:
        spans = [span for event in finished.of_kind("lanes") for span in event["spans"]]
        turns = [span for span in spans if span["lane"] == "devices"]
        owners = [span["label"] for span in sorted(turns, key=lambda span: span["began_at"])]
        assert owners == ["rollouts", "training"] * (len(owners) // 2) + ["rollouts"] * (len(owners) % 2)
        assert owners.count("training") >= 2
        updates = [span for span in spans if span["label"] in ("credit", "update")]
        assert updates
        for update in updates:
            for turn in turns:
                if turn["label"] == "rollouts":
                    assert shared_s(update, turn) < 0.02, "the clocks of two spans differ by less"

    def test_metrics_say_who_had_them(self, finished: Training) -> None:
        for values in steps_of(finished):
            assert values.keys() >= METRICS
        totals = {name: sum(values[name] for values in steps_of(finished)) for name in METRICS}
        assert totals["multiplexing/moves"] >= 4
        assert totals["multiplexing/rollout_seconds"] > 0
        assert totals["multiplexing/training_seconds"] > 0

    @pytest.mark.soak  # test_asynchronous_runs.py kills a run at a moment of its collection
    def test_a_run_that_is_killed_while_the_trainer_has_them_trains_on_every_prompt_once(self, tmp_path: Path) -> None:
        with training_of(toml(*MULTIPLEXED), tmp_path) as training:
            training.die("update", 3, "--in-process")
            training.finish("--in-process", "--resume")
            assert trained(training) == EACH_ONCE


def shared_s(one: dict[str, Any], other: dict[str, Any]) -> float:
    begin = max(one["began_at"], other["began_at"])
    return float(min(one["began_at"] + one["seconds"], other["began_at"] + other["seconds"]) - begin)
