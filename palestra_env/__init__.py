"""What an environment package is written against: the contract of Palestra's environments, standard library alone.

``Environment`` and ``Session`` are what a package implements.  The data classes are those of the engine's own contract,
with the same names and fields, so that an environment may move from one to the other by its imports alone.  A package
needs this module for its types and its tests; where it runs, the engine puts it on the path.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

__all__ = [
    "AssistantMessage",
    "Environment",
    "ErrorClass",
    "Message",
    "Observation",
    "Rewards",
    "Session",
    "Split",
    "Task",
    "ToolCall",
    "ToolRequest",
    "ToolSchema",
    "VerifierFailed",
]

Split = Literal["train", "heldout"]
Role = Literal["system", "user", "assistant", "tool"]
ErrorClass = Literal[
    "syntax", "name", "import", "type", "value", "index", "zero-division", "timeout", "memory", "output", "killed",
    "illegal", "other",
]  # fmt: skip
"""Why a call failed.  ``illegal``: an action that the environment does not admit in its present state."""


class VerifierFailed(Exception):
    """What scores an episode came to no reward: the episode is discarded and counted, never paid, never punished."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem.  ``answer`` is what scoring compares with; the policy never reads it."""

    id: str
    split: Split
    level: int
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool that the policy may call; ``parameters`` is the JSON schema of its arguments, which are an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call that the policy asks for.  Its arguments fit the tool's schema."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What came of a request."""

    id: str
    name: str
    output: str
    error_class: ErrorClass | None
    seconds: float

    @classmethod
    def of(
        cls, request: ToolRequest, output: str, *, error_class: ErrorClass | None = None, seconds: float = 0.0
    ) -> "ToolCall":
        """The record of ``request``; a call with an error class has failed."""
        return cls(request.id, request.name, output, error_class, seconds)


@dataclass(frozen=True, slots=True)
class Message:
    """Something for the policy to read; where ``role`` is ``tool``, ``call`` is the id of the call that it answers."""

    role: Role
    content: str
    tool: str | None = None
    call: str | None = None


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One turn of the policy: calls, or an answer."""

    content: str = ""
    """The answer; where tools are called, what stands before the calls."""
    requests: tuple[ToolRequest, ...] = ()
    reasoning: str = ""

    @property
    def answers(self) -> bool:
        return not self.requests


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of a message of the policy."""

    calls: tuple[ToolCall, ...] = ()
    """The record of each request, in their order."""
    messages: tuple[Message, ...] = ()
    """What the policy reads next.  Empty only where the episode is over."""
    done: bool = False

    @classmethod
    def of(cls, calls: Iterable[ToolCall], *, done: bool = False) -> "Observation":
        """The calls, of each of which the policy reads the output."""
        calls = tuple(calls)
        return cls(calls, tuple(Message("tool", call.output, call.name, call.id) for call in calls), done)


@dataclass(frozen=True, slots=True)
class Rewards:
    """What an episode came to: ``success`` is what the recipe pays, ``components`` are added to it by name."""

    success: bool
    components: Mapping[str, float] = field(default_factory=dict)


class Session(Protocol):
    """One episode of one task.

    A session that also has ``snapshot``, ``restore`` and ``drop`` (all ``async``) can be set back to an earlier moment;
    its environment says so with ``restorable = True``.
    """

    async def reset(self) -> Sequence[Message]:
        """Return what the policy reads first.  Called once, before anything else."""
        ...

    async def act(self, message: AssistantMessage) -> Observation:
        """Do what the policy asks for.  The message is calls that fit the tools' schemas, or an answer."""
        ...

    async def score(self) -> Rewards:
        """Return what the episode came to.  Called once, at its end, however that came about."""
        ...


class Environment(Protocol):
    """Tasks, tools, scores.  It keeps nothing between episodes: one process plays many at once."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """The split's tasks by number.  Equal numbers are equal tasks in every process."""
        ...

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        """Return what the policy may call."""
        ...

    def session(self, task: Task, sandboxes: Any) -> AbstractAsyncContextManager[Session]:
        """The task before the first turn.  ``sandboxes`` has none to give: an environment process starts no sandbox."""
        ...
