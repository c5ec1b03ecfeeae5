"""An environment whose code runs in a process of its own, as every other environment is used."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any, overload

from engine.environments.contract import EnvironmentProcessLost, Observation, Rewards, Sandboxes, Session
from engine.environments.process.answers import (
    TASKS_PER_ANSWER,
    Acted,
    AnswerT,
    Count,
    MisfitAnswer,
    Nothing,
    Opening,
    Score,
    Snapshot,
    Tasks,
    Tools,
)
from engine.environments.process.connection import EnvironmentProcess, EnvironmentProgram
from engine.environments.process.kept import KeptProcess, kept_process
from engine.environments.process.thread import awaited, waited
from engine.spec.message import AssistantMessage, Message, ToolSchema
from engine.spec.trajectory import Split, Task, ToolCall

KEPT_TOOLS = 4096
"""Tasks whose tools are remembered."""
_sessions = count(1)
log = logging.getLogger(__name__)


class ProcessEnvironment:
    """Raises EnvironmentProcessLost wherever the process is lost, and what an answer that does not fit raises."""

    def __init__(self, program: EnvironmentProgram) -> None:
        """Start the process.  Raises as ``EnvironmentProcess.start``."""
        self._kept = kept_process(program)
        self._splits: dict[Split, ProcessTasks] = {}
        self._tools: dict[Task, Sequence[ToolSchema]] = {}
        self.restorable = waited(self._kept.started()).restorable

    @property
    def starts(self) -> int:
        """How often this engine process started it; each one beyond the first is a loss."""
        return self._kept.starts

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._splits[split] if split in self._splits else waited(self._tasks_of(split))

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        known = self._tools.get(task)
        return waited(self._tools_of(task)) if known is None else known

    async def fetch(self, split: Split, number: int) -> None:
        await awaited(self._fetched(split, number))

    def session(self, task: Task, sandboxes: Sandboxes) -> AbstractAsyncContextManager[Session]:
        return self._session(task)

    # ---- what is asked in the loop of thread.py, and known from then on ----

    async def _fetched(self, split: Split, number: int) -> None:
        tasks = await self._tasks_of(split)
        if tasks:
            await self._tools_of(await tasks.task(number % len(tasks)))

    async def _tasks_of(self, split: Split) -> "ProcessTasks":
        if split not in self._splits:
            size = (await _asked(self._kept, Count, "count", split=split)).count
            self._splits.setdefault(split, ProcessTasks(self._kept, split, size))
        return self._splits[split]

    async def _tools_of(self, task: Task) -> Sequence[ToolSchema]:
        if task not in self._tools:
            answer = await _asked(self._kept, Tools, "tools", task=_as_asked(task))
            while len(self._tools) >= KEPT_TOOLS:
                del self._tools[next(iter(self._tools))]
            self._tools[task] = tuple(tool.schema_() for tool in answer.tools)
        return self._tools[task]

    @asynccontextmanager
    async def _session(self, task: Task) -> AsyncIterator[Session]:
        process = await awaited(self._kept.process())
        session = (RestorableProcessSession if self.restorable else ProcessSession)(process, next(_sessions))
        try:
            await session.ask(Nothing, "open", task=_as_asked(task))
            yield session
        finally:
            await session.close()


def _as_asked(task: Task) -> dict[str, Any]:
    """What the contract of packages knows of a task: of which part of a run it is concerns nobody there."""
    return task.model_dump(exclude={"part"})


class ProcessTasks(Sequence[Task]):
    """The tasks of a split, fetched when asked for and kept, so that a number is one task whatever the process says."""

    def __init__(self, kept: KeptProcess, split: Split, size: int) -> None:
        self._kept, self._split, self._size = kept, split, size
        self._known: dict[int, Task] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        """The requests that are not answered yet, by the number that they begin with."""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, number: int) -> Task: ...
    @overload
    def __getitem__(self, number: slice) -> list[Task]: ...
    def __getitem__(self, number: int | slice) -> Task | list[Task]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self._size))]
        if not -self._size <= number < self._size:
            raise IndexError(f"the {self._split} split has {self._size} tasks, not {number}")
        number %= self._size
        return self._known[number] if number in self._known else waited(self.task(number))

    async def task(self, number: int) -> Task:
        """The task of a number below the size; in the loop of ``thread.py``."""
        block = number - number % TASKS_PER_ANSWER
        while number not in self._known:
            start = number if block in self._known else block
            if start not in self._under_way:
                self._under_way[start] = asyncio.create_task(self._fetch(start))
            await asyncio.shield(self._under_way[start])
        return self._known[number]

    async def _fetch(self, start: int) -> None:
        """Ask for the rest of a block; of long tasks come those that one answer holds."""
        stop = min(start - start % TASKS_PER_ANSWER + TASKS_PER_ANSWER, self._size)
        try:
            answer = await _asked(self._kept, Tasks, "tasks", split=self._split, start=start, stop=stop)
        finally:
            del self._under_way[start]
        tasks = [task.task() for task in answer.tasks]
        if not 0 < len(tasks) <= stop - start or any(task.split != self._split for task in tasks):
            raise MisfitAnswer(
                f"tasks {start} to {stop - 1} of {self._split}: other ones came back, {len(tasks)} in all"
            )
        for number, task in enumerate(tasks, start):
            self._known.setdefault(number, task)


class ProcessSession:
    """One episode in the process that was running when it began; if that is lost, so is the episode."""

    def __init__(self, process: EnvironmentProcess, number: int) -> None:
        self._process, self._number = process, number

    async def reset(self) -> list[Message]:
        answer = await self.ask(Opening, "reset")
        return [message.message() for message in answer.messages]

    async def act(self, message: AssistantMessage) -> Observation:
        requests = [{"name": r.name, "arguments": dict(r.arguments), "id": r.id} for r in message.requests]
        shown = {"content": message.content, "requests": requests, "reasoning": message.reasoning}
        return _observation(await self.ask(Acted, "act", message=shown), message)

    async def score(self) -> Rewards:
        answer = await self.ask(Score, "score")
        return Rewards(answer.success, answer.components)

    async def ask(self, kind: type[AnswerT], verb: str, **fields: Any) -> AnswerT:
        return await awaited(self._process.ask(kind, verb, session=self._number, **fields))

    async def close(self) -> None:
        """What goes wrong here changes no reward: it is logged."""
        try:
            await self.ask(Nothing, "close")
        except EnvironmentProcessLost:
            pass  # whoever asked before was given the reason
        except Exception as error:
            log.warning("%s: the end of a session failed: %s", self._process.program.name, error)


class RestorableProcessSession(ProcessSession):
    """The snapshots themselves stay in the process; here are their numbers."""

    async def snapshot(self) -> object:
        return await self.ask(Snapshot, "snapshot")

    async def restore(self, snapshot: object) -> None:
        await self._with("restore", snapshot)

    async def drop(self, snapshot: object) -> None:
        await self._with("drop", snapshot)

    async def _with(self, verb: str, snapshot: object) -> None:
        if not isinstance(snapshot, Snapshot):
            raise ValueError("not a snapshot of this session")
        await self.ask(Nothing, verb, snapshot=snapshot.snapshot)


async def _asked(kept: KeptProcess, kind: type[AnswerT], verb: str, **fields: Any) -> AnswerT:
    return await (await kept.process()).ask(kind, verb, **fields)


def _observation(acted: Acted, message: AssistantMessage) -> Observation:
    """The records are those of the requests that were made, whatever the process says of their arguments."""
    answered = [(call.id, call.name) for call in acted.calls]
    if answered != [(request.id, request.name) for request in message.requests]:
        raise MisfitAnswer(
            f"what act gave holds records of {answered!r:.200}; one of each request is due, in their order"
        )
    calls = tuple(
        ToolCall.of(request, call.output, error_class=call.error_class, seconds=call.seconds)
        for request, call in zip(message.requests, acted.calls, strict=True)
    )
    return Observation(calls, tuple(entry.message() for entry in acted.messages), acted.done)
