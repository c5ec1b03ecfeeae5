"""Clocks of other nodes: how far they are ahead, and trajectories whose times are moved to the loop's."""

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.clocks import Clocks, Comparison
from engine.cluster.ray_workers import RayWorkers
from engine.rollout.worker import Collected, UnkeptTurn
from engine.spec.run import RunSpec
from engine.spec.trajectory import Segment, Trajectory
from tests.engine.cluster.test_ray_workers import Actor, dead, nothing, reading
from tests.engine.groups import requests_of
from tests.engine.loop.test_lane_spans import turn

Play = Callable[..., Trajectory]


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def clocks(reported: list[str]) -> Clocks:
    return Clocks(reported.append)


@pytest.fixture
def trajectory(rollout: Play) -> Trajectory:
    turns = [turn(1000.0, 2.0, ((1002.0, 1.0), (None, 0.0))), turn(None, None)]
    return rollout().model_copy(update={"segments": [Segment(turns=turns)]})


def times(trajectory: Trajectory) -> list[tuple[float | None, list[float | None]]]:
    return [(it.began_at, [call.began_at for call in it.tool_calls]) for it in trajectory.turns]


def asked(at: float, ahead_s: float, took_s: float = 0.01) -> Comparison:
    """The answer left the worker in the middle."""
    return Comparison(at, at + took_s / 2 + ahead_s, at + took_s)


@pytest.mark.parametrize("ahead_s", [30.0, -30.0])
def test_times_of_a_worker_whose_clock_differs_are_moved_and_it_is_reported_once(
    clocks: Clocks, reported: list[str], trajectory: Trajectory, ahead_s: float
) -> None:
    for at in (500.0, 510.0, 520.0):
        clocks.compared("rollout-1", "node-b", asked(at, ahead_s))
    [moved] = clocks.by_ours("rollout-1", [trajectory])
    assert times(moved) == [(pytest.approx(1000.0 - ahead_s), [pytest.approx(1002.0 - ahead_s), None]), (None, [])]
    assert [it.seconds for it in moved.turns] == [2.0, None]
    [line] = reported
    where = "ahead of" if ahead_s > 0 else "behind"
    assert f"the clock of rollout-1 on node node-b is 30.0 s {where} the loop's" in line
    assert "NTP" in line


@pytest.mark.parametrize("ahead_s", [30.0, -30.0])
def test_turns_without_a_trajectory_are_moved_too(clocks: Clocks, trajectory: Trajectory, ahead_s: float) -> None:
    clocks.compared("rollout-1", "node-b", asked(500.0, ahead_s))
    unkept = [UnkeptTurn("train-0-1", 1000.0, 2.0), UnkeptTurn("train-0-2", -100.0, 2.0)]
    moved = clocks.move(Collected([trajectory], unkept_turns=unkept), "rollout-1")
    assert times(moved.trajectories[0])[0][0] == pytest.approx(1000.0 - ahead_s)
    [turn] = moved.unkept_turns  # the other one is of no time that there was
    assert (turn.rollout, turn.began_at, turn.seconds) == ("train-0-1", pytest.approx(1000.0 - ahead_s), 2.0)


def test_what_the_way_there_may_explain_is_no_difference(
    clocks: Clocks, reported: list[str], trajectory: Trajectory
) -> None:
    clocks.compared("rollout-0", "node", asked(500.0, 0.9, took_s=2.0))
    assert clocks.by_ours("rollout-0", [trajectory]) == [trajectory]
    assert clocks.by_ours("rollout-7", [trajectory]) == [trajectory]
    assert reported == []


def test_a_quick_answer_counts_more_than_a_slow_one_and_not_for_ever(clocks: Clocks) -> None:
    clocks.compared("rollout-0", "node", asked(500.0, 3.0, took_s=0.01))
    clocks.compared("rollout-0", "node", asked(501.0, 3.4, took_s=1.0))
    assert clocks.ahead_s("rollout-0") == pytest.approx(3.0)
    clocks.compared("rollout-0", "node", asked(90_000.0, 3.4, took_s=1.0))
    assert clocks.ahead_s("rollout-0") == pytest.approx(3.4)


def test_a_clock_that_is_set_is_believed_at_once_and_reported_again(clocks: Clocks, reported: list[str]) -> None:
    clocks.compared("rollout-0", "node", asked(500.0, 60.0, took_s=0.001))
    clocks.compared("rollout-0", "node", asked(510.0, 0.0, took_s=0.2))
    assert clocks.ahead_s("rollout-0") == 0.0
    clocks.compared("rollout-0", "node", asked(520.0, -7.0))
    assert clocks.ahead_s("rollout-0") == pytest.approx(-7.0)
    assert [line.partition(" s ")[0].rpartition(" ")[2] for line in reported] == ["60.0", "0.0", "7.0"]
    assert ["NTP" in line for line in reported] == [True, False, True]


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
def test_a_comparison_during_which_the_loops_own_clock_was_set_changes_nothing(
    clocks: Clocks, reported: list[str], set_by_s: float
) -> None:
    for worker in ("rollout-0", "rollout-1"):
        if worker == "rollout-1":
            clocks.compared(worker, "node", asked(5000.0, 0.0))
        clocks.compared(worker, "node", Comparison(5010.0, 5010.005, 5010.01 + set_by_s))
        assert clocks.ahead_s(worker) == 0.0
        clocks.compared(worker, "node", asked(5020.0 + set_by_s, 0.0))
        assert clocks.ahead_s(worker) == 0.0
    assert reported == []


@pytest.mark.parametrize("ahead_s", [2e9, -1e11])
def test_a_turn_that_the_comparison_moves_beyond_every_date_has_no_time(
    clocks: Clocks, trajectory: Trajectory, ahead_s: float
) -> None:
    """The worker's clock was set after it had been compared."""
    clocks.compared("rollout-0", "node", asked(1.7e9, ahead_s, took_s=0.001))
    [moved] = clocks.by_ours("rollout-0", [trajectory])
    assert times(moved) == [(None, [None, None]), (None, [])]
    assert [it.seconds for it in moved.turns] == [None, None]
    assert Trajectory.model_validate_json(moved.model_dump_json()) == moved


def test_a_worker_that_was_replaced_is_compared_anew(clocks: Clocks, reported: list[str]) -> None:
    clocks.compared("rollout-0", "node-a", asked(500.0, 60.0, took_s=0.001))
    clocks.forget("rollout-0")
    assert clocks.ahead_s("rollout-0") == 0.0
    clocks.compared("rollout-0", "node-b", asked(501.0, 0.0, took_s=5.0))
    assert clocks.ahead_s("rollout-0") == 0.0
    assert len(reported) == 1


class TestWorkersOfANodeAhead:
    """The worker's clock is 100 s ahead; what is asked of the actors is what is asked of real ones."""

    AHEAD_S = 100.0

    @pytest.fixture
    def workers(
        self, small_spec: RunSpec, tmp_path: Path, reported: list[str], monkeypatch: pytest.MonkeyPatch, trajectory: Any
    ) -> RayWorkers:
        async def collect(*_: Any) -> Collected:
            return Collected([trajectory.model_copy(update={"id": "train-0-0"})])

        async def clock() -> float:
            return time.time() + self.AHEAD_S

        async def node_id() -> str:
            return "node-b"

        async def start() -> None: ...

        resources = small_spec.resources.model_copy(update={"rollout_workers": 1})
        workers = RayWorkers(
            small_spec.model_copy(update={"resources": resources}),
            name="t",
            connection=nullcontext(),
            report=lambda _, line: reported.append(line),
            security_log=tmp_path,
        )
        workers._actors["rollout-0"] = Actor(
            start=start, reading=reading, node_id=node_id, clock=clock, collect=collect, collect_group=collect
        )
        workers._actors["generator"] = Actor(readings=dead)
        asyncio.run(workers._settle_in("rollout-0"))
        return workers

    def test_it_is_reported_when_they_settle_in(self, workers: RayWorkers, reported: list[str]) -> None:
        assert [line for line in reported if "the clock of rollout-0 on node node-b is 100.0 s ahead" in line]

    @pytest.mark.parametrize("way", ["collect", "collect_group"])
    async def test_what_they_played_stands_where_it_was_by_the_loops_clock(
        self, workers: RayWorkers, small_spec: RunSpec, way: str
    ) -> None:
        requests = [it for it in requests_of(small_spec, 1) if it.id == "train-0-0"]
        if way == "collect":
            collected = await workers.collect(requests)
        else:
            collected = await workers.collect_group(requests, enough=1, fewest=1)
        began_at, [called_at, _] = times(collected.trajectories[0])[0]
        assert began_at == pytest.approx(900.0, abs=0.1)
        assert called_at == pytest.approx(902.0, abs=0.1)

    async def test_a_clock_that_is_set_while_others_still_play_moves_nothing_that_was_back_before(
        self, workers: RayWorkers, small_spec: RunSpec, trajectory: Trajectory
    ) -> None:
        async def clock() -> float:
            return time.time()

        async def late_collect(*_: Any) -> Collected:
            workers._actors["rollout-0"].clock = Actor(clock=clock).clock
            await workers.usage()
            return Collected([trajectory.model_copy(update={"id": "train-0-1"})])

        workers._spec = small_spec.model_copy(
            update={"resources": small_spec.resources.model_copy(update={"rollout_workers": 2})}
        )
        workers._actors["rollout-1"] = Actor(reading=reading, collect=late_collect)
        requests = [it for it in requests_of(small_spec, 1) if it.id in ("train-0-0", "train-0-1")]
        collected = await workers.collect(requests)
        began = {it.id: it.turns[0].began_at for it in collected.trajectories}
        assert began == {"train-0-0": pytest.approx(900.0, abs=0.1), "train-0-1": 1000.0}

    async def test_a_clock_that_is_set_during_the_run_is_noticed_with_the_next_reading(
        self, workers: RayWorkers, reported: list[str]
    ) -> None:
        async def clock() -> float:
            return time.time()

        workers._actors["rollout-0"].clock = Actor(clock=clock).clock
        await workers.usage()
        assert workers._clocks.ahead_s("rollout-0") == 0.0
        assert "0.0 s" in reported[-1]

    @pytest.mark.parametrize("asked_of", ["predecessor", "successor"])
    async def test_a_reading_while_a_worker_is_replaced_reports_no_clock_of_the_wrong_node(
        self, workers: RayWorkers, reported: list[str], monkeypatch: pytest.MonkeyPatch, asked_of: str
    ) -> None:
        asked, may_answer, starting, may_start = (asyncio.Event() for _ in range(4))

        async def late_clock() -> float:
            asked.set()
            await may_answer.wait()
            return time.time() + self.AHEAD_S

        async def late_start() -> None:
            starting.set()
            await may_start.wait()

        async def own_clock() -> float:
            return time.time() - 50.0

        async def other_node() -> str:
            return "node-c"

        successor = Actor(start=late_start, reading=reading, node_id=other_node, clock=own_clock)
        monkeypatch.setattr(workers, "_made", lambda _: successor)
        monkeypatch.setattr(workers._generators, "forget_worker", nothing)
        workers._actors["rollout-0"].clock = Actor(clock=late_clock).clock
        reported.clear()
        async with asyncio.TaskGroup() as tasks:
            if asked_of == "predecessor":
                tasks.create_task(workers.usage())
                await asked.wait()
                may_start.set()
                await workers._replace("rollout-0")
                may_answer.set()
            else:
                replacing = tasks.create_task(workers._replace("rollout-0"))
                await starting.wait()
                await workers.usage()
                may_start.set()
                await replacing
        assert workers._clocks.ahead_s("rollout-0") == pytest.approx(-50.0, abs=0.1)
        [line] = [line for line in reported if "the clock" in line]
        assert "rollout-0 on node node-c is 50.0 s behind" in line
