"""Sampling by a fleet of SGLang servers.

A session is a list of token ids here, and a prefix in one server's radix cache there: every turn sends all ids, and the
server reads what it has not read yet.  So nothing of a session is lost with its server: a turn that was under way is
asked again elsewhere, after the tokens that are known.

    generate ──► turn (a task of its own) ──► router ──► server ──► answer: end of the turn, or asked again from there

What equal requests give is not equal to the last bit: SGLang batches sum in another order, and it draws from a seed
only in its deterministic mode (``resources.sglang.flags``).  docs/backends.md says what the loop makes of it.
"""

import asyncio
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.inference.interface import GenerationAborted, Level
from engine.inference.routing import Prompt, Router
from engine.inference.sglang.client import ServerGone, ServerRefused, ServerReply
from engine.inference.sglang.servers import Fleet, Server, reading_of
from engine.inference.sglang.weights import Exchange
from engine.models.weights import WeightSource
from engine.spec.generation import Generated, GenerateRequest, OnToken
from engine.spec.usage import ServerReading

ABORTED_AGAIN = 3
"""So many answers without a token in a row, and the turn is given up with the server's message."""

Ask = Callable[[Server, str], Awaitable[ServerReply]]
"""One request of a server, which is to be called by a name."""
StoppedBy = Literal["stop", "length", "context"]


@dataclass
class Session:
    """``ids`` are all tokens up to the end of the last turn."""

    name: str
    prompt: Prompt
    ids: list[int] = field(default_factory=list)
    turn: asyncio.Task[Generated] | None = None


@dataclass
class Sampled:
    """What a turn has so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    barren: int = 0
    on_token: OnToken | None = None
    """Is given each, where the turn is streamed."""

    def add(self, answer: ServerReply, server_version: int) -> None:
        self.token_ids += answer.token_ids
        self.logprobs += answer.logprobs
        self.versions += [int(name) if name.isdigit() else server_version for name in answer.versions]
        self.barren = 0 if answer.token_ids else self.barren + 1
        if self.on_token is not None:
            for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
                self.on_token(token, logprob)

    def generated(self, stopped_by: StoppedBy) -> Generated:
        return Generated(tuple(self.token_ids), tuple(self.logprobs), tuple(self.versions), stopped_by)


class SglangGenerator:
    """A ``Generator`` (engine/inference/interface.py) over servers, which ``fleet`` starts on the first call."""

    def __init__(
        self,
        fleet: Callable[[], Fleet],
        exchange: Exchange,
        *,
        scratch: Path,
        vocab_size: int,
        context_tokens: int,
        logprobs_at: str,
    ) -> None:
        self._make_fleet, self._exchange, self._scratch = fleet, exchange, scratch
        self._vocab_size, self._context_tokens, self._logprobs_at = vocab_size, context_tokens, logprobs_at
        self._fleet: Fleet | None = None
        self._router = Router()
        self._sessions: dict[str, Session] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._suspensions = 0
        self._asides: set[asyncio.Task[None]] = set()
        self._version = 0
        self._asked_again = 0
        self._closed = False

    # ---- for episodes ----

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one turn, or give the log-probs of a forced one.

        If ``new_ids`` leave no room for a token (for all that are forced), the answer is empty with
        ``stopped_by="context"`` and the session is as it was.  If the caller is cancelled, its session is released.
        Raises ValueError for a request that makes no sense or that a server cannot answer, GenerationAborted when it
        is ended from outside, ServersLost and WrongServer where there is nobody to ask.
        """
        return await self._generate(request, None)

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        """``generate``, and ``on_token`` with each token as its server tells it.

        What it was given of a turn stands, also when the server dies over it: another one goes on from there.
        """
        return await self._generate(request, on_token)

    async def _generate(self, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        self._check(request)
        if self._closed:
            raise GenerationAborted("the generator is closed")
        session = self._sessions.get(request.session)
        if session is None:
            session = self._sessions[request.session] = Session(request.session, request.new_ids)
        if session.turn is not None:
            raise ValueError(f"session {request.session!r} already has a turn pending")
        session.turn = turn = asyncio.create_task(self._turn(session, request, on_token))
        try:
            await asyncio.wait({turn})
        except asyncio.CancelledError:
            await self.release(session.name)
            raise
        session.turn = None
        if turn.cancelled():
            raise GenerationAborted(f"session {session.name!r} was ended")
        return turn.result()

    async def rewind(self, session: str, tokens: int) -> None:
        """Forget all but the first ``tokens`` tokens of a session that has no turn pending, else ValueError."""
        known = self._sessions.get(session)
        if known is None or known.turn is not None:
            raise ValueError(f"session {session!r} is unknown or has a turn pending: it cannot be rewound")
        if not 0 <= tokens <= len(known.ids):
            raise ValueError(f"session {session!r} has {len(known.ids)} tokens: {tokens} of them cannot be kept")
        del known.ids[tokens:]

    async def release(self, session: str) -> None:
        """Forget the session; a turn that is pending raises GenerationAborted.  Unknown sessions are fine."""
        known = self._sessions.pop(session, None)
        self._router.forget(session)
        if known is not None and known.turn is not None:
            known.turn.cancel()

    # ---- for the loop ----

    async def suspend(self) -> None:
        """When this returns every server has stopped sampling.  After ``resume`` they read again what they had."""
        self._running.clear()
        await self._started().all_started()
        self._suspensions += 1
        await self._of_each(lambda server: self._exchange.hold(server.client))

    async def load_weights(self, source: WeightSource, version: int) -> None:
        """Sample from these weights from the next token on; what servers have read is read again, with them.

        Raises what the source raises, NoRoomForWeights and ServerRefused; a server that dies meanwhile gets them when
        it is back.
        """
        fleet = self._started()
        await fleet.all_started()
        async with fleet.weights:
            await self._exchange.take(source, version)
        await fleet.load_weights()
        self._version = version

    async def resume(self) -> None:
        await self._of_each(lambda server: self._exchange.go_on(server.client))
        self._running.set()

    async def abort_all(self) -> None:
        """End every session; pending turns raise GenerationAborted."""
        for session in list(self._sessions):
            await self.release(session)

    def stats(self) -> dict[str, float]:
        """Totals since the start and the present load, of all servers and of each (``server_0_running`` ..)."""
        servers = [] if self._fleet is None else self._fleet.servers
        totals = {
            "sampled_tokens": float(sum(server.sampled_tokens for server in servers)),
            "tokens_per_s": sum(_rate(server.sampled_tokens, server.busy_seconds) for server in servers),
            "cache_hit_rate": _rate(sum(s.cached_tokens for s in servers), sum(s.prompt_tokens for s in servers)),
            "sessions": float(len(self._sessions)),
            "waiting": float(self._pending() - sum(server.in_hand for server in servers)),
            "asked_again": float(self._asked_again),
            "suspended": float(not self._running.is_set()),
            "version": float(self._version),
            "servers": float(len(servers)),
            "servers_up": float(sum(server.is_up for server in servers)),
            "restarts": float(sum(server.restarts for server in servers)),
        }
        for server in servers:
            totals |= {f"server_{server.number}_{name}": value for name, value in _of_server(server).items()}
        return totals

    async def servers(self) -> list[ServerReading]:
        """How each fares, in the order of their numbers; none before the first call has started them."""
        servers = [] if self._fleet is None else self._fleet.servers
        return list(await asyncio.gather(*(reading_of(server) for server in servers)))

    def reports(self) -> list[tuple[Level, str]]:
        """What happened to the servers since the last call, for the run's log."""
        return [] if self._fleet is None else self._fleet.reports()

    def close(self) -> None:
        """Abort everything; end the servers that were started, and remove the weights that were exchanged."""
        self._closed = True
        for session in list(self._sessions.values()):
            if session.turn is not None and not session.turn.get_loop().is_closed():
                session.turn.cancel()
        self._sessions.clear()
        if self._fleet is not None:
            self._fleet.close()
        self._exchange.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ---- a turn ----

    async def _turn(self, session: Session, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        """The session grows by the turn only when it is over."""
        begun = [*session.ids, *request.new_ids]
        if len(begun) + max(len(request.forced_ids), 1) > self._context_tokens:
            return Generated((), (), (), "context")
        generated = await (
            self._forced(session, request, begun)
            if request.forced_ids
            else self._sampled(session, request, begun, on_token)
        )
        session.ids = [*begun, *generated.token_ids]
        return generated

    async def _forced(self, session: Session, request: GenerateRequest, begun: list[int]) -> Generated:
        ids = [*begun, *request.forced_ids]
        sampled = Sampled()
        while not sampled.token_ids:  # none where it was aborted for new weights
            await self._asked(session, sampled, lambda server, name: server.client.score(name, ids, len(begun)))
        return sampled.generated("stop")

    async def _sampled(
        self, session: Session, request: GenerateRequest, begun: list[int], on_token: OnToken | None
    ) -> Generated:
        most = min(request.max_new_tokens, self._context_tokens - len(begun))
        stopped_by: StoppedBy = "length" if most == request.max_new_tokens else "context"
        sampled = Sampled(on_token=on_token)
        further = _further if on_token is None else _streamed
        while len(sampled.token_ids) < most:
            answer = await self._asked(session, sampled, further(request, begun, sampled, most))
            if sampled.token_ids and sampled.token_ids[-1] in request.stop_ids:
                stopped_by = "stop"
                break
            if answer.finish == "length" and len(sampled.token_ids) < most:
                stopped_by = "context"  # of the server, which keeps a few tokens of it for itself
                break
            # Else a stop id of the model's own, which is none of the request's, or an abort: the turn goes on.
        return sampled.generated(stopped_by)

    async def _asked(self, session: Session, sampled: Sampled, ask: Ask) -> ServerReply:
        """One answer; from another server when one dies over it."""
        while True:
            await self._running.wait()
            up = await self._started().up()
            if not self._running.is_set():
                continue
            number = self._router.place(session.name, session.prompt, {server.number: server.in_hand for server in up})
            server, suspensions = next(server for server in up if server.number == number), self._suspensions
            try:
                answer = await self._answer_of(server, ask)
            except ServerGone as error:
                self._asked_again += 1
                self._started().lost(server, error)
                continue
            sampled.add(answer, server.version)
            if suspensions != self._suspensions:
                sampled.barren = 0  # it was ended for new weights, not by the server
            if answer.finish == "abort" and sampled.barren >= ABORTED_AGAIN:
                raise ServerRefused(f"{server.name} aborts session {session.name!r}: {answer.message or 'no reason'}")
            return answer

    async def _answer_of(self, server: Server, ask: Ask) -> ServerReply:
        name, began = uuid.uuid4().hex, time.perf_counter()
        server.began(began)
        try:
            answer = await ask(server, name)
        except asyncio.CancelledError:
            self._aside(server.client.abort(name))
            raise
        finally:
            server.ended(time.perf_counter())
        server.sampled_tokens += len(answer.token_ids)
        server.prompt_tokens += answer.prompt_tokens
        server.cached_tokens += answer.cached_tokens
        return answer

    # ---- small things ----

    def _started(self) -> Fleet:
        if self._closed:
            raise GenerationAborted("the generator is closed")
        if self._fleet is None:
            self._fleet = self._make_fleet()
        return self._fleet

    async def _of_each(self, call: Callable[[Server], Awaitable[None]]) -> None:
        fleet = self._started()

        async def notified(server: Server) -> None:
            try:
                await call(server)
            except ServerGone as error:
                fleet.lost(server, error)

        await asyncio.gather(*(notified(server) for server in fleet.servers if server.is_up))

    def _aside(self, call: Coroutine[Any, Any, None]) -> None:
        """Make a call that nobody waits for; a server that is gone has nothing left to abort."""

        async def made() -> None:
            try:
                await call
            except ServerGone:
                return

        task = asyncio.create_task(made())
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    def _pending(self) -> int:
        return sum(session.turn is not None for session in self._sessions.values())

    def _check(self, request: GenerateRequest) -> None:
        if request.max_new_tokens < 1 and not request.forced_ids:
            raise ValueError(f"max_new_tokens = {request.max_new_tokens}: must be at least 1")
        if not request.temperature >= 0:
            raise ValueError(f"temperature = {request.temperature}: must be 0 (greedy) or greater")
        if not request.new_ids:
            raise ValueError("new_ids is empty: a turn begins with at least one token to read")
        for name, ids in (("new_ids", request.new_ids), ("forced_ids", request.forced_ids)):
            if not all(0 <= token < self._vocab_size for token in ids):
                raise ValueError(f"{name} hold a token outside the vocabulary of {self._vocab_size}")
        self._check_logprobs(request)

    def _check_logprobs(self, request: GenerateRequest) -> None:
        """A log-prob that a server cannot tell is refused, not replaced by another one."""
        wanted = request.logprob_temperature
        if request.forced_ids:
            can, given = wanted == 1 and not request.logprobs_truncated, "of the model itself for forced tokens"
        elif request.logprobs_truncated:
            can, given = wanted == request.temperature, "of what is sampled at the temperature of the sampling"
        else:
            exact_temperature = 1.0 if self._logprobs_at == "one" else request.temperature or 1.0
            can, given = (
                wanted == exact_temperature,
                f'at {exact_temperature:g} (resources.sglang.logprobs_at = "{self._logprobs_at}")',
            )
        if not can:
            raise ValueError(
                f"logprob_temperature = {wanted:g}, logprobs_truncated = {request.logprobs_truncated}: SGLang tells "
                f"log-probs {given}; ask for these, or use the torch generator"
            )


def _further(request: GenerateRequest, begun: list[int], sampled: Sampled, most: int) -> Ask:
    """Ask for the rest of a turn after what it has."""
    ids, sampling = [*begun, *sampled.token_ids], _sampling(request, most - len(sampled.token_ids))
    return lambda server, name: server.client.generate(
        name, ids, sampling, behaviour_logprobs=request.logprobs_truncated
    )


def _streamed(request: GenerateRequest, begun: list[int], sampled: Sampled, most: int) -> Ask:
    """The same, where all parts but the last are added as they come.  Asked again, it goes on behind them."""

    async def ask(server: Server, name: str) -> ServerReply:
        if sampled.token_ids and (len(sampled.token_ids) == most or sampled.token_ids[-1] in request.stop_ids):
            return ServerReply([], [], [], "stop", "", 0, 0)  # the server died behind its last token
        ids, sampling = [*begun, *sampled.token_ids], _sampling(request, most - len(sampled.token_ids))
        parts = server.client.stream(name, ids, sampling, behaviour_logprobs=request.logprobs_truncated)
        async with aclosing(parts):
            async for part in parts:
                if part.finish:
                    return part
                sampled.add(part, server.version)
                server.sampled_tokens += len(part.token_ids)
        raise AssertionError("a stream ends with a finish, or raises")

    return ask


def _sampling(request: GenerateRequest, most: int) -> dict[str, Any]:
    """The request in SGLang's words.  ``min_p`` and ``top_p`` change nothing of a greedy turn there either."""
    cut = request.truncation
    return {
        "temperature": request.temperature,
        "top_k": cut.top_k or -1,
        "top_p": cut.top_p,
        "min_p": cut.min_p,
        "max_new_tokens": most,
        "stop_token_ids": sorted(request.stop_ids),
        "sampling_seed": request.seed % 2**31,
    }


def _of_server(server: Server) -> dict[str, float]:
    return {
        "up": float(server.is_up),
        "running": float(server.in_hand),
        "version": float(server.version),
        "restarts": float(server.restarts),
        "tokens_per_s": _rate(server.sampled_tokens, server.busy_seconds),
        "cache_hit_rate": _rate(server.cached_tokens, server.prompt_tokens),
    }


def _rate(what: float, of: float) -> float:
    return what / of if of else 0.0
