"""Episodes that a trainer elsewhere plays: text in, text and the environment's own reward out.

    reset ── a task by number ──► observation, info
    step  ── an action ─────────► observation, reward, terminated, truncated, info

An action is what the policy wrote: a JSON object ``{"tool": ..., "arguments": {...}}`` is a call, ``{"calls": [...]}``
holds several, ``{"answer": ...}`` is an answer, and any other text is an answer too.  The reward of every step but the
last is 0; that of the last is what the environment pays: 1 for success, and its components.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.environments.contract import Environment, Rewards
from engine.rollout.checked_session import CheckedSession
from engine.rollout.faults import named_as_environment_fault
from engine.spec.environment import Environment as EnvironmentSpec
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema, unstorable
from engine.spec.trajectory import Split, Task
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

Info = dict[str, Any]


class ServingRefused(Exception):
    """The caller asked for what is not there or cannot be; the message names the field and the remedy."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """The limits of one server."""

    episodes: int = 64
    """Instances at once, of all environments together."""
    idle_s: float = 900.0
    """An instance that nobody uses for so long is closed."""


@dataclass(frozen=True)
class Served:
    """An environment under the name that it is served by."""

    name: str
    spec: EnvironmentSpec
    environment: Environment
    pool: Pool

    def task(self, split: Split, number: int) -> Task:
        """Numbers beyond the last begin anew, as a seed may be any number."""
        tasks = self.environment.tasks(split)
        return tasks[number % len(tasks)]


@dataclass(frozen=True)
class Step:
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info


@dataclass
class Episode:
    """One instance: one episode after the other.  Its steps wait for each other."""

    served: Served
    split: Split
    max_turns: int
    used_at: float = field(default_factory=time.monotonic)
    _held: AsyncExitStack = field(default_factory=AsyncExitStack)
    _session: CheckedSession | None = None
    _turns: int = 0
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def busy(self) -> bool:
        return self._busy.locked()

    async def reset(self, number: int, split: Split | None = None) -> tuple[str, Info]:
        """Begin an episode of the task; one that is under way ends.  Raises what the environment raises."""
        async with self._used():
            await self._end()
            with named_as_environment_fault():
                task = self.served.task(split or self.split, number)
                tools = self.served.environment.tools(task)
                session = await self._held.enter_async_context(self.served.environment.session(task, self.served.pool))
            self._session, self._turns = CheckedSession(session, tools), 0
            messages = await self._session.reset()
            return _text(messages), {"task": task.id, "level": task.level, "tools": [_tool(tool) for tool in tools]}

    async def step(self, message: AssistantMessage) -> Step:
        """Raises ServingRefused before ``reset`` and after the end, and what the environment raises."""
        async with self._used():
            if self._session is None:
                raise ServingRefused(409, "no episode is under way: reset first")
            observation = await self._session.act(message)
            self._turns += 1
            truncated = self._turns >= self.max_turns and not observation.done
            failed = [call.error_class for call in observation.calls if call.failed]
            info: Info = {"turn": self._turns, "failed_calls": failed}
            if not (observation.done or truncated):
                return Step(_text(observation.messages), 0.0, False, False, info)
            rewards = await self._session.score()
            await self._end()
            info |= {"success": rewards.success, "components": dict(rewards.components)}
            return Step(_text(observation.messages), paid(rewards), observation.done, truncated, info)

    async def close(self) -> None:
        async with self._used():
            await self._end()

    @property
    def turns(self) -> int:
        return self._turns

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[None]:
        async with self._busy:
            try:
                yield
            except ServingRefused:
                raise
            except BaseException:
                await self._end()
                raise
            finally:
                self.used_at = time.monotonic()

    async def _end(self) -> None:
        held, self._held, self._session = self._held, AsyncExitStack(), None
        await held.aclose()


class Episodes:
    """All instances of a server, by ids that cannot be guessed."""

    def __init__(self, served: Sequence[Served], limits: Limits) -> None:
        self.served = {environment.name: environment for environment in served}
        self.limits = limits
        self._episodes: dict[str, Episode] = {}

    def make(self, name: str, split: Split, max_turns: int | None) -> tuple[str, Episode]:
        """Raises ServingRefused."""
        served = self.served.get(name)
        if served is None:
            raise ServingRefused(404, f"env_id = {name!r}: not served here; use one of: {', '.join(self.served)}")
        if len(self._episodes) >= self.limits.episodes:
            raise ServingRefused(503, f"{len(self._episodes)} instances are open, which is the limit: close one")
        id_ = secrets.token_hex(16)
        self._episodes[id_] = Episode(served, split, max_turns or served.spec.max_turns)
        return id_, self._episodes[id_]

    def find(self, id_: str) -> Episode:
        """Raises ServingRefused."""
        if (episode := self._episodes.get(id_)) is None:
            raise ServingRefused(404, "sandbox_id: there is no such instance; it was closed, or never made")
        return episode

    async def close(self, id_: str) -> None:
        """Closing twice is fine."""
        if (episode := self._episodes.pop(id_, None)) is not None:
            await episode.close()

    async def sweep(self) -> None:
        """Close what nobody uses any more."""
        before = time.monotonic() - self.limits.idle_s
        for id_ in [id_ for id_, one in self._episodes.items() if one.used_at < before and not one.busy]:
            await self.close(id_)

    async def close_all(self) -> None:
        for id_ in list(self._episodes):
            await self.close(id_)


def message_of(action: str) -> AssistantMessage:
    """Raises ServingRefused for a call whose fields are no call's."""
    try:
        fields = json.loads(action)
    except (ValueError, RecursionError):
        return AssistantMessage(action)
    return message_of_fields(fields) if isinstance(fields, dict) else AssistantMessage(action)


def message_of_fields(fields: Mapping[str, Any]) -> AssistantMessage:
    """Raises ServingRefused."""
    match fields:
        case {"answer": str(answer), **others} if not others:
            return AssistantMessage(answer)
        case {"tool": _, **others} if not others.keys() - {"arguments"}:
            return AssistantMessage(requests=(_request(fields),))
        case {"calls": [*calls], **others} if not others and calls:
            return AssistantMessage(requests=tuple(_request(call) for call in calls))
    return AssistantMessage(json.dumps(dict(fields), ensure_ascii=False))


def _request(call: Any) -> ToolRequest:
    match call:
        case {"tool": str(name), **others} if isinstance(arguments := others.get("arguments", {}), dict):
            if (problem := unstorable(arguments)) is None:
                return ToolRequest(name, arguments)
            raise ServingRefused(422, f"arguments: {problem}")
    raise ServingRefused(422, 'a call is {"tool": "name", "arguments": {...}}')


def paid(rewards: Rewards) -> float:
    return float(rewards.success) + sum(rewards.components.values())


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


def _tool(tool: ToolSchema) -> Info:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def pool_of(spec: EnvironmentSpec, limits: Limits) -> Pool:
    """Sandboxes are made when an episode asks for one."""
    return Pool(spec.sandbox or SandboxSpec(), size=limits.episodes)
