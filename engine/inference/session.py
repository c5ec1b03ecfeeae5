"""One episode's place in the generator: its slot, what the cache holds of it, and the turn it is in."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from engine.inference.sampling import turn_uniforms
from engine.spec.generation import Generated, GenerateRequest

StoppedBy = Literal["stop", "length", "context"]


class GenerationAborted(RuntimeError):
    """A pending ``generate`` was ended by ``abort_all``, ``release`` or ``close``; its session is gone."""


@dataclass(slots=True)
class Reply:
    """A future of the caller's event loop, answered from the stepping thread."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future

    @classmethod
    def of_running_loop(cls) -> "Reply":
        loop = asyncio.get_running_loop()
        return cls(loop, loop.create_future())

    def give(self, value: object) -> None:
        self._schedule(self.future.set_result, value)

    def fail(self, error: BaseException) -> None:
        self._schedule(self.future.set_exception, error)

    def _schedule(self, settle: Callable[[Any], None], value: object) -> None:
        """The caller may have stopped waiting, and its loop may be closed: both mean that nobody listens."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: None if self.future.done() else settle(value))


@dataclass(slots=True)
class Turn:
    """A request on its way: the draws it will use and what it has sampled."""

    request: GenerateRequest
    reply: Reply
    uniforms: np.ndarray
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)

    @classmethod
    def begun(cls, request: GenerateRequest, reply: Reply) -> "Turn":
        return cls(request, reply, turn_uniforms(request.seed, request.max_new_tokens))

    def next_draw(self) -> tuple[float, float]:
        """Temperature and uniform of the next token."""
        return self.request.temperature, self.uniforms[len(self.token_ids)]

    def generated(self, stopped_by: StoppedBy) -> Generated:
        return Generated(tuple(self.token_ids), tuple(self.logprobs), tuple(self.policy_versions), stopped_by)


@dataclass(slots=True)
class Session:
    """``cached`` tokens stand in the KV cache at positions 0 .. cached - 1; ``unread`` follow them.

    The first ``to_prefill`` of the unread are read in chunks, the others one per step; the step that
    reads the last of them samples its successor.  After a turn the last sampled token is unread: it
    is read with the next turn.
    """

    name: str
    slot: int
    cached: int = 0
    unread: deque[int] = field(default_factory=deque)
    to_prefill: int = 0
    turn: Turn | None = None

    @property
    def tokens(self) -> int:
        return self.cached + len(self.unread)

    @property
    def pending(self) -> Turn:
        """The turn of a session that is known to be in one."""
        assert self.turn is not None
        return self.turn

    def begin(self, turn: Turn, *, prefill_from: int) -> None:
        """Chunks or steps: the choice follows from this session alone, so it is the same in any company."""
        self.unread.extend(turn.request.new_ids)
        self.to_prefill = len(self.unread) - 1 if len(self.unread) > prefill_from else 0
        self.turn = turn

    def read(self, count: int) -> list[int]:
        """The next unread tokens, which the caller puts into the cache at ``cached`` and after."""
        self.cached += count
        return [self.unread.popleft() for _ in range(count)]
