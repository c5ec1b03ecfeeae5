"""What held-out episodes say about a policy."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from engine.rollout.context_metrics import context_metrics
from engine.spec.evaluation_report import EvaluationReport
from engine.spec.trajectory import Trajectory

WAYS = ("greedy", "sampled", "purified", "oracle", "nop", "script")
"""How held-out tasks are played: ``eval-<way>`` is the purpose."""


def evaluation_metrics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """``eval/...`` values.  Discarded episodes are not in here: they count neither as success nor as failure.

    The tool-error rate is that of the sampled episodes: failed tool calls / tool calls.  ``purified``
    episodes are sampled with SAAR at work, where the recipe asks for them.  Of contexts the sampled episodes speak.
    """
    by_purpose: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_purpose[trajectory.purpose].append(trajectory)
    sampled = by_purpose["eval-sampled"]
    values: dict[str, float] = {}
    for name in WAYS:
        if group := by_purpose[f"eval-{name}"]:
            values[f"eval/success_{name}"] = success_rate(group)
            values |= {f"eval/level_{level}_{name}": success_rate(some) for level, some in _by_level(group).items()}
    if sampled:
        values["eval/tool_error_rate"] = tool_error_rate(sampled)
    values |= {f"eval/{name}": value for name, value in context_metrics(sampled).items()}
    for name in WAYS:
        for part, group in of_parts(by_purpose[f"eval-{name}"]).items():
            values |= {
                f"eval/part/{part}/success_{name}": success_rate(group),
                f"eval/part/{part}/reward_{name}": fmean(trajectory.reward for trajectory in group),
                f"eval/part/{part}/turns_{name}": fmean(len(trajectory.turns) for trajectory in group),
            }
    for part, group in of_parts(sampled).items():
        values[f"eval/part/{part}/tool_error_rate"] = tool_error_rate(group)
    return values


def report_metrics(report: EvaluationReport) -> dict[str, float]:
    """What of a report (evaluation_report.py) is a curve: intervals and pass@k."""
    values: dict[str, float] = {}
    for name, rate in (("greedy", report.greedy), ("sampled", report.sampled)):
        if rate is not None:
            values |= {f"eval/success_{name}_low": rate.low, f"eval/success_{name}_high": rate.high}
    values |= {f"eval/pass_at_{k}": chance for k, chance in report.pass_at.items()}
    return values | {
        f"eval/part/{row.part}/pass_at_{k}": chance for row in report.parts for k, chance in row.pass_at.items()
    }


def of_parts(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """The trajectories of each part of the environment, by its name; nothing where it has no parts."""
    parts: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.task.part is not None:
            parts[trajectory.task.part].append(trajectory)
    return dict(sorted(parts.items()))


def success_rate(trajectories: Sequence[Trajectory]) -> float:
    return sum(trajectory.success for trajectory in trajectories) / len(trajectories)


def tool_error_rate(trajectories: Sequence[Trajectory]) -> float:
    """Failed tool calls / tool calls; 0 when no tool was called."""
    calls = sum(len(trajectory.tool_calls) for trajectory in trajectories)
    return sum(trajectory.tool_errors for trajectory in trajectories) / calls if calls else 0.0


def _by_level(trajectories: Iterable[Trajectory]) -> dict[int, list[Trajectory]]:
    levels: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        levels[trajectory.task.level].append(trajectory)
    return dict(sorted(levels.items()))
