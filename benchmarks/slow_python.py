"""python-math whose tool takes as long as one over a network: ``path = "benchmarks.slow_python:SlowPython"``.

Each turn with a call takes 50 to 500 ms longer, evenly spread.  How long hangs on the seed, the task, which try at the
task it is, and the turn: runs with equal seeds meet equal latencies.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

from engine.environments.contract import Observation, Rewards, Sandboxes, Session
from engine.environments.python_math import PythonMathEnvironment
from engine.spec.environment import PythonMath
from engine.spec.message import AssistantMessage, Message
from engine.spec.run import Dataset
from engine.spec.trajectory import Task

SHORTEST_S, LONGEST_S = 0.05, 0.5


class SlowSession:
    """Snapshots are left out: what is compared purifies nothing."""

    def __init__(self, session: Session, sleeps: Random) -> None:
        self._session, self._sleeps = session, sleeps

    async def reset(self) -> Sequence[Message]:
        return await self._session.reset()

    async def act(self, message: AssistantMessage) -> Observation:
        observation = await self._session.act(message)
        if message.requests:
            await asyncio.sleep(self._sleeps.uniform(SHORTEST_S, LONGEST_S))
        return observation

    async def score(self) -> Rewards:
        return await self._session.score()


class SlowPython(PythonMathEnvironment):
    """Counting the tries is all that it keeps between episodes."""

    def __init__(self) -> None:
        super().__init__(PythonMath(), Dataset())
        self._tries: Counter[str] = Counter()

    def session(self, task: Task, sandboxes: Sandboxes) -> AbstractAsyncContextManager[SlowSession]:  # type: ignore[override]
        number = self._tries[task.id]
        self._tries[task.id] += 1
        return self._slow(task, sandboxes, Random(f"{task.id} {number}"))

    @asynccontextmanager
    async def _slow(self, task: Task, sandboxes: Sandboxes, sleeps: Random) -> AsyncIterator[SlowSession]:
        async with super().session(task, sandboxes) as session:
            yield SlowSession(session, sleeps)
