"""What an environment owes to the episode loop: tasks, tools and scores, all in text.

An environment knows no token, keeps nothing between episodes, never samples, and never shows the policy a
task's answer.  What one episode changes lives in its *session*.

``Environment`` and ``Session`` are all that a foreign environment implements.  What else one can do is a
protocol of its own: whoever needs it asks for it with ``isinstance``, and a run whose recipe needs what its
environment lacks is refused before it starts (``engine/loop/requirements.py``).

    Restorable      a session can be set back to an earlier moment     tool-call repair (SAAR)
    Demonstrator    the environment can play its tasks by itself       cold start, expert starts
    Oracle          the environment knows which turns helped           the judge ``rules``
    ReferenceAnswers    it knows an answer that is right               trying it (``evaluation.players``)
    TaskFetcher     its tasks are asked of another process         episodes, which share an event loop
    AgentSession    its sandbox can be worked in by a program          agents (``environment.id = "agent"``)

What sandboxes can do for an environment beside ``acquire`` is asked for in the same way: ``SandboxesOfSpecs``,
``AlarmReceiver``.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Protocol, Self, runtime_checkable

from engine.spec.message import AssistantMessage, Message, ToolSchema
from engine.spec.trajectory import Split, Task, ToolCall
from sandboxes.egress.detectors.finding import RuleInfo
from sandboxes.interface import Sandbox
from sandboxes.spec import SandboxSpec

Manner = Literal["guess", "solve", "repair"]
"""How a demonstrator goes about a task: answers without looking; uses the tool; breaks a call and repairs it."""

JudgeVerdict = Literal["good", "bad"]


class Sandboxes(Protocol):
    """Where sandboxes come from; ``sandboxes.pool.Pool`` is one."""

    def acquire(self) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox as new, given back at the end of the block.  Raises SandboxUnavailable and PoolClosed."""
        ...


@runtime_checkable
class SandboxesOfSpecs(Protocol):
    """Sandboxes that may differ from task to task."""

    def acquire_of(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox of this spec, made for this user and closed at the end of the block.  Raises as ``acquire``."""
        ...


@runtime_checkable
class AlarmReceiver(Protocol):
    """Takes what an environment itself finds in a sandbox of its episode, and makes an alert of it."""

    def alarm(self, sandbox: Sandbox, rule: RuleInfo, subject: str, evidence: Sequence[str]) -> None:
        """The rule's severity decides what follows: a critical one freezes the sandbox, and the episode is kept out of
        training until a reviewer has decided."""
        ...


class VerifierFailed(Exception):
    """What scores an episode did not come to a reward: it hung, crashed, or wrote none that can be read.

    The fault is the verifier's and not the policy's: the episode is discarded and counted, never paid and never
    punished.
    """


class EnvironmentProcessLost(Exception):
    """The process that an environment runs in crashed, hung, or answered what is no answer; the message says which.

    Its episodes are played again or discarded, and counted; the process is started again.
    """

    def __init__(self, message: str, *, finished_episodes: int = 0) -> None:
        super().__init__(message)
        self.finished_episodes = finished_episodes
        """So many it had brought to their end before."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of a message of the policy."""

    calls: tuple[ToolCall, ...] = ()
    """The record of each call that the message asked for, in its order: ``ToolCall.of(request, ...)``."""
    messages: tuple[Message, ...] = ()
    """What the policy reads next.  Empty only where the episode is over."""
    done: bool = False
    """The goal is reached, or missed for good, or the task is answered: the episode ends here."""

    @classmethod
    def of(cls, calls: Iterable[ToolCall], *, done: bool = False) -> Self:
        """The calls, of each of which the policy reads the output."""
        calls = tuple(calls)
        return cls(calls, tuple(Message("tool", call.output, call.name, call.id) for call in calls), done)


@dataclass(frozen=True, slots=True)
class Rewards:
    """What an episode came to."""

    success: bool
    """What the recipe pays as ``outcome``."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Rewards by name, added to the recipe's own; none may have the name of one of those."""


class Session(Protocol):
    """One episode of one task.

    A session that needs a sandbox takes it no earlier than the first ``act``: an episode that has no place in the
    generator yet must not hold one.  Where there is a sandbox, every method may raise SandboxLost, and ``act``
    what ``Sandboxes.acquire`` raises.  Whatever else comes out counts as the environment's own fault.
    """

    async def reset(self) -> Sequence[Message]:
        """Return what the policy reads first.  Called once, before anything else."""
        ...

    async def act(self, message: AssistantMessage) -> Observation:
        """Do what the policy asks for, and tell what came of it; a call that fails is a result.

        The message is either calls of tools that ``Environment.tools`` names, with arguments that fit their
        schemas, or an answer.  An answer ends the episode where the observation says ``done``; a dialogue goes on with
        the observation's messages.
        """
        ...

    async def score(self) -> Rewards:
        """Return what the episode came to.  Called once, at its end, however that came about."""
        ...


class Environment(Protocol):
    """Tasks, tools, scores."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """The split's tasks by number.  Equal numbers are equal tasks in every process."""
        ...

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        """Return what the policy may call."""
        ...

    def session(self, task: Task, sandboxes: Sandboxes) -> AbstractAsyncContextManager[Session]:
        """The task as it is before the first turn.  At the end of the block all that it holds is given back."""
        ...


@runtime_checkable
class AgentSession(Protocol):
    """A session in whose sandbox a program may work, in place of the tool calls of the policy.

    Its answer, if the task asks for one, comes as a message to ``act``; then the session is scored as any other.
    """

    async def prepared(self) -> Sandbox:
        """Take the sandbox, with the task's files in it.  Raises as ``act``."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """A session that can be set back to an earlier moment."""

    async def snapshot(self) -> object:
        """Keep this moment.  Raises SnapshotUnavailable where the state cannot be kept."""
        ...

    async def restore(self, snapshot: object) -> None:
        """As it was then, what ``score`` would say included.  Any number of times until it is dropped."""
        ...

    async def drop(self, snapshot: object) -> None:
        """Forget it.  The end of the session forgets all."""
        ...


@runtime_checkable
class RestorableSessions(Protocol):
    """An environment that says of its sessions, before there is one, whether they are ``Restorable``."""

    @property
    def restorable(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """What a demonstrator writes, and what a real session answers to it, to the character."""

    message: AssistantMessage
    observation: Observation


@dataclass(frozen=True, slots=True)
class Script:
    """A whole episode, played by a demonstrator."""

    opening: tuple[Message, ...]
    """What ``Session.reset`` gives."""
    turns: tuple[ScriptedTurn, ...]
    rewards: Rewards


@runtime_checkable
class Demonstrator(Protocol):
    """An environment that can play its own tasks."""

    def script(self, task: Task, manner: Manner, rng: Random) -> Script: ...


@runtime_checkable
class ReferenceAnswers(Protocol):
    """An environment whose tasks are answered at once, and which knows how."""

    def reference_answer(self, task: Task) -> str | None:
        """An answer that is paid in full; None where the task has none."""
        ...


@runtime_checkable
class TaskFetcher(Protocol):
    """An environment whose tasks and tools may have to be waited for, because they are another process's."""

    async def fetch(self, split: Split, number: int) -> None:
        """Have a task and its tools at hand, so that ``tasks(split)[number]`` and ``tools`` wait for nothing.

        A number beyond the last counts on from the first.  Raises what those would raise.
        """
        ...


@runtime_checkable
class Oracle(Protocol):
    """An environment that knows which turns brought a task nearer to its goal."""

    def verdicts(self, task: Task, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """One for each turn; ``calls`` holds each turn's calls of the environment's tools and those that were refused,
        ``answer`` is what the last one answered, if it did."""
        ...
