"""One episode's place in the generator: its slot, what the cache holds of it, and the turn it is in."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from engine.inference.torch.sampling import NOT_FORCED, turn_uniforms
from engine.spec.generation import Generated, GenerateRequest, OnToken, TurnMoved

StoppedBy = Literal["stop", "length", "context"]


@dataclass(slots=True)
class Reply:
    """A future of the caller's event loop, answered from the stepping thread."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    on_token: OnToken | None = None

    @classmethod
    def of_running_loop(cls, on_token: OnToken | None = None) -> "Reply":
        loop = asyncio.get_running_loop()
        return cls(loop, loop.create_future(), on_token)

    def tell(self, token: int, logprob: float) -> None:
        """Report a token while the caller waits for more."""
        if (on_token := self.on_token) is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: None if self.future.done() else on_token(token, logprob))

    def give(self, value: object) -> None:
        self._schedule(self.future.set_result, value)

    def fail(self, error: BaseException) -> None:
        self._schedule(self.future.set_exception, error)

    def _schedule(self, settle: Callable[[Any], None], value: object) -> None:
        """The caller may have stopped waiting, and its loop may be closed: both mean that nobody listens."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: None if self.future.done() else settle(value))


def give_all(values: Sequence[tuple[Reply, object]]) -> None:
    """Give each of these replies its value, in their order; each event loop is woken once."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Reply, object]]] = defaultdict(list)
    for reply, value in values:
        by_loop[reply.loop].append((reply, value))
    for loop, given in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle_all, given)


def _settle_all(given: Sequence[tuple[Reply, object]]) -> None:
    for reply, value in given:
        if not reply.future.done():
            reply.future.set_result(value)


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
        draws = 0 if request.forced_ids else request.drawn + request.max_new_tokens
        return cls(request, reply, turn_uniforms(request.seed, draws)[request.drawn :])

    def next_draw(self) -> tuple[float, int]:
        """Uniform of the next token, and the token itself where it is forced."""
        drawn = len(self.token_ids)
        if self.request.forced_ids:
            return 0.0, self.request.forced_ids[drawn]
        return self.uniforms[drawn], NOT_FORCED

    def room_needed(self) -> int:
        """Tokens that must fit in the context for the turn to begin: a sampled one may end by the context."""
        return len(self.request.new_ids) + max(len(self.request.forced_ids), 1)

    def ended(self) -> StoppedBy | None:
        """Return why the turn is over by what it has, if it is."""
        if self.request.forced_ids:
            return "stop" if len(self.token_ids) == len(self.request.forced_ids) else None
        if self.token_ids[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.token_ids) == self.request.max_new_tokens else None

    def generated(self, stopped_by: StoppedBy) -> Generated:
        return Generated(tuple(self.token_ids), tuple(self.logprobs), tuple(self.policy_versions), stopped_by)

    def move(self, *, is_vacant: bool) -> None:
        """Send it on, with what it has."""
        sampled = tuple(self.token_ids), tuple(self.logprobs), tuple(self.policy_versions)
        self.reply.fail(TurnMoved(*sampled, is_vacant))


@dataclass(slots=True)
class Session:
    """The first ``cached`` of the ``ids`` stand in the KV cache, each at its own position; the others are unread.

    The first ``to_prefill`` of the unread are read in chunks, the others one per step; the step that
    reads the last of them samples its successor.  After a turn the last sampled token is unread: it
    is read with the next turn.
    """

    name: str
    slot: int
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    to_prefill: int = 0
    turn: Turn | None = None

    @property
    def unread(self) -> int:
        return len(self.ids) - self.cached

    @property
    def pending(self) -> Turn:
        """The turn of a session that is known to be in one."""
        assert self.turn is not None
        return self.turn

    def begin(self, turn: Turn, *, prefill_from: int) -> None:
        """Chunks or steps: the choice follows from this session alone, so it is the same in any company."""
        self.ids.extend(turn.request.new_ids)
        self.to_prefill = self.unread - 1 if self.unread > prefill_from else 0
        self.turn = turn

    def read(self, count: int) -> list[int]:
        """The next unread tokens, which the caller puts into the cache at ``cached`` and after."""
        self.cached += count
        return self.ids[self.cached - count : self.cached]

    def read_chunk(self, count: int) -> list[int]:
        """The next ``count`` of those to prefill."""
        self.to_prefill -= count
        return self.read(count)

    def rewind(self, tokens: int) -> None:
        """Keep the first ``tokens``.

        The last of them is unread again, as after a turn that ended with it: what is cached of it may have been
        read in a chunk or in a step, as the removed tokens had it, and the two differ in their last bits.
        """
        del self.ids[tokens:]
        self.cached = min(self.cached, max(tokens - 1, 0))
