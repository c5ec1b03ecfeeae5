"""The tools of an environment in a chat: one session of one task, opened by the first call, watched as an episode's.

Nothing is scored.  An answer is not told to the environment: who answers a person goes on talking with her.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal

from engine.environments.contract import Environment, Observation, Sandboxes
from engine.rollout.checked_session import CheckedSession
from engine.rollout.faults import named_as_environment_fault
from engine.rollout.sandbox_monitor import EpisodeMonitor, SandboxMonitor
from engine.spec.message import AssistantMessage, Message, ToolSchema
from engine.spec.trajectory import Task, ToolCall
from sandboxes.interface import SandboxFrozen

Ends = Literal["done", "frozen"]


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """An environment whose tools answer, at one of its tasks."""

    environment: Environment
    task: Task
    sandboxes: Sandboxes
    monitor: SandboxMonitor | None = None
    """It watches the sandboxes; None: nobody does."""


class ChatTools:
    """``None`` for a chat without tools: a call is then left to the person."""

    def __init__(self, chosen: ChosenTools | None, *, name: str) -> None:
        self._chosen, self._name = chosen, name
        self._open: AsyncExitStack | None = None
        self._session: CheckedSession | None = None
        self._watch: EpisodeMonitor | None = None
        self._acting = self._begin_anew = False
        self._calls = 0
        with named_as_environment_fault():
            self.schemas: Sequence[ToolSchema] = () if chosen is None else tuple(chosen.environment.tools(chosen.task))

    @property
    def answer(self) -> bool:
        return self._chosen is not None

    async def opening(self) -> Sequence[Message]:
        """What an episode of the task begins with.  Takes no sandbox."""
        if self._chosen is None:
            return ()
        with named_as_environment_fault():
            async with self._chosen.environment.session(self._chosen.task, self._chosen.sandboxes) as session:
                return await session.reset()

    async def act(self, message: AssistantMessage, *, wrote: str) -> tuple[Observation, Ends | None]:
        """What came of the calls, and whether that was the end of the task; the next call then begins it anew.

        Raises SandboxLost, SandboxUnavailable and EnvironmentFailed, after which it begins anew as well.
        """
        self._acting = True
        session = await self._opened()
        if self._watch is not None:
            self._watch.turn, self._calls = self._calls, self._calls + 1
            self._watch.begins(wrote, message.call_text)
        ends: Ends | None = None
        try:
            observation = await session.act(message)
            ends = "done" if observation.done else None
        except SandboxFrozen as frozen:
            observation, ends = _stopped(message, frozen), "frozen"
        if self._watch is not None:
            self._watch.ended(wrote, observation.calls)
            await self._watch.settled()
        self._acting = False
        if ends is not None:
            await self.close()
        return observation, ends

    async def end_unfinished(self) -> None:
        """A call that was cut off has done nobody knows what: the tools begin anew."""
        if self._acting:
            await self.close()

    def took_new_beginning(self) -> bool:
        """Whether the tools have lost what they had done, since this was last asked."""
        began, self._begin_anew = self._begin_anew, False
        return began

    async def close(self) -> None:
        """Give back what the session holds.  Twice is fine."""
        held, self._open, self._session = self._open, None, None
        self._acting = False
        if held is not None:
            self._begin_anew = True
            try:
                await held.aclose()
            finally:
                if self._watch is not None:
                    self._watch.over()

    async def _opened(self) -> CheckedSession:
        if self._session is not None:
            return self._session
        chosen = self._chosen
        assert chosen is not None  # only a chat with tools acts
        self._open = AsyncExitStack()
        self._watch = None if chosen.monitor is None else chosen.monitor.episode(chosen.sandboxes, self._name)
        with named_as_environment_fault():
            session = await self._open.enter_async_context(
                chosen.environment.session(chosen.task, self._watch or chosen.sandboxes)
            )
        checked = CheckedSession(session, self.schemas)
        await checked.reset()
        self._session = checked
        return checked


def _stopped(message: AssistantMessage, frozen: SandboxFrozen) -> Observation:
    return Observation.of(
        ToolCall.of(request, str(frozen), error_class="frozen", seconds=0.0) for request in message.requests
    )
