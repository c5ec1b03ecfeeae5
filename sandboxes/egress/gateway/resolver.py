"""The only name server that a sandbox can reach, whatever address it asks.

It answers for names that an allow rule names, with addresses only; every query is an attempt.  No byte of a
query leaves the machine but an allowed name.  What it answers is pinned: only then may the sandbox connect.
An address in a special range (private, link-local ...) is not answered unless a rule names its range: that
is how an attacker's name would lead inside.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable

from sandboxes.egress.address import ip, special_range
from sandboxes.egress.connection_attempt import ConnectionAttempt, Family, host_name
from sandboxes.egress.decision import EgressDecision, decide
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.gateway.pace import PacedReader
from sandboxes.egress.gateway.pins import TTL_S, Pins
from sandboxes.egress.gateway.questions import (
    FAILED,
    FINE,
    NO_NAME,
    MalformedQuestion,
    Question,
    answer,
    complaint,
    read_question,
)
from sandboxes.egress.gateway.upstream import Lookup
from sandboxes.egress.log import NO_TRAFFIC, Traffic
from sandboxes.egress.record import OPENING_BYTES

log = logging.getLogger(__name__)
LOOKUP_S = 5.0
MOST_LOOKUPS = 64
MOST_ADDRESSES = 8
MOST_QUERIES_PER_CONNECTION = 64
QUERIES_PER_S = 200
"""Over TCP, beyond the first on each connection."""
QUERY_BYTES = 4096
PATIENCE_S = 2.0
AT_ONCE = 256
IPV6_PKTINFO = 50
FAMILIES = {"A": socket.AF_INET, "AAAA": socket.AF_INET6}


class Resolver:
    """Serves one UDP socket, and the TCP connections that the gateway hands over.  Belongs to one event loop."""

    def __init__(
        self, udp: socket.socket, ledger: Ledger, pins: Pins, look_up: Lookup, on_question: Callable[[str], None]
    ) -> None:
        """``on_question``: called with the address that was asked by UDP, before there is a record."""
        self.ledger = ledger
        self._pins = pins
        self._look_up = look_up
        self._on_question = on_question
        self._udp = udp
        self._under_way: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        udp.setblocking(False)
        self._next_query_s = 0.0
        self._reader = PacedReader(udp.fileno(), self.receive)

    def receive(self, at_most: int = AT_ONCE) -> int:
        """Take what waits; return how many there were."""
        for taken in range(at_most):
            try:
                message, ancillary, _, client = self._udp.recvmsg(QUERY_BYTES, socket.CMSG_SPACE(20))
            except BlockingIOError:
                return taken
            except OSError:
                continue  # an ICMP error for an earlier answer
            self._asked(message, _destination(ancillary), client)
        return at_most

    def _asked(self, message: bytes, server: bytes, client: tuple[str, int]) -> None:
        address = socket.inet_ntop(socket.AF_INET6, server)
        self._on_question(address)
        question, attempt, decision = self._judged(message, address)
        if question is None or not decision.allowed or len(self._under_way) >= MOST_LOOKUPS:
            decision = decision if not decision.allowed else self.ledger.failed()
            self._refused(attempt, decision, message)
            words = complaint(message) if question is None else answer(question, NO_NAME, [], TTL_S)
            self._send(words, server, client)
            return
        task = self._loop.create_task(self._answered(question, attempt, decision, server, client))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answered(
        self,
        question: Question,
        attempt: ConnectionAttempt,
        decision: EgressDecision,
        server: bytes,
        client: tuple[str, int],
    ) -> None:
        self._send(await self._found(question, attempt, decision), server, client)

    def _send(self, words: bytes, server: bytes, client: tuple[str, int]) -> None:
        """From the address that was asked, as the client expects."""
        if words:
            source = (socket.IPPROTO_IPV6, IPV6_PKTINFO, server + struct.pack("=i", 0))
            try:
                self._udp.sendmsg([words], [source], 0, client)
            except OSError as error:
                log.debug("sandbox %s did not take an answer: %s", self.ledger.sandbox, error)

    async def serve_tcp(self, sandbox: socket.socket, attempt: ConnectionAttempt, label: str | None) -> None:
        """Queries over a connection, ``attempt``, which has a record of its own, with ``label``, if there is none."""
        asked, address = 0, str(attempt.address)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while asked < MOST_QUERIES_PER_CONNECTION and (message := await self._read(sandbox)):
                    asked += 1
                    await self._loop.sock_sendall(sandbox, await self._answer_tcp(message, address))
                    await self._turn()
        except (OSError, TimeoutError):
            pass  # it hung up, or kept us waiting
        finally:
            if not asked:
                decision = decide(self.ledger.policy, attempt, {}, self.ledger.usage())
                decision = self.ledger.failed() if decision.allowed else decision
                self.ledger.add(attempt, decision, Traffic(ended="denied"), label=label)
            sandbox.close()

    async def _answer_tcp(self, message: bytes, address: str) -> bytes:
        question, attempt, decision = self._judged(message, address)
        if question is None or not decision.allowed:
            self._refused(attempt, decision, message)
            words = complaint(message) if question is None else answer(question, NO_NAME, [], TTL_S)
        else:
            words = await self._found(question, attempt, decision)
        return struct.pack("!H", len(words)) + words

    async def _turn(self) -> None:
        """Wait until another query over TCP may be read: connections have a rate, what comes over one has none."""
        now_s = self._loop.time()
        self._next_query_s = max(now_s, self._next_query_s) + 1 / QUERIES_PER_S
        await asyncio.sleep(self._next_query_s - now_s)

    async def _read(self, sandbox: socket.socket) -> bytes:
        head = await self._exactly(sandbox, 2)
        return await self._exactly(sandbox, struct.unpack("!H", head)[0]) if head else b""

    async def _exactly(self, sandbox: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await self._loop.sock_recv(sandbox, size - len(data))
            if not more:
                return b""
            data += more
        return data

    # -- decisions ---------------------------------------------------------------------------------

    def _judged(self, message: bytes, address: str) -> tuple[Question | None, ConnectionAttempt, EgressDecision]:
        try:
            question: Question | None = read_question(message)
        except MalformedQuestion:
            question = None
        name = host_name(question.name.decode("latin-1")) if question else None
        query_type = question.query_type if question else None
        attempt = self.ledger.attempt("dns", _family(address), address, 53, name=name or None, query_type=query_type)
        return question, attempt, decide(self.ledger.policy, attempt, {}, self.ledger.usage())

    def _refused(self, attempt: ConnectionAttempt, decision: EgressDecision, message: bytes) -> None:
        self.ledger.add(attempt, decision, Traffic(opening_up=message[:OPENING_BYTES]), label=self.ledger.label)

    async def _found(self, question: Question, attempt: ConnectionAttempt, decision: EgressDecision) -> bytes:
        """Look the allowed name up; record the attempt when it is known how that went."""
        label, name = self.ledger.label, str(attempt.name)
        judged = self.ledger.failed()
        try:
            async with asyncio.timeout(LOOKUP_S):
                addresses = await self._look_up(name, FAMILIES[question.query_type])
            fit = [address for address in addresses if self._may_be_answered(name, address)][:MOST_ADDRESSES]
            inside = bool(addresses) and not fit
            judged = decision.model_copy(update={"allowed": False, "reason": "special-range"}) if inside else decision
            for address in fit:
                self._pins.pin(name, str(ip(address)))
            return answer(question, NO_NAME if inside else FINE, fit, TTL_S)
        except (OSError, TimeoutError) as error:
            log.info("the name %s could not be looked up: %s", name, error)
            judged = decision
            return answer(question, FAILED, [], TTL_S)
        finally:
            self.ledger.add(attempt, judged, NO_TRAFFIC, label=label)

    def _may_be_answered(self, name: str, address: str) -> bool:
        """Not an address of a special range, unless a rule that names the host names that range as well."""
        found = ip(address)
        if special_range(found) is None:
            return True
        rules = (rule for rule in self.ledger.policy.rules if rule.action == "allow" and rule.names_host(name))
        return any(rule.reaches(found) for rule in rules)

    async def cut(self) -> None:
        """Record what still waits, and end what is under way.  The socket goes on."""
        waiting = True
        while waiting:
            waiting = self.receive() > 0
            await asyncio.sleep(0)  # a task that is cancelled before its first step does not even record
        while self._under_way:
            for task in self._under_way:
                task.cancel()
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        self._reader.close()
        await self.cut()
        self._udp.close()


def _destination(ancillary: list[tuple[int, int, bytes]]) -> bytes:
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IPV6 and kind == IPV6_PKTINFO:
            return data[:16]
    return bytes(16)


def _family(address: str) -> Family:
    return "ipv4" if ip(address).version == 4 else "ipv6"
