"""One TCP connection of a sandbox, from its first byte to its last record.

    accepted ─► may it be allowed? ── no ─► a glance at the first bytes ─► refused
                     │ yes
                     └─► the first bytes ─► allowed? ── no ─► refused
                              │ none yet       │ yes
                              └─ dial; the sandbox's first bytes are still read before they are passed on

Exactly one record of phase ``attempt``, and one more for every further request of plain HTTP.
"""

import asyncio
import socket
import struct
from dataclasses import replace
from typing import Protocol

from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.decision import EgressDecision, Reason, decide, sentence
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.gateway.opening import Kind, Opening, Unreadable, read_opening
from sandboxes.egress.gateway.pins import Pins
from sandboxes.egress.gateway.refusing import refusal, unreachable
from sandboxes.egress.gateway.relay import Cut, Relay
from sandboxes.egress.gateway.upstream import Dial
from sandboxes.egress.log import Traffic
from sandboxes.egress.record import OPENING_BYTES, Ended

GLANCE_S = 0.25
"""How long a connection that is refused anyway is looked at: for its record, and for a protocol to refuse it in."""
SILENCE_S = 0.5
"""After this without a byte the server may speak first, if the destination alone is allowed."""
OPENING_S = 2.0
"""How long the first bytes may take to become readable, once there are some."""
OPENING_PIECE_BYTES = 16384
DIAL_S = 10.0
FAREWELL_S = 0.5
FAREWELL_BYTES = 2**20
RESET = struct.pack("ii", 1, 0)


class Host(Protocol):
    """What a connection needs of the gateway that serves it."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def pins(self) -> Pins: ...
    @property
    def dial(self) -> Dial: ...
    @property
    def crowded(self) -> bool:
        """So many are served that no refused one is looked at."""
        ...


class Connection:
    def __init__(self, gateway: Host, sandbox: socket.socket, attempt: ConnectionAttempt) -> None:
        self._gateway = gateway
        self._ledger = gateway.ledger
        self._label = gateway.ledger.label
        self._sandbox = sandbox
        self._attempt = attempt
        self._decision: EgressDecision | None = None
        self._kind: Kind = "unknown"
        self._opening = Opening("unknown")
        self._first = b""
        self._loop = asyncio.get_running_loop()

    async def serve(self) -> None:
        """Until both sides are closed.  However it ends, its attempt has been recorded."""
        try:
            await self._serve()
        except (OSError, TimeoutError):
            pass  # the sandbox hung up
        finally:
            if self._decision is None:
                self._record(self._gave_up())
            self._sandbox.close()

    def _gave_up(self) -> EgressDecision:
        """The decision about an attempt that ended before there was a decision: never an allowed one."""
        decision = self._decide()
        return self._ledger.failed() if decision.allowed else decision

    async def _serve(self) -> None:
        if not self._decide().allowed:
            if not self._gateway.crowded:
                await self._read_opening(GLANCE_S, GLANCE_S)
            await self._refuse(self._decide())
            return
        await self._read_opening(SILENCE_S, OPENING_S)
        decision = self._decide_opening()
        if not decision.allowed:
            await self._refuse(decision)
            return
        self._record(decision)
        upstream = await self._dialled()
        if upstream is not None:
            with upstream:
                await self._forward(upstream)

    # -- the first bytes --------------------------------------------------------------------------

    async def _read_opening(self, silence_s: float, within_s: float) -> None:
        """Wait for bytes that can be read.  Afterwards ``_attempt`` has what they say; maybe there are none."""
        try:
            async with asyncio.timeout(silence_s):
                self._first = await self._received()
        except TimeoutError:
            return
        opening = read_opening(self._first)
        try:
            async with asyncio.timeout(within_s):
                while opening is None and (more := await self._received()):
                    self._first += more
                    opening = read_opening(self._first)
        except TimeoutError:
            pass  # too slow: what there is has to do
        self._understand(opening or read_opening(self._first, complete=True))

    async def _received(self) -> bytes:
        """What the sandbox has sent; nothing if it hung up.

        It is taken in one step with the answer: ``loop.sock_recv`` takes it a step earlier, and what came in the very
        moment in which a time-out ends the wait would be lost.
        """
        while True:
            try:
                return self._sandbox.recv(OPENING_PIECE_BYTES)
            except (BlockingIOError, InterruptedError):
                await self._readable()

    async def _readable(self) -> None:
        found = asyncio.Event()
        self._loop.add_reader(self._sandbox, found.set)
        try:
            await found.wait()
        finally:
            self._loop.remove_reader(self._sandbox)

    def _understand(self, opening: Opening | None) -> None:
        if opening is not None and opening.kind != "unknown":
            self._opening, self._kind = opening, opening.kind
            self._attempt = _with(self._attempt, opening)

    async def _late_opening(self) -> None:
        """The sandbox's first bytes, when the server was let to speak first: checked before they are passed on."""
        while not self._first:
            await self._read_opening(SILENCE_S, OPENING_S)
            if self._hung_up():
                return
        if not (decision := self._decide_opening()).allowed:
            raise Cut(decision.reason)

    def _hung_up(self) -> bool:
        if self._first:
            return False
        try:
            return self._sandbox.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False  # it has nothing to say yet

    # -- yes or no --------------------------------------------------------------------------------

    def _decide(self, attempt: ConnectionAttempt | None = None) -> EgressDecision:
        usage = self._ledger.usage()
        others = replace(usage, connections=max(0, usage.connections - 1))
        asked = attempt or self._attempt
        return decide(self._ledger.policy, asked, self._gateway.pins.resolved(asked.address), others)

    def _decide_opening(self) -> EgressDecision:
        self._attempt = self._attempt.model_copy(update={"stage": "opening"})
        return self._unless_hidden(self._decide(), self._opening)

    def _unless_hidden(self, decision: EgressDecision, opening: Opening) -> EgressDecision:
        """What may pass only as far as it can be read."""
        if not decision.allowed:
            return decision
        if not opening.readable:
            return decision.model_copy(update={"allowed": False, "reason": "unreadable"})
        if opening.upgrade and self._ledger.policy.limits_methods(decision.rule):
            return decision.model_copy(update={"allowed": False, "reason": "upgrade-not-allowed"})
        return decision

    def _record(self, decision: EgressDecision) -> None:
        self._decision = decision
        names = self._gateway.pins.names(self._attempt.address or "")
        if names:
            self._attempt = self._attempt.model_copy(update={"name": min(names)})
        ended: Ended | None = None if decision.allowed else "denied"
        opening = Traffic(opening_up=self._first[:OPENING_BYTES], ended=ended)
        self._ledger.add(self._attempt, decision, opening, label=self._label)

    async def _refuse(self, decision: EgressDecision) -> None:
        self._record(decision)
        await self._send(refusal(self._kind, sentence(decision, self._attempt)))

    async def _send(self, words: bytes) -> None:
        """Last words, then the end: a reset if there are none."""
        if not words:
            self._sandbox.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            return
        async with asyncio.timeout(FAREWELL_S):
            await self._loop.sock_sendall(self._sandbox, words)
            self._sandbox.shutdown(socket.SHUT_WR)
            # Closing with unread bytes would reset the connection, and the words would be lost.
            left = FAREWELL_BYTES
            while left > 0 and (more := await self._loop.sock_recv(self._sandbox, 65536)):
                left -= len(more)

    # -- forwarding -------------------------------------------------------------------------------

    async def _dialled(self) -> socket.socket | None:
        try:
            async with asyncio.timeout(DIAL_S):
                return await self._gateway.dial(str(self._attempt.address), int(self._attempt.port or 0))
        except asyncio.CancelledError:
            self._state(Traffic(ended="cut"))
            raise
        except (OSError, TimeoutError) as error:
            self._state(Traffic(ended="unreachable"))
            why = getattr(error, "strerror", None) or "no answer in time"
            await self._send(unreachable(self._kind, f"{self._attempt.target}: {why}"))
            return None

    async def _forward(self, upstream: socket.socket) -> None:
        relay = Relay(self._ledger, self._sandbox, upstream, self._state)
        ended: Ended = "cut"
        try:
            await relay.run(lambda: self._pass_up(relay))
            ended = "closed"
        except OSError:
            ended = "closed"
        except Unreadable:
            self._end_by("unreadable")
        except Cut as cut:
            self._end_by(cut.reason)
        finally:
            relay.finish(ended)
            if ended == "cut":
                self._sandbox.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    async def _pass_up(self, relay: Relay) -> None:
        if not self._first:
            await self._late_opening()
        if self._kind == "http":
            await relay.requests(self._first, self._next_request)
        else:
            await relay.bytes_as_they_come(self._first, secret=self._kind == "tls")

    async def _next_request(self, opening: Opening) -> bool:
        """A further request on the same connection is an attempt of its own."""
        first = self._attempt
        bare = self._ledger.attempt(
            first.protocol, first.family, first.address, first.port, stage="opening", name=first.name
        )
        attempt = _with(bare, opening)
        decision = self._unless_hidden(self._decide(attempt), opening)
        self._ledger.add(
            attempt, decision, Traffic(ended=None if decision.allowed else "denied"), label=self._ledger.label
        )
        if not decision.allowed:
            raise Cut(decision.reason)
        return True

    def _end_by(self, reason: Reason) -> None:
        """The last statement says why it was cut."""
        rule = self._decision.rule if self._decision else None
        self._decision = EgressDecision(allowed=False, policy=self._ledger.policy.name, rule=rule, reason=reason)

    def _state(self, traffic: Traffic) -> None:
        assert self._decision is not None
        self._ledger.add_traffic(self._attempt, self._decision, traffic, label=self._label)


def _with(attempt: ConnectionAttempt, opening: Opening) -> ConnectionAttempt:
    """Validated: what the sandbox said is bounded and made printable."""
    read = {"sni": opening.sni, "host": opening.host, "method": opening.method}
    return ConnectionAttempt(**(attempt.model_dump() | read))
