"""Tasksets of ``verifiers`` v1: their prompts, and their own scoring of the policy's reply.

A task is played as one question and one answer, which ``Task.score`` reads in a trace of verifiers' own making.  Tasks
that need a runtime, tools or a conversation are refused by name: a reward that skipped what it cannot see would be
another one.
"""

import importlib
import inspect
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found]
from verifiers.v1.graph import MessageNode  # type: ignore[import-not-found]
from verifiers.v1.trace import AgentInfo, TraceTask  # type: ignore[import-not-found]
from verifiers.v1.utils.generic import concrete_type  # type: ignore[import-not-found]

from palestra_env import AssistantMessage, Message, Observation, Rewards, Session, Split, Task, ToolSchema
from palestra_env.adapters.paying import rewards_of


class TasksetEnvironment:
    """``taskset`` is ``module:Class``; ``config`` are the fields of its configuration."""

    def __init__(
        self, taskset: str, config: dict[str, Any], heldout_share: float, most_tasks: int, success_at: float
    ) -> None:
        module, _, name = taskset.partition(":")
        kind = getattr(importlib.import_module(module), name)
        configured = (concrete_type(kind, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig)(**config)
        if kind.toolsets(configured):
            raise ValueError(f"{taskset} has tool servers, which are not played here")
        self.success_at = success_at
        self.played = list(kind(configured).take(most_tasks))
        for task in self.played:
            _refuse_what_is_not_played(task)
        first_heldout = len(self.played) - math.ceil(len(self.played) * heldout_share)
        self.numbers: dict[Split, range] = {
            "train": range(first_heldout),
            "heldout": range(first_heldout, len(self.played)),
        }

    def tasks(self, split: Split) -> Sequence[Task]:
        return [self._described(split, number) for number in self.numbers[split]]

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return []

    @asynccontextmanager
    async def session(self, task: Task, sandboxes: Any) -> AsyncIterator[Session]:
        yield TasksetSession(self.played[int(task.answer)], self.success_at)

    def _described(self, split: Split, number: int) -> Task:
        return Task(f"{split}-{number}", split, 1, self.played[number].data.prompt_text, str(number))


class TasksetSession:
    def __init__(self, task: Any, success_at: float) -> None:
        self.task, self.success_at = task, success_at
        self.reply: str | None = None

    async def reset(self) -> Sequence[Message]:
        return [Message(message.role, _text(message)) for message in _prompt(self.task.data)]

    async def act(self, message: AssistantMessage) -> Observation:
        self.reply = message.content
        return Observation(done=True)

    async def score(self) -> Rewards:
        """An episode without a reply is scored as one with an empty trace, which is how verifiers sees it."""
        trace = trace_of(self.task, self.reply)
        await self.task.score(trace)
        return rewards_of(float(trace.reward), self.success_at)


def trace_of(task: Any, reply: str | None) -> Any:
    """The trace of one question and, unless it is None, one reply."""
    messages = [(message, False) for message in _prompt(task.data)]
    if reply is not None:
        messages.append((vf.AssistantMessage(content=reply), True))
    nodes = [
        MessageNode(parent=None if number == 0 else number - 1, message=message, sampled=sampled)
        for number, (message, sampled) in enumerate(messages)
    ]
    described = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return vf.Trace(task=described, agent=AgentInfo(config=vf.AgentConfig()), nodes=nodes, is_completed=True, ok=True)


def _prompt(data: Any) -> list[Any]:
    system = [vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    asked = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    return [*system, *asked]


def _text(message: Any) -> str:
    if not isinstance(message.content, str):
        raise ValueError("a prompt that is more than text is not played here")
    return str(message.content)


def _refuse_what_is_not_played(task: Any) -> None:
    name = type(task).__name__
    if not task.data.prompt:
        raise ValueError(f"{name}: a task without a prompt is opened by a user, which is not played here")
    if task.NEEDS_CONTAINER or type(task).toolsets(task.config):
        raise ValueError(f"{name}: a container or tools are needed, which are not played here")
    for hook in ("setup", "finalize"):
        if getattr(type(task), hook) is not getattr(vf.Task, hook):
            raise ValueError(f"{name}.{hook} needs a runtime, which is not played here")
    for function in (*task.hooks("reward"), *task.hooks("metric")):
        runtime = inspect.signature(function).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            raise ValueError(f"{name}.{function.__name__} needs a runtime, which is not played here")
    if task.plugged_judges() or task.hooks("stop"):
        raise ValueError(f"{name}: judges and stops are not played here")
