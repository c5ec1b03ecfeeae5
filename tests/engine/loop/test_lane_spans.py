"""Spans of lanes: one for each turn, as many as an event holds, and none of a lane's busy time lost."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from engine.loop.lane_spans import MOST_KEPT, SpanLog, fitted
from engine.rollout.worker import UnkeptTurn
from engine.spec.event import MOST_SPANS, LaneSpan
from engine.spec.trajectory import Segment, ToolCall, Trajectory, Turn
from webapp.runs.lanes import StepLanes, covered_seconds, use_of

Play = Callable[..., Trajectory]


def turn(began_at: float | None, seconds: float | None, calls: tuple[tuple[float | None, float], ...] = ()) -> Turn:
    return Turn(
        context_ids=[1],
        context_text="?",
        token_ids=[2],
        pieces=["!"],
        logprobs=[0.0],
        policy_versions=[0],
        began_at=began_at,
        seconds=seconds,
        tool_calls=[ToolCall(name="f", output="", status="ok", began_at=at, seconds=took) for at, took in calls],
    )


@pytest.fixture
def played(rollout: Play) -> Play:
    def made(*turns: Turn, name: str = "train-0-0") -> Trajectory:
        return rollout().model_copy(update={"id": name, "segments": [Segment(turns=[*turns])]})

    return made


def span(began_at: float, seconds: float, lane: str = "generation") -> LaneSpan:
    return LaneSpan.model_validate({"lane": lane, "label": "train-0-0", "began_at": began_at, "seconds": seconds})


def busy(spans: list[LaneSpan]) -> float:
    return covered_seconds([(it.began_at, it.began_at + it.seconds) for it in spans])


def test_a_turn_is_in_the_lane_of_generation_and_its_calls_are_in_the_environments(played: Play) -> None:
    log = SpanLog()
    log.add_turns([played(turn(10.0, 2.0, ((12.0, 1.0), (12.0, 0.5))), turn(13.5, 0.5), name="train-3-1")])
    assert [(it.lane, it.label, it.began_at, it.seconds) for it in log.taken()] == [
        ("generation", "train-3-1", 10.0, 2.0),
        ("environment", "train-3-1", 12.0, 1.5),
        ("generation", "train-3-1", 13.5, 0.5),
    ]
    assert log.taken() == []


def test_turns_of_rollouts_that_are_not_used_are_in_the_lane_of_generation_and_say_so() -> None:
    log = SpanLog()
    log.add_unkept([UnkeptTurn("train-3-2", 10.0, 2.0), UnkeptTurn("train-3-2", 12.0, 0.0)])
    assert [(it.lane, it.label, it.began_at, it.seconds) for it in log.taken()] == [
        ("generation", "train-3-2, not used", 10.0, 2.0)
    ]


def test_what_no_clock_knows_of_is_in_no_lane(played: Play) -> None:
    log = SpanLog()
    log.add_turns([played(turn(None, None, ((None, 0.0),)))])
    assert log.taken() == []


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_call_whose_seconds_are_none_is_in_no_lane_and_ends_no_run(played: Play, seconds: float) -> None:
    call = ToolCall(name="f", output="", status="ok", began_at=2.0, seconds=0.0)
    timed = turn(1.0, 0.5).model_copy(update={"tool_calls": [call.model_copy(update={"seconds": seconds})]})
    log = SpanLog()
    log.add_turns([played(timed)])
    assert [it.lane for it in log.taken()] == ["generation"]


def test_an_event_holds_what_it_may_and_lanes_with_few_spans_keep_them_all(played: Play) -> None:
    log = SpanLog()
    for number in range(30):
        log.add("rollouts", f"prompt {number}", 1.0)
    log.phase_ended("update", 2.0)
    log.add_turns(played(turn(at, 0.25, ((at + 0.25, 0.5),))) for at in map(float, range(1000)))
    taken = log.taken()
    assert len(taken) <= MOST_SPANS
    assert [it.began_at for it in taken] == sorted(it.began_at for it in taken)
    of = {lane: [it for it in taken if it.lane == lane] for lane in ("rollouts", "generation", "environment")}
    assert len(of["rollouts"]) == 30
    assert [it.label for it in taken if it.lane == "training"] == ["update"]
    assert all(len(of[lane]) > 150 for lane in ("generation", "environment"))
    assert sum(it.joined for it in of["generation"]) == 1000
    assert sum(it.work for it in of["environment"]) == pytest.approx(500.0)
    assert {it.label.partition(" ")[2] for it in of["generation"] if it.joined > 1} == {"turns"}


@pytest.mark.parametrize("seed", range(20))
def test_joined_spans_cover_what_they_stand_for_and_the_longest_stay(seed: int) -> None:
    dice = random.Random(seed)
    spans = [
        span(dice.uniform(0, dice.choice((10, 400))), 0.01 + dice.paretovariate(1.5) / 10)
        for _ in range(dice.randint(50, 900))
    ]
    room = dice.randint(2, 200)
    found = fitted(spans, room)
    assert len(found) <= max(room, len(spans) * (len(spans) <= room))
    assert sum(it.joined for it in found) == len(spans)
    assert sum(it.work for it in found) == pytest.approx(sum(it.seconds for it in spans))
    longest = sorted((it.seconds for it in spans), reverse=True)[: room // 2 if len(spans) > room else None]
    assert sorted((it.seconds for it in found if it.joined == 1), reverse=True)[: len(longest)] == longest
    edges = [edge for it in found for edge in (it.began_at, it.began_at + it.seconds)]
    for it in spans:
        assert min(edges) <= it.began_at
        assert any(kept.began_at <= it.began_at and it.seconds <= kept.seconds + 1e-9 for kept in found)
    assert busy(found) >= busy(spans) - 1e-9
    if len(spans) > room:
        ordered = sorted((it for it in found if it.joined > 1), key=lambda it: it.began_at)
        assert all(one.began_at + one.seconds <= other.began_at + 1e-9 for one, other in pairwise(ordered))


def test_a_busy_lane_stays_as_busy_where_turns_follow_each_other_without_a_gap() -> None:
    spans = [span(number * 0.1, 0.1) for number in range(2000)]
    assert busy(fitted(spans, 40)) == pytest.approx(busy(spans)) == pytest.approx(200.0)


def test_a_step_of_very_many_turns_is_joined_before_it_is_over(played: Play) -> None:
    log = SpanLog()
    for number in range(MOST_KEPT + 500):
        log.add_turns([played(turn(float(number), 0.5))])
    taken = log.taken()
    assert len(taken) <= MOST_SPANS
    assert sum(it.joined for it in taken) == MOST_KEPT + 500
    assert sum(it.work for it in taken) == pytest.approx((MOST_KEPT + 500) / 2)


def test_the_page_counts_each_joined_turn_for_itself_and_names_a_single_one_as_the_longest() -> None:
    joined = {"joined": 4, "work_seconds": 12.0}
    spans = [span(0.0, 6.0).model_dump() | joined, span(6.0, 2.0).model_dump() | {"label": "train-1-1"}]
    (use,) = use_of([StepLanes(1, spans)])
    assert use.at_once == pytest.approx(14 / 8)
    assert use.longest.label == "train-1-1"
