"""Sockets that are no part of any network a guest may use: asked for, refused, and recorded.

A raw socket, a packet socket, VSOCK or netlink is refused by the kernel before there is a packet that
could be logged.  So a seccomp filter hands these calls to us (``SECCOMP_RET_USER_NOTIF``): the caller
waits, we record, and answer with an error, always.  If nobody serves any more the kernel answers ENOSYS.
"""

import asyncio
import errno
import fcntl
import functools
import os
import select
import struct

from sandboxes.backends.namespaces.syscalls import Architecture, this_machine
from sandboxes.egress.attempt import Family, Protocol
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.log import Traffic
from sandboxes.egress.verdict import decide

NOTIFICATION = struct.Struct("=QII iIQ 6Q")
"""Id, pid, flags; call number, architecture, instruction; the arguments."""
RESPONSE = struct.Struct("=QqiI")
RECEIVE, SEND = 0xC0502100, 0xC0182101
AT_ONCE = 64
UNIX, INET, INET6, NETLINK, PACKET = 1, 2, 10, 16, 17
STREAM, DATAGRAM, RAW = 1, 2, 3
TCP, UDP, ICMP, ICMPV6, MPTCP = 6, 17, 1, 58, 262
NETLINK_ROUTE = 0
TYPE_MASK = 0xF
"""Above it are SOCK_NONBLOCK and SOCK_CLOEXEC."""

# Classic BPF, as in backends.namespaces.seccomp.
LOAD, AND, JUMP_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
ALLOW, ASK, ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
Instruction = tuple[int, int, int, int]


@functools.cache
def socket_filter(architecture: Architecture | None = None) -> bytes:
    """Which calls of ``socket`` are asked about; all other calls are left to the box's own filter."""
    machine = architecture or this_machine()
    program: list[Instruction] = [
        (LOAD, 0, 0, AT_ARCHITECTURE), (JUMP_EQUAL, 1, 0, machine.audit), (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, AT_NUMBER), (JUMP_EQUAL, 1, 0, machine.numbers["socket"]), (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, AT_ARGUMENTS), (JUMP_EQUAL, 0, 1, UNIX), (RETURN, 0, 0, ALLOW),
        # C libraries list their addresses by this one whenever a name is looked up: refused without a word.
        (JUMP_EQUAL, 0, 4, NETLINK),
        (LOAD, 0, 0, AT_ARGUMENTS + 16), (JUMP_EQUAL, 0, 1, NETLINK_ROUTE),
        (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT), (RETURN, 0, 0, ASK),
        (JUMP_EQUAL, 2, 0, INET), (JUMP_EQUAL, 1, 0, INET6), (RETURN, 0, 0, ASK),
        (LOAD, 0, 0, AT_ARGUMENTS + 8), (AND, 0, 0, TYPE_MASK),
        *_protocols(STREAM, (0, TCP, MPTCP)), *_protocols(DATAGRAM, (0, UDP, ICMP, ICMPV6)),
        (RETURN, 0, 0, ASK),
    ]  # fmt: skip
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _protocols(kind: int, allowed: tuple[int, ...]) -> list[Instruction]:
    """If the type is ``kind``: one of these protocols, or the question."""
    checks = [(JUMP_EQUAL, len(allowed) - place, 0, protocol) for place, protocol in enumerate(allowed)]
    body = [(LOAD, 0, 0, AT_ARGUMENTS + 16), *checks, (RETURN, 0, 0, ASK), (RETURN, 0, 0, ALLOW)]
    return [(JUMP_EQUAL, 0, len(body), kind), *body]


class Calls:
    """Serves the filter's listener.  Belongs to one event loop."""

    def __init__(self, listener: int, ledger: Ledger) -> None:
        self.ledger = ledger
        self._listener = listener
        self._ready = select.poll()
        self._ready.register(listener, select.POLLIN)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener, self.answer)

    def answer(self, at_most: int = AT_ONCE) -> int:
        """Record and refuse what is asked; return how many there were."""
        for taken in range(at_most):
            events = self._ready.poll(0)
            if not events:
                return taken
            if not events[0][1] & select.POLLIN:
                self._loop.remove_reader(self._listener)  # no process of the box is left that could ask
                return taken
            notification = bytearray(NOTIFICATION.size)
            try:
                fcntl.ioctl(self._listener, RECEIVE, notification)
            except FileNotFoundError:
                continue  # the caller was killed while it waited
            self._refuse(notification)
        return at_most

    def _refuse(self, notification: bytearray) -> None:
        number, _, _, _, _, _, family, kind, protocol, *_ = NOTIFICATION.unpack(notification)
        family, kind, protocol = (value & 0xFFFFFFFF for value in (family, kind, protocol))
        kind &= TYPE_MASK
        self._record(family, kind, protocol)
        code = errno.EPERM if kind == RAW and family in (INET, INET6) else errno.EAFNOSUPPORT
        try:
            fcntl.ioctl(self._listener, SEND, RESPONSE.pack(number, 0, -code, 0))
        except FileNotFoundError:
            return  # the caller was killed meanwhile; it has tried all the same

    def _record(self, family: int, kind: int, protocol: int) -> None:
        tried: Protocol = "raw" if kind == RAW and family != NETLINK or family == PACKET else "other"
        families: dict[int, Family] = {INET: "ipv4", INET6: "ipv6"}
        attempt = self.ledger.attempt(tried, families.get(family, "other"), None, None)
        said = f"socket(family={family}, type={kind}, protocol={protocol})".encode()
        verdict = decide(self.ledger.policy, attempt, {}, self.ledger.usage())
        self.ledger.add(attempt, verdict, Traffic(opening_up=said), label=self.ledger.label)

    async def cut(self) -> None:
        """The callers are dead: who was not answered has been forgotten by the kernel."""
        self.answer()

    async def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self.answer()
        self._ready.unregister(self._listener)
        os.close(self._listener)
