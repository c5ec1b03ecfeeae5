"""Groups in play: how old they may become, who is waited for, and what a checkpoint keeps of them."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.loop.buffer import Batch, BufferState, GroupBuffer, ReadyGroup, StalenessExceeded, check_staleness
from engine.spec.rollout_group import GroupPlan
from engine.spec.schedule import Schedule
from engine.spec.trajectory import Trajectory
from tests.engine.conftest import rollout


def schedule(**fields: object) -> Schedule:
    return Schedule.model_validate({"prompts_per_step": 2, "group_size": 1, **fields})


def plan(prompt: int) -> GroupPlan:
    return GroupPlan(prompt=prompt, version=0, number=0, tasks_before=prompt, task=prompt)


def buffer_of(of: Schedule, *, prompts: int, most_dropped: int = 0) -> GroupBuffer:
    buffer = GroupBuffer(of, version=0, most_dropped=most_dropped, state=BufferState())
    buffer.plan(plan(prompt) for prompt in range(prompts))
    return buffer


def started(buffer: GroupBuffer) -> list[int]:
    begun = []
    while (group := buffer.start()) is not None:
        begun.append(group.prompt)
    return begun


def finish(buffer: GroupBuffer, *prompts: int) -> None:
    for prompt in prompts:
        buffer.finish(prompt, [rollout(prompt=prompt)], Counter())


def taken(buffer: GroupBuffer) -> list[int] | None:
    batch = buffer.take()
    return None if batch is None else [entry.plan.prompt for entry in batch.groups]


def step(buffer: GroupBuffer) -> list[int] | None:
    """Take a batch, train on it and hand its weights over."""
    prompts = taken(buffer)
    if prompts is not None:
        buffer.trained()
        buffer.advance(buffer.version + 1)
    return prompts


def test_ratio_0_starts_no_group_before_the_weights_of_the_last_batch_are_there() -> None:
    buffer = buffer_of(schedule(), prompts=4)
    assert started(buffer) == [0, 1]
    finish(buffer, 1, 0)
    assert taken(buffer) == [0, 1]
    assert started(buffer) == []
    buffer.trained()
    assert started(buffer) == []
    buffer.advance(1)
    assert started(buffer) == [2, 3]


def test_a_slow_group_is_overtaken_as_long_as_a_later_step_has_room_for_it() -> None:
    buffer = buffer_of(schedule(prompts_per_step=1, async_ratio=2), prompts=9)
    assert started(buffer) == [0, 1, 2]
    finish(buffer, 1)
    assert step(buffer) == [1]
    started(buffer)
    finish(buffer, 3)
    assert taken(buffer) is None  # 0 and 2 began at version 0, and one of them must be trained on now
    finish(buffer, 2)
    assert step(buffer) == [2]
    assert taken(buffer) is None
    finish(buffer, 0)
    assert step(buffer) == [0]


def test_overdue_groups_are_discarded_once_and_then_waited_for() -> None:
    buffer = buffer_of(schedule(prompts_per_step=1, async_ratio=1, overdue="discard"), prompts=9)
    assert started(buffer) == [0, 1]
    finish(buffer, 1)
    assert step(buffer) == [1]
    assert started(buffer) == [2]
    finish(buffer, 2)
    assert taken(buffer) == [2]
    buffer.trained()
    assert [group.prompt for group in buffer.advance(2).running] == [0]
    assert started(buffer) == [0, 3]
    finish(buffer, 3)
    assert step(buffer) == [3]
    assert started(buffer) == [4]
    finish(buffer, 4)
    assert taken(buffer) is None  # 0 is played for the second time
    finish(buffer, 0)
    assert step(buffer) == [0]


def test_a_redundant_group_is_given_up_where_a_batch_is_there_without_it() -> None:
    buffer = buffer_of(schedule(redundant_groups=1), prompts=6)
    assert started(buffer) == [0, 1, 2]
    finish(buffer, 2, 1)
    assert taken(buffer) == [1, 2]
    buffer.trained()
    given_up = buffer.advance(1)
    assert [group.prompt for group in given_up.running] == [0]
    assert given_up.ready == []
    assert started(buffer) == [0, 3, 4]


def test_a_group_that_teaches_nothing_gives_its_slot_away_so_often_and_no_more() -> None:
    buffer = buffer_of(schedule(), prompts=6, most_dropped=1)
    started(buffer)
    finish(buffer, 0, 1)
    assert (buffer.drop(0), buffer.drop(1)) == (True, False)
    assert started(buffer) == [2]
    finish(buffer, 2)
    batch = buffer.take()
    assert batch is not None
    assert [entry.plan.prompt for entry in batch.dropped] == [0]
    assert [entry.plan.prompt for entry in batch.groups] == [1, 2]


def test_a_checkpoint_inside_a_step_gives_back_what_the_step_has_taken() -> None:
    of = schedule(async_ratio=1)
    buffer = buffer_of(of, prompts=6, most_dropped=1)
    started(buffer)
    finish(buffer, 0, 1, 2)
    buffer.drop(0)
    assert taken(buffer) == [1, 2]
    again = GroupBuffer(of, version=0, most_dropped=1, state=buffer.state())
    assert again.counts == {"waiting": 3, "running": 0, "ready": 2, "taken": 0}
    assert started(again) == [3, 4]
    batch = again.take()
    assert batch is not None
    assert [entry.plan.prompt for entry in (*batch.groups, *batch.dropped)] == [1, 2, 0]
    buffer.trained()
    assert [entry.plan.prompt for entry in buffer.state().ready] == []


def test_what_a_checkpoint_holds_is_read_back_as_it_was() -> None:
    buffer = buffer_of(schedule(async_ratio=1), prompts=5)
    started(buffer)
    finish(buffer, 3)
    state = buffer.state()
    assert [entry.plan.prompt for entry in state.waiting] == [0, 1, 2, 4]
    assert BufferState.model_validate_json(state.model_dump_json()) == state


def test_no_rollout_older_than_the_ratio_is_trained_on() -> None:
    entry = ReadyGroup(plan=plan(0), members=[rollout(step=2)])  # sampled under version 1
    check_staleness(Batch((entry,)), version=3, ratio=2)
    with pytest.raises(StalenessExceeded, match="train-0-0: its first token is of version 1, and version 4 .* 2"):
        check_staleness(Batch((entry,)), version=4, ratio=2)


@cache
def sampled_at(version: int) -> Trajectory:
    return rollout(turns=1, step=version + 1)


@dataclass
class Simulation:
    """A run of the buffer in which everything takes as long as hypothesis likes."""

    of: Schedule
    buffer: GroupBuffer
    planned: int = 0
    step: int = 0
    trained: Counter[int] = field(default_factory=Counter)
    dropped: Counter[int] = field(default_factory=Counter)
    given_up: Counter[int] = field(default_factory=Counter)
    first_token: dict[int, int] = field(default_factory=dict)
    in_training: Batch | None = None

    def fill(self) -> None:
        while self.buffer.counts["waiting"] < 2:
            self.buffer.plan([plan(self.planned)])
            self.planned += 1
        while (group := self.buffer.start()) is not None:
            assert group.version == self.buffer.version
            self.first_token.pop(group.prompt, None)
        assert self.buffer.held_slots <= self.of.slots

    def running(self) -> list[int]:
        return [entry.plan.prompt for entry in self.buffer._running.values()]

    def sampled(self, choice: int) -> None:
        """A rollout gets its first token, perhaps long after its group began."""
        if running := self.running():
            self.first_token.setdefault(running[choice % len(running)], self.buffer.version)

    def played_again(self, choice: int) -> None:
        """A worker died: the group begins anew, and nothing is forgotten."""
        if running := self.running():
            self.first_token.pop(running[choice % len(running)], None)

    def finished(self, choice: int) -> None:
        if running := self.running():
            prompt = running[choice % len(running)]
            version = self.first_token.setdefault(prompt, self.buffer.version)
            self.buffer.finish(prompt, [sampled_at(version)], Counter())
            if choice % 5 == 0 and self.buffer.drop(prompt):
                self.dropped[prompt] += 1

    def trainer_moves(self) -> None:
        """Take a batch, or finish the one at hand and exchange the weights."""
        if self.in_training is None:
            self.in_training = self.buffer.take()
            if self.in_training is not None:
                assert len(self.in_training.groups) == self.of.prompts_per_step
                check_staleness(self.in_training, version=self.step, ratio=self.of.async_ratio)
            return
        self.trained.update(entry.plan.prompt for entry in self.in_training.groups)
        self.in_training, self.step = None, self.step + 1
        self.buffer.trained()
        lost = self.buffer.advance(self.step)
        prompts = [group.prompt for group in lost.running] + [entry.plan.prompt for entry in lost.ready]
        if self.of.overdue == "wait":
            assert len(prompts) <= self.of.redundant_groups
        self.given_up.update(prompts)

    def killed(self) -> None:
        """Go on from a checkpoint of this moment, as a resumed attempt does."""
        state = BufferState.model_validate_json(self.buffer.state().model_dump_json())
        self.buffer = GroupBuffer(self.of, version=self.step, most_dropped=2, state=state)
        lost = self.buffer.advance(self.step)
        self.given_up.update(entry.plan.prompt for entry in lost.ready)
        self.in_training, self.first_token = None, {}

    def check(self) -> None:
        counts = self.buffer.counts
        lost_or_doubled = self.planned - sum(counts.values()) - sum(self.trained.values()) - sum(self.dropped.values())
        assert lost_or_doubled == 0
        assert max(self.trained.values(), default=1) == 1
        assert max(self.given_up.values(), default=1) == 1, "a prompt is given up once"


SCHEDULES = st.builds(
    lambda prompts, ratio, redundant, overdue: schedule(
        prompts_per_step=prompts, async_ratio=ratio, redundant_groups=min(redundant, prompts), overdue=overdue
    ),
    prompts=st.integers(1, 4),
    ratio=st.integers(0, 4),
    redundant=st.integers(0, 4),
    overdue=st.sampled_from(["wait", "discard"]),
)
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["finished"] * 4 + ["trainer"] * 4 + ["sampled", "sampled", "again", "killed", "paused"]),
        st.integers(0, 10**6),
    ),
    min_size=20,
    max_size=120,
)


@given(SCHEDULES, MOVES)
@settings(max_examples=300)
def test_whatever_is_slow_dies_or_pauses_nothing_is_too_old_lost_or_trained_on_twice(
    of: Schedule, moves: list[tuple[str, int]]
) -> None:
    simulation = Simulation(of, GroupBuffer(of, version=0, most_dropped=2, state=BufferState()))
    paused = False
    for move, choice in moves:
        paused = not paused if move == "paused" else paused
        if not paused:
            simulation.fill()
        match move:
            case "finished":
                simulation.finished(choice)
            case "sampled":
                simulation.sampled(choice)
            case "again":
                simulation.played_again(choice)
            case "killed":
                simulation.killed()
            case "trainer":
                simulation.trainer_moves()
        simulation.check()


@given(SCHEDULES, MOVES)
@settings(max_examples=200)
def test_a_trainer_that_waits_waits_for_a_group_that_is_being_played(
    of: Schedule, moves: list[tuple[str, int]]
) -> None:
    simulation = Simulation(of, GroupBuffer(of, version=0, most_dropped=2, state=BufferState()))
    for move, choice in moves:
        simulation.fill()
        if move == "finished":
            simulation.finished(choice)
            simulation.fill()
        waits = simulation.in_training is None
        simulation.trainer_moves()
        if waits and simulation.in_training is None:
            assert simulation.running(), "everybody has come back, and still there is no batch"
