"""The generation lane beside the training: pauses, cancellations, stalls, failures, and what a step gets of it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.cluster.in_process import InProcessWorkers
from engine.launch import exit_codes
from engine.loop.expert_pool import ExpertPool
from engine.loop.planner import Played, planner_for
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected, UnkeptTurn
from engine.spec.rollout_group import RolloutGroup
from engine.spec.run import RunSpec
from engine.training.columns import CreditColumns, Updated, UpdateRequest
from tests.engine.groups import requests_of
from tests.engine.rigs import Rig, entered

pytestmark = pytest.mark.timeout(600)

Made = Callable[..., Rig]


@pytest.fixture
def rig(small_spec: RunSpec, tmp_path: Path, service: Any) -> Made:
    def made(workers: type[InProcessWorkers], recipe: dict[str, Any] | None = None, **schedule: Any) -> Rig:
        document = small_spec.model_dump()
        document["schedule"] |= {"async_ratio": 1, "steps": 4} | schedule
        document["recipe"] = {**document["recipe"], "preset": None} | (recipe or {})
        return Rig(RunSpec.model_validate(document), tmp_path, service, workers)

    return made


def trained(service: Any) -> Counter[int]:
    trajectories = [event["trajectory"] for event in service.of_kind("trajectory")]
    return Counter(rollout["prompt"] for rollout in trajectories if rollout["trained_at_step"] is not None)


class Noted(InProcessWorkers):
    """Notes which groups have begun."""

    begun: ClassVar[list[int]]

    async def start(self) -> None:
        type(self).begun = []
        await super().start()

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        self.begun.append(requests[0].prompt)
        return await super().collect_group(requests, enough=enough, fewest=fewest)


class HangingGroup(Noted):
    """The group of prompt 7 never comes back."""

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        if requests[0].prompt == 7:
            await asyncio.Event().wait()
        return await super().collect_group(requests, enough=enough, fewest=fewest)


def test_a_group_that_hangs_is_overtaken_and_then_stalls_the_run_by_name(rig: Made, service: Any) -> None:
    running = rig(HangingGroup, stall_timeout_s=20.0).start()
    assert running.ended() == exit_codes.ATTEMPT_FAILED
    assert "phase collect of step 2 waits for generation since" in str(running.attempt.reason)
    assert len(trained(service)) == 6
    assert 7 not in trained(service)


def test_a_cancel_ends_both_lanes(rig: Made, service: Any) -> None:
    running = rig(HangingGroup).start()
    service.wait_for(lambda service: service.heartbeats and service.heartbeats[-1].waiting_for == "generation")
    service.desired = "cancel"
    assert running.ended() == exit_codes.ENDED
    assert service.events[-1]["outcome"] == "cancelled"


def test_a_paused_run_begins_no_group_and_goes_on_where_it_was(rig: Made, service: Any) -> None:
    running = rig(Noted, steps=6).start()
    service.wait_for(entered("collect", 2))
    service.desired = "pause"
    service.wait_for(lambda service: service.heartbeats[-1].phase == "paused")
    begun, beats = list(Noted.begun), len(service.heartbeats)
    service.wait_for(lambda service: len(service.heartbeats) > beats + 10)
    assert Noted.begun == begun
    service.desired = "run"
    assert running.ended() == exit_codes.ENDED
    assert trained(service) == Counter(dict.fromkeys(range(36), 4))
    assert sorted(Noted.begun) == list(range(36))


class Lent(InProcessWorkers):
    """Notes whether the trainer has the devices; the credit of step 2 is slow."""

    is_lent: ClassVar[bool]
    at_updates: ClassVar[list[bool]]
    credited: ClassVar[threading.Event]

    async def start(self) -> None:
        type(self).is_lent, type(self).at_updates, type(self).credited = False, [], threading.Event()
        await super().start()

    async def credit(
        self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
    ) -> dict[str, CreditColumns]:
        if step == 2:
            await asyncio.to_thread(self.credited.wait)
        return await super().credit(groups, released, step=step)

    async def suspend(self) -> int:
        type(self).is_lent = True
        return await super().suspend()

    async def resume(self) -> None:
        type(self).is_lent = False
        await super().resume()

    async def update(self, request: UpdateRequest) -> Updated:
        self.at_updates.append(self.is_lent)
        return await super().update(request)


def test_a_paused_step_gives_back_the_devices_that_others_play_with_and_has_them_again_when_it_goes_on(
    rig: Made, service: Any
) -> None:
    running = rig(Lent, steps=2, multiplexing=True, multiplexing_hold_s=0.0).start()
    service.wait_for(entered("credit", 2))
    service.desired, beats = "pause", len(service.heartbeats)
    service.wait_for(lambda service: len(service.heartbeats) > beats + 2)
    in_the_step = Lent.is_lent
    Lent.credited.set()
    service.wait_for(lambda service: service.heartbeats[-1].phase == "paused")
    in_the_pause = Lent.is_lent
    service.desired = "run"
    assert running.ended() == exit_codes.ENDED
    assert (in_the_step, in_the_pause) == (True, False)
    assert Lent.at_updates == [True] * 2
    assert trained(service) == Counter(dict.fromkeys(range(12), 4))


class FailingGroup(InProcessWorkers):
    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        if requests[0].prompt == 13:
            raise ArithmeticError("the logits are not finite")
        return await super().collect_group(requests, enough=enough, fewest=fewest)


def test_what_a_group_raises_ends_the_attempt(rig: Made, service: Any) -> None:
    running = rig(FailingGroup).start()
    assert running.ended() == exit_codes.ATTEMPT_FAILED
    assert "the logits are not finite" in str(running.attempt.reason)
    assert service.of_kind("finished") == []


class Stubborn(InProcessWorkers):
    """The first group of the run hangs until it is aborted; its second start is played."""

    aborted: ClassVar[asyncio.Event]

    async def start(self) -> None:
        type(self).aborted = asyncio.Event()
        await super().start()

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        if requests[0].prompt == 0 and requests[0].version == 0:
            await self.aborted.wait()
            turn = UnkeptTurn(requests[0].id, time.time() - 0.5, 0.5)
            return Collected(unused_rollouts=len(requests), unused_tokens=7, unkept_turns=[turn])
        return await super().collect_group(requests, enough=enough, fewest=fewest)

    async def abort_group(self, key: tuple[int, int]) -> None:
        if key == (0, 0):
            self.aborted.set()
        await super().abort_group(key)


def test_a_discarded_group_is_played_again_under_newer_weights_and_its_cost_is_told(rig: Made, service: Any) -> None:
    assert rig(Stubborn, overdue="discard").start().ended() == exit_codes.ENDED
    assert Stubborn.aborted.is_set()
    assert trained(service) == Counter(dict.fromkeys(range(24), 4))
    steps = [event["values"] for event in service.of_kind("metric") if "train/reward" in event["values"]]
    assert sum(values["buffer/discarded_stale"] for values in steps) >= 1
    assert sum(values["redundancy/unused_tokens"] for values in steps) >= 7
    generated = [span for event in service.of_kind("lanes") for span in event["spans"] if span["lane"] == "generation"]
    assert [span["seconds"] for span in generated if span["label"].endswith(", not used")] == [0.5]
    again = [event["trajectory"] for event in service.of_kind("trajectory") if event["trajectory"]["prompt"] == 0]
    assert {rollout["sampled_at_version"] >= 2 for rollout in again if rollout["purpose"] == "train"} == {True}


class Alike(InProcessWorkers):
    """All rollouts of odd prompts fail, and of each even prompt one succeeds."""

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        collected = await super().collect_group(requests, enough=enough, fewest=fewest)
        collected.trajectories = [
            trajectory.model_copy(update={"success": trajectory.prompt % 2 == 0 and trajectory.member == 0})
            for trajectory in collected.trajectories
        ]
        return collected


def test_dynamic_sampling_replaces_groups_as_they_come(rig: Made, service: Any) -> None:
    sampling = {"selection": {"dynamic_sampling": {"max_rounds": 4}}}
    assert rig(Alike, sampling, steps=3).start().ended() == exit_codes.ENDED
    assert {prompt % 2 for prompt in trained(service)} == {0}
    assert trained(service).total() == 3 * 24
    trajectories = [event["trajectory"] for event in service.of_kind("trajectory")]
    dropped = [rollout for rollout in trajectories if rollout["masked_because"] == "dynamic-sampling"]
    assert {rollout["prompt"] % 2 for rollout in dropped} == {1}
    assert max(Counter(rollout["id"] for rollout in trajectories).values()) == 1


class Ahead(Noted):
    """For a while one group in four teaches something; the first update waits until nothing more is played."""

    running: ClassVar[int]
    taught: ClassVar[set[int]] = {*range(6), *range(8, 30, 4), *range(30, 100)}

    async def start(self) -> None:
        type(self).running = 0
        await super().start()

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        type(self).running += 1
        collected = await super().collect_group(requests, enough=enough, fewest=fewest)
        type(self).running -= 1
        collected.trajectories = [
            trajectory.model_copy(update={"success": trajectory.prompt in self.taught and trajectory.member == 0})
            for trajectory in collected.trajectories
        ]
        return collected

    async def update(self, request: UpdateRequest) -> Updated:
        while request.step == 1 and self.running:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
        return await super().update(request)


def test_groups_that_came_back_when_enough_were_replaced_are_replaced_for_the_next_step(
    rig: Made, service: Any
) -> None:
    sampling = {"selection": {"dynamic_sampling": {"max_rounds": 3}}}
    assert rig(Ahead, sampling, steps=3, async_ratio=2).start().ended() == exit_codes.ENDED
    trajectories = [event["trajectory"] for event in service.of_kind("trajectory")]
    at_steps = Counter(rollout["trained_at_step"] for rollout in trajectories)
    assert (at_steps[1], at_steps[3]) == (24, 24)


def test_what_a_group_draws_hangs_on_its_prompt_and_not_on_when_it_starts(small_spec: RunSpec) -> None:
    document = small_spec.model_dump()
    document["schedule"]["async_ratio"] = 3
    asynchronous = RunSpec.model_validate(document)
    planner = planner_for(asynchronous)
    plans = [request for step in (1, 2, 3) for request in requests_of(small_spec, step)]
    seeds = {(request.prompt, request.member): request.seed for request in plans}
    for round_number in range(3):
        played = Played(tasks_taken=6 * round_number, prompts=6 * round_number)
        for plan in planner.plans(round_number, played, ExpertPool()):
            started = replace(plan, seed_version=plan.version, version=round_number + 5)
            for request in planner.requests([started]):
                assert request.seed == seeds[request.prompt, request.member]
                assert request.version == round_number + 5
