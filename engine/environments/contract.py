"""What an environment owes to the episode loop.

An environment knows tasks, their tool and their score.  What one episode changes lives in its
*session*; the environment itself keeps no state between episodes, never samples, and never shows
the policy a task's answer.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

from engine.rollout.chat import Answer, Call
from engine.spec.trajectory import Split, Task, ToolCall, Turn
from sandboxes.interface import ExecResult, Sandbox

Manner = Literal["guess", "solve", "repair"]
"""How a demonstrator goes about a task: answers without looking; uses the tool; breaks a call and repairs it."""


Verdict = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call, what a real box or world answers to it, and whether that ends the episode."""

    call: Call
    result: ExecResult
    done: bool = False
    """What ``ToolSession.done`` says then."""
    success: bool = False
    """Likewise; meaningful when done."""


Script = list[ScriptedCall | Answer]


class Boxes(Protocol):
    """Where boxes come from; ``sandboxes.pool.Pool`` is one."""

    def acquire(self) -> AbstractAsyncContextManager[Sandbox]:
        """A box as new, given back at the end of the block.  Raises SandboxUnavailable and PoolClosed."""
        ...


class ToolSession(Protocol):
    """The tool of one episode, with everything that its calls have changed.

    A session that needs a box takes it no earlier than the first call: an episode that has no place in
    the generator yet must not hold one.  Where there is a box, every method may raise SandboxLost, and
    ``call`` what ``Boxes.acquire`` raises.  Whatever else comes out counts as the environment's own fault.
    """

    @property
    def done(self) -> bool:
        """The goal is reached, or missed for good: the episode ends after this call."""
        ...

    @property
    def success(self) -> bool:
        """Whether the goal is reached.  Meaningful when done."""
        ...

    async def call(self, call: Call) -> ToolCall:
        """Run the tool.  Whatever the action does is a result."""
        ...

    async def snapshot(self) -> object:
        """Keep this moment.  Raises SnapshotUnavailable where the state cannot be kept."""
        ...

    async def restore(self, snapshot: object) -> None:
        """As it was then, ``done`` and ``success`` included.  Any number of times until it is dropped."""
        ...

    async def drop(self, snapshot: object) -> None:
        """Forget it.  The end of the session forgets all."""
        ...


class Environment(Protocol):
    @property
    def stop_ids(self) -> frozenset[int]:
        """A sampled turn ends at the first of these."""
        ...

    def tasks(self, split: Split) -> Sequence[Task]:
        """The split's tasks by number, made when asked for.  Equal numbers are equal tasks everywhere."""
        ...

    def prompt_ids(self, task: Task, lessons: Sequence[str] = ()) -> list[int]:
        """What the policy reads first: the lessons, if any, and the task."""
        ...

    def experience_span(self, lessons: Sequence[str]) -> tuple[int, int]:
        """Where ``prompt_ids`` holds the lessons, half open; without it there is the prompt of no lessons."""
        ...

    def parse(self, token_ids: Sequence[int]) -> Call | Answer | None:
        """What a turn says, and where in it that begins; None when it is neither a call nor an answer."""
        ...

    def session(self, task: Task, boxes: Boxes) -> AbstractAsyncContextManager[ToolSession]:
        """The task's tool as it is before the first call.  At the end of the block all that it holds is given back."""
        ...

    def observation_ids(self, call: ToolCall) -> list[int]:
        """What the policy reads after a tool call."""
        ...

    def text_of(self, token_ids: Sequence[int]) -> str:
        """For people."""
        ...

    def pieces_of(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token, for people."""
        ...

    def score(self, task: Task, answer: str) -> bool:
        """Whether an answer is right.  An environment that takes none says no; its sessions tell success."""
        ...

    def script(self, task: Task, manner: Manner, rng: Random) -> Script:
        """What a demonstrator does.  The results in it are what a real box answers, to the character."""
        ...

    def turn_ids(self, turn: Call | Answer) -> list[int]:
        """The token ids of a scripted turn."""
        ...

    def tool_call(self, call: Call, result: ExecResult) -> ToolCall:
        """The record of an execution, as a session's ``call`` makes it."""
        ...

    def verdicts(self, task: Task, turns: Sequence[Turn]) -> list[Verdict]:
        """Whether each turn brought the task nearer to its goal, told by one who knows the truth."""
        ...
