"""The table of an evaluation."""

from typing import Any

import pytest

from engine.rollout.evaluation import report_metrics
from engine.rollout.evaluation_report import MOST_ROWS, NO_SUCH_TOOL, evaluation_report
from engine.spec.trajectory import Purpose, Segment, Task, ToolCall, Trajectory, Turn


def trajectory(
    purpose: Purpose, prompt: int, success: bool, *, member: int = 0, level: int = 1, calls: tuple[ToolCall, ...] = ()
) -> Trajectory:
    turn = Turn(
        context_ids=[1], context_text="", token_ids=[2], pieces=[""], logprobs=[0.0], policy_versions=[0],
        tool_calls=list(calls),
    )  # fmt: skip
    return Trajectory(
        id=f"{purpose}-{prompt}-{member}", purpose=purpose, prompt=prompt, member=member, sampled_at_version=0,
        segments=[Segment(turns=[turn])], stop_reason="answered", answer="1",
        task=Task(id="same", split="heldout", level=level, question="", answer="1"),
        success=success, reward=0.0, rewards={},
    )  # fmt: skip


def call(name: str, error: Any = None) -> ToolCall:
    return ToolCall(name=name, output="", status="error" if error else "ok", error_class=error, seconds=0.0)


def tried(wins: list[int], of: int, **more: Any) -> list[Trajectory]:
    return [
        trajectory("eval-sampled", prompt, member < won, member=member, **more)
        for prompt, won in enumerate(wins)
        for member in range(of)
    ]


def test_pass_at_k_counts_tasks_and_not_tries() -> None:
    report = evaluation_report(tried([4, 0, 1, 0], 4), step=0, samples=4)
    assert report.pass_at == {"1": 0.3125, "2": pytest.approx((1 + 0.5) / 4), "4": 0.5}
    assert report.sampled.success == 0.3125
    assert (report.tasks, report.sampled.episodes) == (4, 16)


def test_a_number_of_samples_that_is_no_power_of_two_has_its_own_pass_at_k() -> None:
    assert list(evaluation_report(tried([1, 6], 6), step=0, samples=6).pass_at) == ["1", "2", "4", "6"]


def test_a_task_that_lost_tries_is_left_out_of_the_ks_it_cannot_have() -> None:
    short = tried([2, 0], 2)[:3]
    report = evaluation_report(short, step=0, samples=2)
    assert report.pass_at == {"1": 0.5, "2": 1.0}


def test_greedy_and_sampled_tries_of_one_task_are_kept_apart_by_level() -> None:
    rows = [trajectory("eval-greedy", 7, True, level=2), *tried([1], 2, level=2), trajectory("eval-greedy", 8, False)]
    report = evaluation_report(rows, step=3, samples=2)
    first, second = report.levels
    assert (first.level, first.tasks, first.greedy.success) == (1, 1, 0.0)
    assert first.sampled is None
    assert (second.level, second.tasks, second.sampled.success) == (2, 1, 0.5)
    assert report.tasks == 2


def test_tools_count_calls_failures_and_the_success_of_those_that_called_them() -> None:
    rows = [
        trajectory("eval-sampled", 0, True, calls=(call("python"), call("python", "value"))),
        trajectory("eval-sampled", 1, False, calls=(call("python"),)),
        trajectory("eval-sampled", 2, False),
        trajectory("eval-greedy", 0, True, calls=(call("search"),)),
    ]
    [python] = evaluation_report(rows, step=0, samples=1).tools
    assert (python.tool, python.calls, python.failed) == ("python", 3, 1)
    assert (python.callers.success, python.callers.episodes) == (0.5, 2)


def test_names_that_a_policy_made_up_do_not_grow_the_report() -> None:
    made_up = tuple(call(f"tool-{number}" * 500, "unknown-tool") for number in range(300))
    report = evaluation_report([trajectory("eval-sampled", 0, False, calls=(*made_up, call("")))], step=0, samples=1)
    [row] = report.tools
    assert (row.tool, row.calls) == (NO_SUCH_TOOL, 301)
    assert len(report.model_dump_json()) < 2000


def test_a_world_of_many_levels_says_how_many_are_left_out() -> None:
    rows = [trajectory("eval-greedy", number, True, level=number) for number in range(MOST_ROWS + 5)]
    report = evaluation_report(rows, step=0, samples=1)
    assert (len(report.levels), report.levels_left_out) == (MOST_ROWS, 5)


def test_intervals_and_pass_at_k_are_curves() -> None:
    values = report_metrics(evaluation_report(tried([1, 2], 2), step=0, samples=2))
    assert set(values) == {"eval/success_sampled_low", "eval/success_sampled_high", "eval/pass_at_1", "eval/pass_at_2"}
