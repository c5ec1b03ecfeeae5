"""What happens to a packet of a watched sandbox: routes and nftables rules of its network namespace.

    guest ── output ──► loopback? ─────────────────────────────► prerouting: a server in the sandbox? ──► it
      │        │         └─ the gateway's own port: refused       └─ nobody: logged; the kernel refuses
      │        ├─ TCP, within the rate ──► lo ──► prerouting: tproxy ──► gateway's listener
      │        ├─ UDP to port 53 ──► lo ──► prerouting, within the rate ──► resolver's socket, bound to that port
      │        └─ anything else: logged (NFLOG), refused
      └─ every address is local, so nothing has anywhere else to go; lo is the only device there is

Each attempt is counted by destination before anything else happens to it: those that are passed on to the
gateway, the resolver or the log, and those beyond the rate of each (``excess``), which are refused here.  So
the kernel's counters are the truth, the three queues only give the details, and a flood of one kind takes
nothing from what is tried beside it.

TCP goes by tproxy, not by redirect: no connection tracking, whose tables a guest could fill, and the
original destination is simply the accepted socket's own address.
"""

import functools
import socket
import struct
from dataclasses import dataclass
from typing import Literal

from sandboxes.egress.connection_attempt import Protocol
from sandboxes.egress.interception import netlink, nftables
from sandboxes.egress.interception.netlink import attribute, be16, be32, text
from sandboxes.egress.interception.nftables import (
    ACCEPT,
    COUNTER,
    DROP,
    GOTO,
    JUMP,
    LIMIT,
    REGISTER,
    WORDS,
    Expression,
    compare,
    constant,
    decision,
    expression,
    masked,
    meta,
    payload,
    refer,
)

GATEWAY_PORT = 1
"""Privileged, so that no guest can bind it or its neighbour on another address; tcpmux, which nobody uses."""
DNS_PORT = 53
LOG_GROUP = 1
SNAPLEN_BYTES = 128
RATES = {"connections": (400, 500), "questions": (200, 300), "packets": (300, 300)}
"""Per second, and at once: what is passed on to the gateway, the resolver, the log.  More would only take
processor time from other sandboxes, and is counted here."""

PREROUTING, LOCAL_OUT = 0, 3
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
PROTOCOLS: dict[int, Protocol] = {TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMPV6: "icmp"}
IPV4, IPV6 = 2, 10
PORT_AT, FLAGS_AT = 2, 13
SYN, ACK = 0x02, 0x10
SETS = {"tried4": (1, IPV4, 4), "tried6": (2, IPV6, 16)}
"""By name: number, family, length of an address.  A key is kind, protocol, address, port, each in whole words."""
MOST_TRIED = 8192
"""Destinations in each set.  Each costs the kernel some 100 bytes and 24 for each processor."""

Kind = Literal["connections", "questions", "packets"]
KINDS: tuple[Kind, ...] = ("connections", "questions", "packets")
EXCESS = 16
"""Added to a kind's number: it was beyond the rate."""


@dataclass(frozen=True, slots=True)
class Destination:
    """What the kernel counts by."""

    kind: Kind
    protocol: Protocol
    address: bytes
    """4 bytes or 16."""
    port: int
    """0 for protocols without ports."""
    excess: bool = False


# -- packets ---------------------------------------------------------------------------------------


def _family(family: int) -> list[Expression]:
    return [meta(15), compare(bytes([family]))]


def _protocol(number: int) -> list[Expression]:
    return [meta(16), compare(bytes([number]))]


def _destination(family: int, prefix: bytes, mask: bytes = b"") -> list[Expression]:
    network_header = payload(1, 16 if family == IPV4 else 24, len(prefix))
    return [*_family(family), network_header, *([masked(mask)] if mask else []), compare(prefix)]


def _port(offset: int, number: int) -> list[Expression]:
    return [payload(2, offset, 2), compare(struct.pack("!H", number))]


def _opening() -> list[Expression]:
    """The first segment of a TCP connection."""
    return [payload(2, FLAGS_AT, 1), masked(bytes([SYN | ACK])), compare(bytes([SYN]))]


def _log(prefix: str) -> Expression:
    return expression("log", be16(1, LOG_GROUP), text(2, prefix), be32(3, SNAPLEN_BYTES), be16(4, 1))


def _refuse() -> Expression:
    """ICMP "administratively prohibited" in the packet's family."""
    return expression("reject", be32(1, 2), attribute(2, b"\x03"))


def _reset() -> Expression:
    return expression("reject", be32(1, 1), attribute(2, b"\0"))


def _socket_of_the_sandbox() -> list[Expression]:
    """There is a socket for the packet, and it is not the gateway's, which is transparent."""
    return [expression("socket", be32(1, 0), be32(2, REGISTER)), compare(b"\0")]


def _to_gateway() -> list[Expression]:
    port = constant(struct.pack("!H", GATEWAY_PORT))
    return [port, expression("tproxy", be32(1, 0), be32(3, REGISTER)), decision(ACCEPT)]


LOOPBACK = (
    _destination(IPV4, b"\x7f"),
    _destination(IPV6, b"\0" * 15 + b"\1"),
)
GROUP_ADDRESSES = (_destination(IPV4, b"\xe0", b"\xe0"), _destination(IPV6, b"\xff"))
"""Multicast, reserved, broadcast: no socket would get these, so they are refused and logged."""


# -- counting --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Way:
    """What becomes of attempts of one kind: a chain for those within the rate, and one for the excess."""

    name: str
    kind: Kind
    passed: tuple[Expression, ...]
    refused: tuple[Expression, ...]
    ports: bool = True

    def take(self, *which: Expression) -> list[list[Expression]]:
        """The rules that send these packets this way."""
        within = refer(LIMIT, self.kind)
        return [[*which, within, decision(GOTO, self.name)], [*which, decision(GOTO, f"{self.name}-excess")]]

    def chains(self) -> dict[str, list[list[Expression]]]:
        """By name.  First the set, then the counter, so that the sum over a set is never behind the counter."""
        number, made = KINDS.index(self.kind), {}
        for excess, end in ((False, self.passed), (True, self.refused)):
            noted = f"{self.name}-excess-noted" if excess else f"{self.name}-noted"
            made[noted] = [_noted(name, number + EXCESS * excess, self.ports) for name in SETS]
            counter = refer(COUNTER, counter_name(self.kind, excess))
            made[noted.removesuffix("-noted")] = [[decision(JUMP, noted)], [counter, *end]]
        return made


def _noted(name: str, number: int, ports: bool) -> list[Expression]:
    _, family, address_bytes = SETS[name]
    port_at = WORDS + 2 + address_bytes // 4
    return [
        *_family(family),
        constant(struct.pack("!I", number), WORDS),
        meta(16, WORDS + 1),
        payload(1, 16 if family == IPV4 else 24, address_bytes, WORDS + 2),
        payload(2, PORT_AT, 2, port_at) if ports else constant(bytes(4), port_at),
        nftables.add_and_count(name, WORDS),
    ]


def counter_name(kind: Kind, excess: bool) -> str:
    return f"{kind}-excess" if excess else kind


def destination(key: bytes) -> Destination:
    """Return what a key of one of the sets stands for."""
    number, protocol = struct.unpack_from("!IB", key)
    (port,) = struct.unpack_from("!H", key, len(key) - 4)
    kind = KINDS[number & (EXCESS - 1)]
    return Destination(kind, PROTOCOLS.get(protocol, "other"), key[8:-4], port, number >= EXCESS)


BEGUN = _Way("begun", "connections", (decision(ACCEPT),), (_reset(),))
ASKED = _Way("asked", "questions", (decision(ACCEPT),), (decision(DROP),))
CLOSED = _Way("closed", "packets", (_log("closed"), decision(ACCEPT)), (decision(ACCEPT),))
GATEWAY = _Way("gateway", "packets", (_log("closed"), _reset()), (_reset(),))
REFUSED = _Way("refused", "packets", (_log("refused"), _refuse()), (_refuse(),))
WITHOUT_PORT = _Way("without-port", "packets", (_log("refused"), _refuse()), (_refuse(),), ports=False)
WAYS = (BEGUN, ASKED, CLOSED, GATEWAY, REFUSED, WITHOUT_PORT)


def _prerouting() -> list[list[Expression]]:
    # Not refused but dropped beyond the rate: a program that asks too much waits, as for any server that is busy.
    rules = ASKED.take(*_protocol(UDP), *_port(PORT_AT, DNS_PORT))
    for loopback in LOOPBACK:
        tcp, udp = [*loopback, *_protocol(TCP)], [*loopback, *_protocol(UDP)]
        rules += [
            [*tcp, *_socket_of_the_sandbox(), decision(ACCEPT)],
            *CLOSED.take(*tcp, *_opening()),
            [*tcp, decision(ACCEPT)],
            [*udp, *_socket_of_the_sandbox(), decision(ACCEPT)],
            *CLOSED.take(*udp),
        ]
    return [*rules, [*_protocol(TCP), *_to_gateway()]]


def _output() -> list[list[Expression]]:
    rules = []
    for loopback in LOOPBACK:
        # Only what was on its way elsewhere may come to the gateway: whoever calls it by its port has no destination.
        to_gateway = [*loopback, *_protocol(TCP), *_port(PORT_AT, GATEWAY_PORT)]
        rules += [*GATEWAY.take(*to_gateway, *_opening()), [*to_gateway, _reset()]]
        rules += [[*loopback, *_protocol(protocol), decision(ACCEPT)] for protocol in (TCP, UDP)]
    rules += BEGUN.take(*_protocol(TCP), *_opening())
    rules += [
        [*_protocol(TCP), decision(ACCEPT)],
        # The kernel's own errors; guests' ping sockets can send echo requests only.
        [*_protocol(ICMP), payload(2, 0, 1), compare(b"\x03"), decision(ACCEPT)],
        [*_protocol(ICMPV6), payload(2, 0, 1), compare(b"\x01"), decision(ACCEPT)],
    ]
    for group in GROUP_ADDRESSES:
        rules += [*REFUSED.take(*group, *_protocol(UDP)), *WITHOUT_PORT.take(*group)]
    return [
        *rules,
        [*_protocol(UDP), *_port(PORT_AT, DNS_PORT), decision(ACCEPT)],
        # The resolver's answers: a guest cannot bind a privileged port.
        [*_protocol(UDP), *_port(0, DNS_PORT), decision(ACCEPT)],
        *REFUSED.take(*_protocol(UDP)),
        *WITHOUT_PORT.take(),
    ]


@functools.cache
def rules_batch() -> bytes:
    """One transaction: all rules or none.  Its last rule is acknowledged, with sequence number 1."""
    chains = {name: rules for way in WAYS for name, rules in way.chains().items()}
    hooked = {"prerouting": _prerouting(), "output": _output()}
    return nftables.batch([
        nftables.table(),
        *(nftables.counter(counter_name(kind, excess)) for kind in KINDS for excess in (False, True)),
        *(nftables.limit(kind, *RATES[kind]) for kind in KINDS),
        *(nftables.counting_set(name, number, 12 + size, MOST_TRIED) for name, (number, _, size) in SETS.items()),
        *(nftables.chain(name) for name in chains),
        nftables.hooked_chain("prerouting", PREROUTING, -150, ACCEPT),
        nftables.hooked_chain("output", LOCAL_OUT, 0, DROP),
        *(nftables.rule(name, rule) for name, rules in (chains | hooked).items() for rule in rules),
    ])  # fmt: skip


# -- the log ---------------------------------------------------------------------------------------


@functools.cache
def log_request() -> bytes:
    """Binds the sender to the log group: heads of packets, one message each."""
    kind, body = 4 << 8 | 1, nftables.generic(0, LOG_GROUP)
    bind = netlink.message(kind, netlink.ACK, body + attribute(1, b"\1"), 1)
    mode = struct.pack("!IBB", SNAPLEN_BYTES, 2, 0)
    ways = attribute(2, mode) + be32(5, 1)
    return bind + netlink.message(kind, netlink.ACK, body + ways, 2)


# -- routes ----------------------------------------------------------------------------------------

NEW_LINK, NEW_ROUTE = 16, 24
LOOPBACK_DEVICE = 1


@functools.cache
def routes() -> bytes:
    """Loopback up, and every address of both families local to it."""
    up = struct.pack("=BxHiII", 0, 0, LOOPBACK_DEVICE, 1, 1)
    sent = netlink.message(NEW_LINK, netlink.ACK, up, 1)
    for number, family in enumerate((socket.AF_INET, socket.AF_INET6), 2):
        # Prefix /0, table main, protocol boot, scope host, type local.
        route = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 254, 3, 254, 2, 0)
        body = route + attribute(4, struct.pack("=I", LOOPBACK_DEVICE))
        sent += netlink.message(NEW_ROUTE, netlink.CREATE | netlink.ACK, body, number)
    return sent
