"""A trajectory as conversations in the form of OpenAI's chat API: one JSON document for each of its branches.

A trajectory keeps texts as they stood in the context, with the marks of the chat template, and not the messages that
they were written from.  So what was read before the first turn is one message of the user, and what was sampled is
said as it was sampled, except where its calls and their results are on record: those are told by the record.
``turns`` beside the messages has every text to the letter.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from engine.spec.branches import Exchange, branches_of, exchanges_of, results_are_known
from engine.spec.trajectory import ToolCall, Trajectory

Document = dict[str, Any]


def conversations_of(trajectory: Trajectory, run: str) -> Iterator[Document]:
    """One for each branch, made when it is asked for; none where the policy had no turn."""
    for branch in branches_of(trajectory):
        exchanges = exchanges_of(trajectory, branch)
        yield _facts(trajectory, run) | {
            "segment": branch,
            "messages": messages_of(trajectory, exchanges),
            "turns": [_turn(exchange) for exchange in exchanges],
        }


def _facts(trajectory: Trajectory, run: str) -> Document:
    facts = ("purpose", "prompt", "member", "sampled_at_version", "trained_at_step", "stop_reason")
    return {
        "run": run,
        "trajectory": trajectory.id,
        "task": trajectory.task.id,
        **{name: getattr(trajectory, name) for name in facts},
        "success": trajectory.success,
        "reward": trajectory.reward,
        "rewards": trajectory.rewards,
    }


def _turn(exchange: Exchange) -> Document:
    return {
        "turn": exchange.passage.number,
        "shared": exchange.passage.shared,
        "unknown_tokens": exchange.unknown_tokens,
        "read": exchange.read_text,
        "sampled": exchange.passage.sampled_text,
    }


def messages_of(trajectory: Trajectory, exchanges: list[Exchange]) -> list[Document]:
    messages: list[Document] = []
    for exchange, by_record in zip(exchanges, calls_by_record(trajectory, exchanges), strict=True):
        if not exchange.read_results:
            messages.append({"role": "user", "content": exchange.read_text})
        messages += _of_record(exchange) if by_record else [_as_sampled(exchange)]
    return messages


def calls_by_record(trajectory: Trajectory, exchanges: list[Exchange]) -> list[bool]:
    """For each exchange whether its calls and their results are told by the record: where what is read next is them,
    and at the end, where nothing is read any more."""
    if not exchanges:
        return []
    last = exchanges[-1].passage
    ends = last.is_whole and bool(last.turn.tool_calls) and results_are_known(trajectory, last.turn)
    return [*(following.read_results for _, following in pairwise(exchanges)), ends]


def _as_sampled(exchange: Exchange) -> Document:
    return {"role": "assistant", "content": exchange.passage.sampled_text}


def _of_record(exchange: Exchange) -> list[Document]:
    calls = list(zip(call_ids(exchange), exchange.passage.turn.tool_calls, strict=True))
    return [
        {"role": "assistant", "content": None, "tool_calls": [_call(name, call) for name, call in calls]},
        *(_result(name, call) for name, call in calls),
    ]


def call_ids(exchange: Exchange) -> list[str]:
    """Ids of the turn's calls, each its own within the conversation; the record numbers them turn by turn."""
    calls = exchange.passage.turn.tool_calls
    return [f"turn-{exchange.passage.number}-{call.id or place}" for place, call in enumerate(calls, start=1)]


def _call(name: str, call: ToolCall) -> Document:
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}


def _arguments(call: ToolCall) -> str:
    """JSON; what the policy wrote where that could not be read."""
    return json.dumps(call.arguments, ensure_ascii=False) if call.written is None else call.written


def _result(name: str, call: ToolCall) -> Document:
    failed = {"is_error": True} if call.failed else {}
    return {"role": "tool", "tool_call_id": name, "name": call.name, "content": call.output} | failed
