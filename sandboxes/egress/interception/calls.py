"""Sockets that are no part of any network a guest may use: asked for, refused, and recorded.

A raw socket, a packet socket, VSOCK or netlink is refused by the kernel before there is a packet that
could be logged.  So a seccomp filter hands these calls to us (``SECCOMP_RET_USER_NOTIF``): the caller
waits, we record, and answer with an error, always.  If nobody serves any more the kernel answers ENOSYS.
"""

import asyncio
import fcntl
import functools
import os
import select
import struct

from sandboxes.backends.namespaces.syscalls import Architecture, this_machine
from sandboxes.egress.connection_attempt import Family, Protocol
from sandboxes.egress.decision import decide
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.log import Traffic
from sandboxes.observation.filter import (
    ALLOW,
    AT_ARCHITECTURE,
    AT_NUMBER,
    INET,
    INET6,
    JUMP_EQUAL,
    LOAD,
    NETLINK,
    PACKET,
    RAW,
    RETURN,
    TYPE_MASK,
    packed,
    socket_error,
    socket_questions,
)

NOTIFICATION = struct.Struct("=QII iIQ 6Q")
"""Id, pid, flags; call number, architecture, instruction; the arguments."""
RESPONSE = struct.Struct("=QqiI")
RECEIVE, SEND = 0xC0502100, 0xC0182101
AT_ONCE = 64


@functools.cache
def socket_filter(architecture: Architecture | None = None) -> bytes:
    """Return which calls of ``socket`` are asked about; all other calls are left to the sandbox's own filter."""
    machine = architecture or this_machine()
    return packed([
        (LOAD, 0, 0, AT_ARCHITECTURE), (JUMP_EQUAL, 1, 0, machine.audit), (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, AT_NUMBER), (JUMP_EQUAL, 1, 0, machine.numbers["socket"]), (RETURN, 0, 0, ALLOW),
        *socket_questions(),
    ])  # fmt: skip


def record(ledger: Ledger, call: tuple[int, int, int], label: str | None, count: int = 1) -> None:
    """Add refused calls of ``socket`` with this family, type and protocol."""
    family, kind, protocol = call
    tried: Protocol = "raw" if kind == RAW and family != NETLINK or family == PACKET else "other"
    families: dict[int, Family] = {INET: "ipv4", INET6: "ipv6"}
    attempt = ledger.attempt(tried, families.get(family, "other"), None, None)
    text = f"socket(family={family}, type={kind}, protocol={protocol})".encode()
    decision = decide(ledger.policy, attempt, {}, ledger.usage())
    ledger.add(attempt, decision, Traffic(opening_up=text), label=label, count=count)


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
                self._loop.remove_reader(self._listener)  # no process of the sandbox is left that could ask
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
        record(self.ledger, (family, kind, protocol), self.ledger.label)
        try:
            fcntl.ioctl(self._listener, SEND, RESPONSE.pack(number, 0, -socket_error(family, kind), 0))
        except FileNotFoundError:
            return  # the caller was killed meanwhile; it has tried all the same

    async def cut(self) -> None:
        """The callers are dead: who was not answered has been forgotten by the kernel."""
        self.answer()

    async def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self.answer()
        self._ready.unregister(self._listener)
        os.close(self._listener)
