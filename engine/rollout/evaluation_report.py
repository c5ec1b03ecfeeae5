"""How the table of an evaluation is made of its trajectories.

Discarded episodes are not in it: they count neither as success nor as failure.  A tool that does not exist, whose name
a policy made up, counts in a row that all of those share.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from engine.algorithms.success import pass_at_k, success_rate
from engine.rollout.evaluation import of_parts
from engine.spec.evaluation_report import EvaluationReport, Level, PartRates, Rate, ToolUse
from engine.spec.trajectory import ToolCall, Trajectory

MOST_ROWS = 64
"""The most rows of levels, and of tools: the report is part of an event."""
NO_SUCH_TOOL = "(no such tool)"
Row = TypeVar("Row")
Key = TypeVar("Key")


def evaluation_report(trajectories: Sequence[Trajectory], *, step: int, samples: int) -> EvaluationReport:
    """``samples`` is how many sampled tries of each task were asked for; some may have been lost."""
    levels = _rows(trajectories, lambda trajectory: trajectory.task.level)
    sampled = [trajectory for trajectory in trajectories if trajectory.purpose == "eval-sampled"]
    return EvaluationReport(
        step=step,
        samples=samples,
        **_rates(trajectories, samples),
        levels=[Level(level=level, **_rates(rows, samples)) for level, rows in sorted(levels.items())[:MOST_ROWS]],
        levels_left_out=max(0, len(levels) - MOST_ROWS),
        parts=[PartRates(part=part, **_rates(rows, samples)) for part, rows in of_parts(trajectories).items()],
        tools=_tools(sampled or trajectories),  # where no model samples, of all who try the environment
    )


def _rates(trajectories: Iterable[Trajectory], samples: int) -> dict[str, Any]:
    """The fields of ``Rates``."""
    by_purpose = _rows(trajectories, lambda trajectory: trajectory.purpose)
    counts = {purpose: _counts(rows) for purpose, rows in by_purpose.items()}
    return {
        "tasks": max(map(len, counts.values()), default=0),
        **{purpose.removeprefix("eval-"): _rate(tasks) for purpose, tasks in counts.items()},
        "pass_at": _pass_at(counts.get("eval-sampled", []), samples),
    }


def _pass_at(counts: Sequence[tuple[int, int]], samples: int) -> dict[str, float]:
    """pass@k for k = 1, 2, 4 ... and ``samples``: the mean over the tasks that have so many tries."""
    powers = [2**power for power in range(samples.bit_length())]
    found: dict[str, float] = {}
    for k in sorted({*powers, samples}):
        chances = [pass_at_k(tries, won, k) for won, tries in counts if tries >= k]
        if chances:
            found[str(k)] = sum(chances) / len(chances)
    return found


def _rate(counts: Sequence[tuple[int, int]]) -> Rate:
    tries = [tried for _, tried in counts]
    estimate = success_rate([won for won, _ in counts], tries)
    return Rate(success=estimate.rate, low=estimate.low, high=estimate.high, episodes=sum(tries))


def _counts(trajectories: Iterable[Trajectory]) -> list[tuple[int, int]]:
    """The successes and the tries of each task, all of one purpose."""
    tasks = _rows(trajectories, lambda trajectory: trajectory.prompt)
    return [(sum(row.success for row in rows), len(rows)) for rows in tasks.values()]


def _tools(sampled: Sequence[Trajectory]) -> list[ToolUse]:
    calls: defaultdict[str, list[ToolCall]] = defaultdict(list)
    callers: defaultdict[str, dict[str, Trajectory]] = defaultdict(dict)
    for trajectory in sampled:
        for call in trajectory.tool_calls:
            calls[_named(call)].append(call)
            callers[_named(call)][trajectory.id] = trajectory
    most_called = sorted(calls, key=lambda name: (-len(calls[name]), name))[:MOST_ROWS]
    return [
        ToolUse(
            tool=name,
            calls=len(calls[name]),
            failed=sum(call.failed for call in calls[name]),
            callers=_rate(_counts(callers[name].values())),
        )
        for name in most_called
    ]


def _named(call: ToolCall) -> str:
    return NO_SUCH_TOOL if call.error_class == "unknown-tool" or not call.name else call.name


def _rows(rows: Iterable[Row], key: Callable[[Row], Key]) -> Mapping[Key, list[Row]]:
    by_key: defaultdict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[key(row)].append(row)
    return by_key
