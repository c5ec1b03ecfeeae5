"""What an environment owes to the episode loop.

An environment knows tasks, their sandboxed tool and their score.  It never samples, never keeps
state between episodes, and never shows the policy a task's answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

from engine.rollout.chat import Answer, Call
from engine.spec.trajectory import Split, Task, ToolCall
from sandboxes.interface import ExecResult, Sandbox

Manner = Literal["guess", "solve", "repair"]
"""How a demonstrator goes about a task: answers without looking; uses the tool; breaks a call and repairs it."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call and what a real box answers to it."""

    call: Call
    result: ExecResult


Script = list[ScriptedCall | Answer]


class Environment(Protocol):
    @property
    def stop_ids(self) -> frozenset[int]:
        """A sampled turn ends at the first of these."""
        ...

    def tasks(self, split: Split) -> Sequence[Task]:
        """The split's tasks by number, made when asked for.  Equal numbers are equal tasks everywhere."""
        ...

    def prompt_ids(self, task: Task) -> list[int]:
        """What the policy reads first."""
        ...

    def parse(self, token_ids: Sequence[int]) -> Call | Answer | None:
        """What a sampled turn says; None when it is neither a call nor an answer."""
        ...

    async def reset(self, task: Task, box: Sandbox) -> None:
        """Prepare a new box for the task.  Called once, before the first tool call.  Raises SandboxLost."""
        ...

    async def call(self, call: Call, box: Sandbox) -> ToolCall:
        """Run the tool.  Whatever the code does is a result; only SandboxLost is raised."""
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

    def score(self, task: Task, answer: str) -> bool: ...

    def script(self, task: Task, manner: Manner, rng: Random) -> Script:
        """What a demonstrator does.  The results in it are what a real box answers, to the character."""
        ...

    def turn_ids(self, turn: Call | Answer) -> list[int]:
        """The token ids of a scripted turn."""
        ...

    def tool_call(self, call: Call, result: ExecResult) -> ToolCall:
        """The record of an execution, as ``call`` makes it."""
        ...
