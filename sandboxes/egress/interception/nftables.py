"""nftables as netlink bytes: expressions, tables, chains, sets, and what the kernel answers about them.

Which rules a sandbox has stands in ``rules``.  Numbers are the kernel's (``linux/netfilter/nf_tables.h``).
"""

import struct
from collections.abc import Iterable, Iterator

from sandboxes.egress.interception import netlink
from sandboxes.egress.interception.netlink import attribute, be32, be64, nested, text

TABLE = "watched"
SUBSYSTEM = 10 << 8
NEW_TABLE, NEW_CHAIN, NEW_RULE, NEW_SET, NEW_ELEMENTS, GET_ELEMENTS, DELETE_ELEMENTS = 0, 3, 6, 9, 12, 13, 14
NEW_OBJECT, GET_OBJECT = 18, 19
BATCH_BEGIN, BATCH_END = 0x10, 0x11
INET = 1
ACCEPT, DROP = 1, 0
JUMP, GOTO = -3 & 0xFFFFFFFF, -4 & 0xFFFFFFFF
REGISTER, WORDS = 1, 8
"""One register of 16 bytes, and the first of those of 4, which lie in a row."""
COUNTER, LIMIT = 1, 4
EVALUATED = 0x20
"""A set whose elements rules add."""
NEW_PACKETS_LIMIT = 0

Expression = bytes
Message = tuple[int, int, bytes]
"""Type, flags, body."""


# -- expressions -----------------------------------------------------------------------------------


def expression(name: str, *data: bytes) -> Expression:
    return nested(1, text(1, name), nested(2, *data))


def compare(value: bytes) -> Expression:
    return expression("cmp", be32(1, REGISTER), be32(2, 0), nested(3, attribute(1, value)))


def masked(mask: bytes) -> Expression:
    zero = bytes(len(mask))
    return expression(
        "bitwise",
        *(be32(1, REGISTER), be32(2, REGISTER), be32(3, len(mask))),
        *(nested(4, attribute(1, mask)), nested(5, attribute(1, zero))),
    )


def meta(key: int, register: int = REGISTER) -> Expression:
    return expression("meta", be32(1, register), be32(2, key))


def payload(base: int, offset: int, length: int, register: int = REGISTER) -> Expression:
    return expression("payload", be32(1, register), be32(2, base), be32(3, offset), be32(4, length))


def constant(value: bytes, register: int = REGISTER) -> Expression:
    return expression("immediate", be32(1, register), nested(2, attribute(1, value)))


def decision(code: int, chain: str | None = None) -> Expression:
    parts = [be32(1, code), *([] if chain is None else [text(2, chain)])]
    return expression("immediate", be32(1, 0), nested(2, nested(2, *parts)))


def refer(kind: int, name: str) -> Expression:
    """Count by a named counter; or go on only within a named limit."""
    return expression("objref", be32(1, kind), text(2, name))


def add_and_count(name: str, register: int) -> Expression:
    """Add the key that begins in ``register``, and count it.  Where the set is full the rule ends here."""
    counter = nested(7, text(1, "counter"), nested(2))
    return expression("dynset", text(1, name), be32(3, 0), be32(4, register), counter)


# -- what is made ----------------------------------------------------------------------------------


def generic(family: int, resource: int = 0) -> bytes:
    return struct.pack("!BBH", family, 0, resource)


def _made(kind: int, *parts: bytes, flags: int = netlink.CREATE) -> Message:
    return SUBSYSTEM | kind, flags, generic(INET) + b"".join(parts)


def table() -> Message:
    return _made(NEW_TABLE, text(1, TABLE))


def hooked_chain(name: str, hook: int, priority: int, policy: int) -> Message:
    place = nested(4, be32(1, hook), be32(2, priority & 0xFFFFFFFF))
    return _made(NEW_CHAIN, text(1, TABLE), text(3, name), place, be32(5, policy), text(7, "filter"))


def chain(name: str) -> Message:
    return _made(NEW_CHAIN, text(1, TABLE), text(3, name))


def rule(chain: str, expressions: list[Expression]) -> Message:
    parts = (text(1, TABLE), text(2, chain), nested(4, *expressions))
    return _made(NEW_RULE, *parts, flags=netlink.CREATE | netlink.APPEND)


def counter(name: str) -> Message:
    return _made(NEW_OBJECT, text(1, TABLE), text(2, name), be32(3, COUNTER), nested(4, be64(1, 0), be64(2, 0)))


def limit(name: str, rate_per_s: int, burst: int) -> Message:
    data = (be64(1, rate_per_s), be64(2, 1), be32(3, burst), be32(4, NEW_PACKETS_LIMIT), be32(5, 0))
    return _made(NEW_OBJECT, text(1, TABLE), text(2, name), be32(3, LIMIT), nested(4, *data))


def counting_set(name: str, number: int, key_bytes: int, size: int) -> Message:
    return _made(
        NEW_SET, text(1, TABLE), text(2, name), be32(3, EVALUATED), be32(4, 0), be32(5, key_bytes),
        nested(9, be32(1, size)), be32(10, number),
    )  # fmt: skip


def batch(wanted: Iterable[Message]) -> bytes:
    """One transaction: all or nothing.  The last message is acknowledged, with sequence number 1."""
    *most, (kind, flags, body) = wanted
    begin = netlink.message(BATCH_BEGIN, 0, generic(0, 10))
    last = netlink.message(kind, flags | netlink.ACK, body, 1)
    end = netlink.message(BATCH_END, 0, generic(0, 10))
    return begin + b"".join(netlink.message(*message) for message in most) + last + end


# -- what is asked ---------------------------------------------------------------------------------


def counters_request() -> bytes:
    """Asks for all named counters; the answer is read by ``counted``."""
    body = generic(INET) + text(1, TABLE) + be32(3, COUNTER)
    return netlink.message(SUBSYSTEM | GET_OBJECT, netlink.DUMP, body, 2)


def counted(answer: bytes) -> dict[str, int]:
    """Packets by the name of their counter.  Raises ``MalformedMessage``."""
    found = {}
    for kind, _, body in netlink.messages(answer):
        if kind == SUBSYSTEM | NEW_OBJECT:
            fields = netlink.attributes(body[4:])
            data = netlink.attributes(fields.get(4, b""))
            if len(data.get(2, b"")) != 8:
                raise netlink.MalformedMessage("no counter")
            found[fields[2].rstrip(b"\0").decode()] = int.from_bytes(data[2], "big")
    return found


def elements_request(name: str) -> bytes:
    """Asks for the elements of a set; the answer is read by ``elements``."""
    body = generic(INET) + text(1, TABLE) + text(2, name)
    return netlink.message(SUBSYSTEM | GET_ELEMENTS, netlink.DUMP, body, 2)


def elements(answer: bytes) -> Iterator[tuple[bytes, int]]:
    """Keys, and how many packets each has counted.  Raises ``MalformedMessage``."""
    for kind, _, body in netlink.messages(answer):
        if kind == SUBSYSTEM | NEW_ELEMENTS:
            for element in netlink.listed(netlink.attributes(body[4:]).get(3, b"")):
                parts = netlink.attributes(element)
                key = netlink.attributes(parts[1])[1]
                data = netlink.attributes(netlink.attributes(parts[7])[2])
                yield key, int.from_bytes(data[2], "big")


def forget(name: str, keys: list[bytes]) -> bytes:
    """Takes these elements, a thousand at most, out of a set."""
    listed = [nested(1, nested(1, attribute(1, key))) for key in keys]
    body = generic(INET) + text(1, TABLE) + text(2, name) + nested(3, *listed)
    return batch([(SUBSYSTEM | DELETE_ELEMENTS, 0, body)])
