"""Tools by which a policy manages its own context: notes that stay, and turns that are folded or dropped.

What they come to follows from the conversation alone, so that whoever has it writes the same context.  AgentEvolver
(section 6.2.1, iv) asks for one of three operations on each message and lets another model compress; here the policy
calls a tool when it wants to, and writes the summary itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.environments.contract import Observation, Rewards, Session
from engine.rollout.renderers.contract import Exchange
from engine.spec.context import Context
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
from engine.spec.trajectory import ToolCall

NOTE, FOLD, DROP, DELEGATE = "context_note", "context_fold", "context_drop", "delegate"
LONGEST_TEXT = 2000
"""Characters of a note, and of what stands for folded turns."""


@dataclass(frozen=True, slots=True)
class Note:
    text: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """Turns from ``first`` to ``last``, counted from 1, leave the context."""

    first: int
    last: int
    summary: str | None
    """What stands in their place; None: they are dropped."""

    @property
    def line(self) -> str:
        turns = f"Turn {self.first}" if self.first == self.last else f"Turns {self.first} to {self.last}"
        return f"{turns}, dropped." if self.summary is None else f"{turns}, folded: {self.summary}"


Operation = Note | Leaving


_DELEGATE = ToolSchema.of_text(
    DELEGATE,
    "task",
    "Give a task to another agent, which knows nothing else and has your tools; read its answer.",
)


def context_tools(context: Context | None) -> list[ToolSchema]:
    """What the policy may call beside the environment's tools."""
    if context is None:
        return []
    return [*_memory_tools(context), *([_DELEGATE] if context.subagent_turns else [])]


def _memory_tools(context: Context) -> list[ToolSchema]:
    """Those that a ``ManagedSession`` answers."""
    if not context.remembers:
        return []
    text = {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT}
    note = _tool(NOTE, "Keep a note, which stays when the turn that made it has left the context.", {"text": text})
    if context.template != "self-managing":
        return [note]
    turn = {"type": "integer", "minimum": 1}
    turns = {"first": turn, "last": turn}
    folding = "Let earlier turns leave the context; your summary stands in their place."
    fold = _tool(FOLD, folding, turns | {"summary": text})
    return [note, fold, _tool(DROP, "Let earlier turns leave the context.", turns)]


def _tool(name: str, description: str, properties: Mapping[str, Any]) -> ToolSchema:
    required, extra = list(properties), False
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": extra}
    return ToolSchema(name, description, parameters)


def operation_of(request: ToolRequest, turn: int, tools: Sequence[ToolSchema]) -> Operation | str | None:
    """What a call in turn ``turn``, from 1, does to the context; a text: why it does nothing; None: it is none of ours.

    It is asked of the call as it was sampled, and takes none that does not fit the tool's schema.
    """
    if request.name not in {tool.name for tool in tools}:
        return None
    arguments = dict(request.arguments)
    match request.name, arguments:
        case "context_note", {"text": str(text)} if len(arguments) == 1 and _fits(text):
            return Note(text)
        case "context_fold", {"first": int(first), "last": int(last), "summary": str(text)} if (
            len(arguments) == 3 and _fits(text) and not _is_truth(first, last)
        ):
            return _leaving(first, last, text, turn)
        case "context_drop", {"first": int(first), "last": int(last)} if len(arguments) == 2 and not _is_truth(
            first, last
        ):
            return _leaving(first, last, None, turn)
        case _:
            return "its arguments do not fit"


def task_of(request: ToolRequest) -> str | None:
    """The task that a call gives to a sub-agent; None where it cannot be read."""
    task = dict(request.arguments).get("task") if request.malformed is None and len(request.arguments) == 1 else None
    return task if isinstance(task, str) and task.strip() else None


def _fits(text: str) -> bool:
    return 1 <= len(text) <= LONGEST_TEXT


def _is_truth(*numbers: int) -> bool:
    return any(isinstance(number, bool) for number in numbers)


def _leaving(first: int, last: int, summary: str | None, turn: int) -> Leaving | str:
    if turn == 1:
        return "there is no earlier turn"
    if not 1 <= first <= last < turn:
        return f"turns {first} to {last} are not among the earlier ones, 1 to {turn - 1}"
    return Leaving(first, last, summary)


def operations_in(exchanges: Sequence[Exchange], context: Context) -> list[tuple[int, Operation]]:
    """What the turns did to the context, each with the number of its turn, from 1."""
    tools = _memory_tools(context)
    asked = [
        (turn, operation_of(request, turn, tools))
        for turn, exchange in enumerate(exchanges, start=1)
        for request in exchange.parsed.message.requests
        if request.malformed is None
    ]
    return [(turn, operation) for turn, operation in asked if isinstance(operation, Note | Leaving)]


def left_by_choice(exchanges: Sequence[Exchange], context: Context) -> set[int]:
    """The numbers of the turns, from 1, that the policy has folded or dropped."""
    leaving = [operation for _, operation in operations_in(exchanges, context) if isinstance(operation, Leaving)]
    return {turn for operation in leaving for turn in range(operation.first, operation.last + 1)}


def memory_of(exchanges: Sequence[Exchange], hidden: set[int], context: Context) -> str:
    """What is known of the ``hidden`` turns: the notes made in them, and what stands for those that were folded."""
    lines = [
        f"Note: {operation.text}" if isinstance(operation, Note) else operation.line
        for turn, operation in operations_in(exchanges, context)
        if isinstance(operation, Leaving) or turn in hidden
    ]
    return "\n".join(lines)


class ManagedSession:
    """A session whose policy also has the tools of its context.  They touch nothing of the environment."""

    def __init__(self, inner: Session, context: Context) -> None:
        self._inner, self._tools = inner, _memory_tools(context)
        self.turn = 1
        """The number of the turn that is acted on, from 1; the episode counts."""
        self.notes = self.left = 0
        """Notes that were made, and turns that were folded or dropped."""

    async def reset(self) -> Sequence[Message]:
        return await self._inner.reset()

    async def act(self, message: AssistantMessage) -> Observation:
        own = {request.id: call for request in message.requests if (call := self._done(request)) is not None}
        others = tuple(request for request in message.requests if request.id not in own)
        if not own:
            return await self._inner.act(message)
        observed = await self._inner.act(replace(message, requests=others)) if others else Observation()
        made = own | {call.id: call for call in observed.calls}
        results = Observation.of([own[request.id] for request in message.requests if request.id in own]).messages
        calls = tuple(made[request.id] for request in message.requests)
        return Observation(calls, (*observed.messages, *results), observed.done)

    async def score(self) -> Rewards:
        return await self._inner.score()

    def _done(self, request: ToolRequest) -> ToolCall | None:
        """The record of a call of ours; None where it is the environment's."""
        match operation_of(request, self.turn, self._tools):
            case None:
                return None
            case str(problem):
                return ToolCall.of(request, f"Error: {problem}", error_class="value", seconds=0.0)
            case Note():
                self.notes += 1
                return ToolCall.of(request, "Noted.", error_class=None, seconds=0.0)
            case Leaving() as leaving:
                self.left += leaving.last - leaving.first + 1
                return ToolCall.of(request, leaving.line, error_class=None, seconds=0.0)


def managed_session(session: Session, context: Context | None) -> ManagedSession | None:
    """The session with the tools of its context; None where the policy has none."""
    return ManagedSession(session, context) if context is not None and context.remembers else None
