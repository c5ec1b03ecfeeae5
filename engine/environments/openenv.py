"""An environment that an OpenEnv server serves: one socket per episode, ``reset`` and ``step``, text in and text out.

    {"type": "reset", "data": {"seed": 7}}        ──►
    {"type": "step", "data": {"message": "..."}}  ──►  {"type": "observation", "data": {observation, reward, done}}

The server is not trusted: an answer is bounded in size and time, what is no answer is the environment's fault, and no
redirect is followed: the service allows servers by their addresses.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from engine.environments.contract import Observation, Rewards, Sandboxes, Session
from engine.environments.tasks import SplitTasks, task_id
from engine.spec.foreign_environments import OpenEnv
from engine.spec.message import AssistantMessage, Message, ToolSchema, unstorable
from engine.spec.run import Dataset
from engine.spec.strict import LARGEST_NUMBER
from engine.spec.trajectory import Split, Task

ANSWER_BYTES = 2**20
HELDOUT_FROM = 2**30
"""Held-out seeds begin here, beyond those of any training split."""


class ServerFailed(Exception):
    """The server cannot be reached, took too long, or answered what is no observation."""


class _Opening(connect):
    """A connection to the address that is given, and to no other that a server names in its place."""

    def process_redirect(self, exc: Exception) -> Exception:
        if isinstance(exc, InvalidStatus) and 300 <= exc.response.status_code < 400:
            status = exc.response.status_code
            return ServerFailed(f"{self.uri}: a redirect ({status}) is not followed; give the address that it leads to")
        return exc


class OpenEnvEnvironment:
    """A task is a seed, which is its answer."""

    def __init__(self, described: OpenEnv, dataset: Dataset) -> None:
        self._described, self._dataset = described, dataset

    def tasks(self, split: Split) -> Sequence[Task]:
        return SplitTasks(self._dataset, split, self._task)

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return ()

    @asynccontextmanager
    async def session(self, task: Task, sandboxes: Sandboxes) -> AsyncIterator[Session]:
        address = "ws" + self._described.url.removeprefix("http").rstrip("/") + "/ws"
        try:
            opening = _Opening(address, max_size=ANSWER_BYTES, open_timeout=self._described.timeout_s, proxy=None)
            connection = await opening
        except (OSError, WebSocketException, TimeoutError) as error:
            raise ServerFailed(f"{self._described.url}: {type(error).__name__}: {error}") from error
        async with connection:
            yield OpenEnvSession(self._described, connection, int(task.answer))

    def _task(self, split: Split, number: int) -> Task:
        seed = number + (HELDOUT_FROM if split == "heldout" else 0)
        question = f"{self._described.url}, seed {seed}"
        return Task(id=task_id(split, number), split=split, level=1, question=question, answer=str(seed))


class OpenEnvSession:
    def __init__(self, described: OpenEnv, connection: ClientConnection, seed: int) -> None:
        self._described, self._connection, self._seed = described, connection, seed
        self._total = 0.0

    async def reset(self) -> list[Message]:
        text, _ = await self._asked("reset", {"seed": self._seed})
        return [Message("user", text)]

    async def act(self, message: AssistantMessage) -> Observation:
        text, done = await self._asked("step", {self._described.action_field: message.content})
        return Observation(messages=(Message("user", text),), done=done)

    async def score(self) -> Rewards:
        success = self._total >= self._described.success_at
        return Rewards(success, {"environment": self._total - success})

    async def _asked(self, kind: str, data: dict[str, Any]) -> tuple[str, bool]:
        """What the policy reads, and whether the episode is over.  Raises ServerFailed."""
        try:
            async with asyncio.timeout(self._described.timeout_s):
                await self._connection.send(json.dumps({"type": kind, "data": data}))
                answer = json.loads(await self._connection.recv())
        except (OSError, WebSocketException, TimeoutError, ValueError, RecursionError) as error:
            raise ServerFailed(f"{self._described.url}: {kind}: {type(error).__name__}: {error}") from error
        match answer:
            case {"type": "observation", "data": {"observation": observation, "reward": reward, "done": bool(done)}}:
                self._total += _number(reward)
                return self._shown(observation), done
            case {"type": "error", "data": {"message": str(reason)}}:
                raise ServerFailed(f"{self._described.url}: {kind}: {reason[:1000]}")
        raise ServerFailed(f"{self._described.url}: {kind} gave no observation: {str(answer)[:200]}")

    def _shown(self, observation: Any) -> str:
        field = self._described.observation_field
        if field is not None:
            if not isinstance(observation, dict) or field not in observation:
                raise ServerFailed(f"{self._described.url}: an observation without the field {field!r}")
            observation = observation[field]
        if (problem := unstorable(observation)) is not None:
            raise ServerFailed(f"{self._described.url}: an observation that cannot be kept: {problem}")
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def _number(reward: Any) -> float:
    """No reward is 0; true is 1.  Raises ServerFailed for what is no number or too large a one."""
    if reward is None:
        return 0.0
    if isinstance(reward, bool | int | float) and abs(reward) <= LARGEST_NUMBER:
        return float(reward)
    raise ServerFailed(f"a reward that is no number, or too large: {reward!r:.100}")
