"""A trajectory as a document of the Agent Trajectory Interchange Format, version 1.8.

The first branch is the document, the others stand in its ``subagent_trajectories``: the format has no better place for
them, and nobody recorded whether they were sub-agents.  A step that stands in an earlier branch's segment is marked
``is_copied_context``, so that whoever trains on steps sees each of them once.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from engine.spec.branches import Exchange, branches_of, exchanges_of
from engine.spec.trajectory import ToolCall, Trajectory
from webapp.trajectories.chat_export import call_ids, calls_by_record

SCHEMA_VERSION = "ATIF-v1.8"
NOTES = (
    "Texts stand as they were in the policy's context, with the marks of its chat template. Each branch is a context "
    "that the policy read; those after the first are in subagent_trajectories, be they a summary or a sub-agent."
)
Document = dict[str, Any]


def atif_of(trajectory: Trajectory, run: str, environment: str) -> Iterator[Document]:
    """The document without the other branches, then those, each made when it is asked for."""
    agent = {"name": environment, "version": str(trajectory.sampled_at_version)}
    branches = branches_of(trajectory)
    exported: set[int] = set()
    for place, branch in enumerate(branches or [None]):
        exchanges = [] if branch is None else exchanges_of(trajectory, branch)
        steps = list(_steps(trajectory, exchanges, exported)) or [_question(trajectory)]
        exported |= {exchange.passage.number for exchange in exchanges if exchange.passage.is_whole}
        yield {
            "schema_version": SCHEMA_VERSION,
            "session_id": run,
            "trajectory_id": trajectory.id if place == 0 else f"{trajectory.id}/segment-{branch}",
            "agent": agent,
            "steps": steps,
            "final_metrics": _totals(steps),
            "extra": _facts(trajectory) if place == 0 else {"segment": branch},
        } | ({"notes": NOTES} if place == 0 else {})


def _facts(trajectory: Trajectory) -> Document:
    facts = ("purpose", "prompt", "member", "sampled_at_version", "trained_at_step", "stop_reason", "success")
    return {"task": trajectory.task.id, "reward": trajectory.reward, "rewards": trajectory.rewards} | {
        name: getattr(trajectory, name) for name in facts
    }


def _question(trajectory: Trajectory) -> Document:
    """The one step of a rollout without a turn, for the format asks for at least one."""
    return {"step_id": 1, "source": "user", "message": trajectory.task.question}


def _totals(steps: list[Document]) -> Document:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    return {
        "total_prompt_tokens": sum(of_step["prompt_tokens"] for of_step in metrics),
        "total_completion_tokens": sum(of_step["completion_tokens"] for of_step in metrics),
        "total_steps": len(steps),
    }


def _steps(trajectory: Trajectory, exchanges: list[Exchange], exported: set[int]) -> Iterator[Document]:
    numbered = 1
    lengths = accumulate(exchange.tokens for exchange in exchanges)
    by_record = calls_by_record(trajectory, exchanges)
    for exchange, length, recorded in zip(exchanges, lengths, by_record, strict=True):
        copied = exchange.passage.number in exported or not exchange.passage.is_whole
        mark = {"is_copied_context": True} if copied else {}
        if not exchange.read_results:
            yield {"step_id": numbered, "source": "user", "message": exchange.read_text} | mark
            numbered += 1
        yield {"step_id": numbered} | _agent_step(exchange, recorded) | (mark or _metrics(exchange, length))
        numbered += 1


def _agent_step(exchange: Exchange, recorded: bool) -> Document:
    turn = exchange.passage.turn
    extra: Document = {"turn": exchange.passage.number, "segment": exchange.passage.segment}
    if exchange.unknown_tokens:
        extra["unknown_tokens"] = exchange.unknown_tokens
    if exchange.read_results:
        extra["read"] = exchange.read_text
    if turn.prefilled:
        extra["prefilled"] = True
    calls = list(zip(call_ids(exchange), turn.tool_calls, strict=True)) if recorded else []
    called = {
        "tool_calls": [_call(name, call) for name, call in calls],
        "observation": {"results": [{"source_call_id": name, "content": call.output} for name, call in calls]},
    }
    message = {"source": "agent", "message": exchange.passage.sampled_text, "extra": extra}
    if turn.began_at is not None:
        message["timestamp"] = datetime.fromtimestamp(turn.began_at, UTC).isoformat(timespec="milliseconds")
        extra["generation_seconds"] = turn.seconds
    return message | (called if calls else {})


def _call(name: str, call: ToolCall) -> Document:
    """Arguments that could not be read as an object stand in ``extra``, for the format takes objects only."""
    extra: Document = {"status": call.status, "seconds": call.seconds}
    extra |= {} if call.error_class is None else {"error_class": call.error_class}
    extra |= {} if call.written is None else {"written": call.written}
    return {"tool_call_id": name, "function_name": call.name, "arguments": call.arguments, "extra": extra}


def _metrics(exchange: Exchange, length: int) -> Document:
    """``length``: of the context with what was sampled."""
    turn = exchange.passage.turn
    metrics = {
        "prompt_tokens": length - len(turn.token_ids),
        "completion_tokens": len(turn.token_ids),
        "completion_token_ids": turn.token_ids,
        "logprobs": turn.logprobs,
    }
    return {"metrics": metrics}
