"""DNS messages as far as a resolver needs them that answers addresses and nothing else.  Pure.

A question is read strictly: one, of class IN, its name in plain labels.  Whatever else a query carries
is not looked at, and nothing of it is ever sent on.
"""

import struct
from dataclasses import dataclass
from typing import Literal

from sandboxes.egress.address import ip

HEADER = struct.Struct("!6H")
QUESTION_END = struct.Struct("!2H")
TYPES = {1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 10: "NULL", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV",
         64: "SVCB", 65: "HTTPS", 255: "ANY"}  # fmt: skip
IN = 1
RESPONSE, RECURSION_DESIRED, RECURSION_AVAILABLE, OPCODE = 0x8000, 0x0100, 0x0080, 0x7800
Code = Literal[0, 1, 2, 3, 5]
FINE, MALFORMED, FAILED, NO_NAME, REFUSED = 0, 1, 2, 3, 5
LONGEST_NAME_BYTES = 255


class MalformedQuestion(ValueError):
    """This is no DNS query that can be answered."""


@dataclass(frozen=True, slots=True)
class Question:
    number: int
    flags: int
    name: bytes
    """Labels joined by dots, as they were sent."""
    query_type: str
    wire: bytes
    """The question as it goes back into the answer."""


def read_question(message: bytes) -> Question:
    """Raises ``MalformedQuestion``."""
    if len(message) < HEADER.size:
        raise MalformedQuestion("too short")
    number, flags, questions, answers, _, _ = HEADER.unpack_from(message)
    if flags & (RESPONSE | OPCODE) or questions != 1 or answers:
        raise MalformedQuestion("not one question")
    at, labels = HEADER.size, []
    while True:
        if at >= len(message):
            raise MalformedQuestion("a cut name")
        size = message[at]
        if size == 0:
            break
        if size > 63:
            raise MalformedQuestion("a compressed or unknown label")
        labels.append(message[at + 1 : at + 1 + size])
        at += 1 + size
        if at - HEADER.size > LONGEST_NAME_BYTES:
            raise MalformedQuestion("an over-long name")
    end = at + 1 + QUESTION_END.size
    if len(message) < end:
        raise MalformedQuestion("a cut question")
    kind, kind_class = QUESTION_END.unpack_from(message, at + 1)
    if kind_class != IN:
        raise MalformedQuestion("not of the internet")
    name = b".".join(labels)
    if any(b"." in label for label in labels):
        raise MalformedQuestion("a dot within a label")
    return Question(number, flags, name, TYPES.get(kind, f"TYPE{kind}"), message[HEADER.size : end])


def answer(question: Question, code: int, addresses: list[str], ttl_s: int) -> bytes:
    flags = RESPONSE | RECURSION_AVAILABLE | (question.flags & RECURSION_DESIRED) | code
    records = b"".join(_record(address, ttl_s) for address in addresses)
    return HEADER.pack(question.number, flags, 1, len(addresses), 0, 0) + question.wire + records


def complaint(message: bytes) -> bytes:
    """To what could not be read, if it is long enough to have a number, and no answer itself."""
    if len(message) < HEADER.size or message[2] & 0x80:
        return b""
    (number,) = struct.unpack_from("!H", message)
    return HEADER.pack(number, RESPONSE | MALFORMED, 0, 0, 0, 0)


def _record(address: str, ttl_s: int) -> bytes:
    packed = ip(address).packed
    return struct.pack("!HHHIH", 0xC000 | HEADER.size, 1 if len(packed) == 4 else 28, IN, ttl_s, len(packed)) + packed
