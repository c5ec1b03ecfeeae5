"""What happens to a packet of a watched box: routes and nftables rules of its network namespace.

    guest ── output ──► loopback? ─────────────────────────────► prerouting: a server in the box? ──► it
      │        │                                                   └─ nobody: logged; the kernel refuses
      │        ├─ TCP, within the rate ──► lo ──► prerouting: tproxy ──► gateway's listener
      │        ├─ UDP to port 53 ──► lo ──► resolver's socket, which is bound to that port of every address
      │        └─ anything else: logged (NFLOG), refused; beyond the rate: counted, refused
      └─ every address is local, so nothing has anywhere else to go; lo is the only device there is

TCP goes by tproxy, not by redirect: no connection tracking, whose tables a guest could fill, and the
original destination is simply the accepted socket's own address.
"""

import functools
import socket
import struct

from sandboxes.egress.interception import netlink
from sandboxes.egress.interception.netlink import attribute, be16, be32, be64, nested, text

GATEWAY_PORT = 1
"""Privileged, so that no guest can bind it or its neighbour on another address; tcpmux, which nobody uses."""
DNS_PORT = 53
LOG_GROUP = 1
TABLE = "watched"
CONNECTIONS_PER_S, CONNECTIONS_BURST = 2000, 1000
"""Beyond this the kernel refuses and counts: the listener's queue (4,096) must never overflow, because a
connection that it drops is one that nobody records."""
PACKETS_PER_S, PACKETS_BURST = 500, 500
"""Logged packets; beyond this they are counted, so that the log's own socket never overflows."""
SNAPLEN_BYTES = 128
UNLOGGED_PACKETS, UNASKED_CONNECTIONS = "unlogged-packets", "unasked-connections"
BEGUN_CONNECTIONS = "begun-connections"
"""Those that were let through to the listener; not all of them get as far as being accepted."""

NFT = 10 << 8
NEW_TABLE, NEW_CHAIN, NEW_RULE, NEW_OBJECT, GET_OBJECT = 0, 3, 6, 18, 19
BATCH_BEGIN, BATCH_END = 0x10, 0x11
INET = 1
PREROUTING, LOCAL_OUT = 0, 3
ACCEPT, DROP = 1, 0
REGISTER = 1
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
IPV4, IPV6 = 2, 10
PORT_AT, FLAGS_AT = 2, 13
SYN, ACK = 0x02, 0x10

Expression = bytes


# -- nftables --------------------------------------------------------------------------------------


def _expression(name: str, *data: bytes) -> Expression:
    return nested(1, text(1, name), nested(2, *data))


def _compare(value: bytes, *, unequal: bool = False) -> Expression:
    return _expression("cmp", be32(1, REGISTER), be32(2, int(unequal)), nested(3, attribute(1, value)))


def _masked(mask: bytes) -> Expression:
    zero = bytes(len(mask))
    return _expression(
        "bitwise",
        *(be32(1, REGISTER), be32(2, REGISTER), be32(3, len(mask))),
        *(nested(4, attribute(1, mask)), nested(5, attribute(1, zero))),
    )


def _meta(key: int) -> Expression:
    return _expression("meta", be32(1, REGISTER), be32(2, key))


def _payload(base: int, offset: int, length: int) -> Expression:
    return _expression("payload", be32(1, REGISTER), be32(2, base), be32(3, offset), be32(4, length))


def _family(family: int) -> list[Expression]:
    return [_meta(15), _compare(bytes([family]))]


def _protocol(number: int) -> list[Expression]:
    return [_meta(16), _compare(bytes([number]))]


def _destination(family: int, prefix: bytes, mask: bytes = b"", *, unequal: bool = False) -> list[Expression]:
    network_header = _payload(1, 16 if family == IPV4 else 24, len(prefix))
    return [*_family(family), network_header, *([_masked(mask)] if mask else []), _compare(prefix, unequal=unequal)]


def _port(offset: int, number: int) -> list[Expression]:
    return [_payload(2, offset, 2), _compare(struct.pack("!H", number))]


def _opening() -> list[Expression]:
    """The first segment of a TCP connection."""
    return [_payload(2, FLAGS_AT, 1), _masked(bytes([SYN | ACK])), _compare(bytes([SYN]))]


def _verdict(code: int) -> Expression:
    return _expression("immediate", be32(1, 0), nested(2, nested(2, be32(1, code))))


def _log(prefix: str) -> Expression:
    return _expression("log", be16(1, LOG_GROUP), text(2, prefix), be32(3, SNAPLEN_BYTES), be16(4, 1))


def _beyond(rate_per_s: int, burst: int, *, inverted: bool) -> Expression:
    return _expression("limit", be64(1, rate_per_s), be64(2, 1), be32(3, burst), be32(4, 0), be32(5, int(inverted)))


def _count(name: str) -> Expression:
    return _expression("objref", be32(1, 1), text(2, name))


def _refuse() -> Expression:
    """ICMP "administratively prohibited" in the packet's family."""
    return _expression("reject", be32(1, 2), attribute(2, b"\x03"))


def _reset() -> Expression:
    return _expression("reject", be32(1, 1), attribute(2, b"\0"))


def _socket_of_the_box() -> list[Expression]:
    """There is a socket for the packet, and it is not the gateway's, which is transparent."""
    return [_expression("socket", be32(1, 0), be32(2, REGISTER)), _compare(b"\0")]


def _to_gateway() -> list[Expression]:
    port = _expression("immediate", be32(1, REGISTER), nested(2, attribute(1, struct.pack("!H", GATEWAY_PORT))))
    return [port, _expression("tproxy", be32(1, 0), be32(3, REGISTER)), _verdict(ACCEPT)]


LOOPBACK = (
    _destination(IPV4, b"\x7f"),
    _destination(IPV6, b"\0" * 15 + b"\1"),
)
GROUP_ADDRESSES = (_destination(IPV4, b"\xe0", b"\xe0"), _destination(IPV6, b"\xff"))
"""Multicast, reserved, broadcast: no socket would get these, so they are refused and logged."""


def _prerouting() -> list[list[Expression]]:
    not_the_gateway = [_payload(2, PORT_AT, 2), _compare(struct.pack("!H", GATEWAY_PORT), unequal=True)]
    rules = []
    for loopback in LOOPBACK:
        to_box = [*loopback, *_protocol(TCP), *not_the_gateway]
        rules += [
            [*to_box, *_socket_of_the_box(), _verdict(ACCEPT)],
            [*to_box, *_opening(), _beyond(PACKETS_PER_S, PACKETS_BURST, inverted=True), _count(UNLOGGED_PACKETS),
             _verdict(ACCEPT)],
            [*to_box, *_opening(), _log("closed"), _verdict(ACCEPT)],
            [*to_box, _verdict(ACCEPT)],
            [*loopback, *_protocol(UDP), *_socket_of_the_box(), _verdict(ACCEPT)],
            [*loopback, *_protocol(UDP), _beyond(PACKETS_PER_S, PACKETS_BURST, inverted=True),
             _count(UNLOGGED_PACKETS), _verdict(ACCEPT)],
            [*loopback, *_protocol(UDP), _log("closed"), _verdict(ACCEPT)],
        ]  # fmt: skip
    return [*rules, [*_protocol(TCP), *_to_gateway()]]


def _output() -> list[list[Expression]]:
    logged = [
        [_beyond(PACKETS_PER_S, PACKETS_BURST, inverted=True), _count(UNLOGGED_PACKETS), _refuse()],
        [_log("refused"), _refuse()],
    ]
    return [
        *([*loopback, *_protocol(protocol), _verdict(ACCEPT)] for loopback in LOOPBACK for protocol in (TCP, UDP)),
        [*_protocol(TCP), *_opening(), _beyond(CONNECTIONS_PER_S, CONNECTIONS_BURST, inverted=True),
         _count(UNASKED_CONNECTIONS), _reset()],
        [*_protocol(TCP), *_opening(), _count(BEGUN_CONNECTIONS), _verdict(ACCEPT)],
        [*_protocol(TCP), _verdict(ACCEPT)],
        # The kernel's own errors; guests' ping sockets can send echo requests only.
        [*_protocol(ICMP), _payload(2, 0, 1), _compare(b"\x03"), _verdict(ACCEPT)],
        [*_protocol(ICMPV6), _payload(2, 0, 1), _compare(b"\x01"), _verdict(ACCEPT)],
        *([*group, *rule] for group in GROUP_ADDRESSES for rule in logged),
        [*_protocol(UDP), *_port(PORT_AT, DNS_PORT), _verdict(ACCEPT)],
        # The resolver's answers: a guest cannot bind a privileged port.
        [*_protocol(UDP), *_port(0, DNS_PORT), _verdict(ACCEPT)],
        *logged,
    ]  # fmt: skip


def _generic(family: int, resource: int = 0) -> bytes:
    return struct.pack("!BBH", family, 0, resource)


def _table(kind: int, *parts: bytes, flags: int = netlink.CREATE) -> tuple[int, int, bytes]:
    return NFT | kind, flags, _generic(INET) + b"".join(parts)


def _chain(name: str, hook: int, priority: int, policy: int) -> tuple[int, int, bytes]:
    place = nested(4, be32(1, hook), be32(2, priority & 0xFFFFFFFF))
    return _table(NEW_CHAIN, text(1, TABLE), text(3, name), place, be32(5, policy), text(7, "filter"))


def _rule(chain: str, expressions: list[Expression]) -> tuple[int, int, bytes]:
    parts = (text(1, TABLE), text(2, chain), nested(4, *expressions))
    return _table(NEW_RULE, *parts, flags=netlink.CREATE | netlink.APPEND)


def _counter(name: str) -> tuple[int, int, bytes]:
    return _table(NEW_OBJECT, text(1, TABLE), text(2, name), be32(3, 1), nested(4, be64(1, 0), be64(2, 0)))


@functools.cache
def rules_batch() -> bytes:
    """One transaction: all rules or none.  Its last rule is acknowledged, with sequence number 1."""
    begin = netlink.message(BATCH_BEGIN, 0, _generic(0, 10))
    wanted = [
        _table(NEW_TABLE, text(1, TABLE)),
        *(_counter(name) for name in (UNLOGGED_PACKETS, UNASKED_CONNECTIONS, BEGUN_CONNECTIONS)),
        _chain("prerouting", PREROUTING, -150, ACCEPT),
        _chain("output", LOCAL_OUT, 0, DROP),
        *(_rule("prerouting", rule) for rule in _prerouting()),
        *(_rule("output", rule) for rule in _output()),
    ]
    *most, (kind, flags, body) = wanted
    last = netlink.message(kind, flags | netlink.ACK, body, 1)
    return (
        begin + b"".join(netlink.message(*one) for one in most) + last + netlink.message(BATCH_END, 0, _generic(0, 10))
    )


def count_request(name: str) -> bytes:
    """Asks for a counter; the answer is read by ``counted``."""
    return netlink.message(NFT | GET_OBJECT, 0, _generic(INET) + text(1, TABLE) + text(2, name) + be32(3, 1), 2)


def counted(answer: bytes) -> int:
    """Packets that a counter saw.  Raises ``MalformedMessage``."""
    for kind, _, body in netlink.messages(answer):
        if kind == NFT | NEW_OBJECT:
            data = netlink.attributes(netlink.attributes(body[4:]).get(4, b""))
            if len(data.get(2, b"")) == 8:
                return int.from_bytes(data[2], "big")
    raise netlink.MalformedMessage("no counter")


# -- the log ---------------------------------------------------------------------------------------


@functools.cache
def log_request() -> bytes:
    """Binds the sender to the log group: heads of packets, one message each."""
    kind, body = 4 << 8 | 1, _generic(0, LOG_GROUP)
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
