"""Plain HTTP on one connection: every request is looked at, because each may name another host or method.

The body of a request is passed on by its declared length.  A stream whose next request cannot be read is
ended, not passed on: where two servers could understand a length in two ways, where a body has none that
all servers would skip, and where it begins as a request would, a second request is hidden in the first.
"""

import re
from collections.abc import Awaitable, Callable

from sandboxes.egress.gateway.first_response import SWITCHING_PROTOCOLS
from sandboxes.egress.gateway.opening import (
    BLANK,
    FIRST_WORD,
    LONGEST_BYTES,
    LONGEST_LINE_BYTES,
    REQUEST_LINE,
    WORD,
    Opening,
    Unreadable,
    fields_of,
    read_opening,
)

WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
"""A body of these means nothing (RFC 9110, 9.3), and servers that do not skip it read it as the next request."""
SIMPLE_REQUEST = re.compile(rb"GET[ \t]+\S+[ \t]*\r?\Z", re.IGNORECASE)
"""HTTP/0.9."""
PROSE = re.compile(WORD + rb"[ \t]+\S+[ \t]+(?!HTTP/)(?:\S{5}|\S{1,4}\s)", re.IGNORECASE)
"""The form of a line that begins with a word and is no request, of which the third one is the version."""
CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(;[^\r\n]*)?\r\n")
Allowed = Callable[[Opening], Awaitable[bool]]
"""Asked for every request after the first; it records, and refuses in its own words."""
Answered = Callable[[], Awaitable[int | None]]
"""Waits for the first answer, and gives its status; None if it cannot be read."""


Fields = dict[bytes, list[bytes]]


class Source:
    """What the sandbox sends: ``more`` waits for bytes (none: the end), ``send`` passes bytes on."""

    def __init__(
        self, first: bytes, more: Callable[[], Awaitable[bytes]], send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._held = first
        self._more = more
        self.send = send

    async def fill(self) -> bool:
        """Wait for more; False at the end, where half of something may be left."""
        more = await self._more()
        self._held += more
        return bool(more)

    @property
    def held(self) -> bytes:
        return self._held

    async def pass_on(self, size: int) -> None:
        """Pass exactly ``size`` bytes on.  Raises ``Unreadable`` if the end comes before."""
        while size > 0:
            if not self._held and not await self.fill():
                raise Unreadable
            part, self._held = self._held[:size], self._held[size:]
            await self.send(part)
            size -= len(part)

    async def line(self) -> bytes:
        """The next line, of bounded length; it is not passed on yet."""
        while (end := self._held.find(b"\n")) < 0:
            if len(self._held) > LONGEST_BYTES or not await self.fill():
                raise Unreadable
        return self._held[: end + 1]

    async def pass_everything(self) -> None:
        while self._held or await self.fill():
            part, self._held = self._held, b""
            await self.send(part)


async def pass_requests(source: Source, answered: Answered, allowed: Allowed) -> None:
    """Pass on the first request, which has been allowed, and what follows as far as it is allowed.

    Raises ``Unreadable`` where nothing more may be passed on.
    """
    first = True
    while True:
        opening = await _next(source)
        if opening is None:
            return
        if not first and not await allowed(opening):
            return
        if opening.kind != "http" or not opening.readable:
            raise Unreadable
        head = source.held[: opening.length_bytes]
        fields = _fields(head)
        _refuse_hidden(opening, head, fields)
        changes = opening.upgrade or _verb(opening) == "CONNECT"
        if changes and not first:
            raise Unreadable  # whose answer comes first could not be told
        await source.pass_on(len(head))
        if changes and _accepted(opening, await answered()):
            await source.pass_everything()
            return
        await _pass_body(source, fields)
        first = False


def _verb(opening: Opening) -> str:
    return (opening.method or "").upper()


def _accepted(opening: Opening, status: int | None) -> bool:
    """Only 200 accepts a CONNECT, and only 101 any other change of protocol."""
    return status == (200 if _verb(opening) == "CONNECT" else SWITCHING_PROTOCOLS)


def _refuse_hidden(opening: Opening, head: bytes, fields: Fields) -> None:
    """Raises ``Unreadable`` for a body that some servers skip and others read."""
    has_body = b"transfer-encoding" in fields or fields.get(b"content-length", [b"0"]) != [b"0"]
    if not has_body:
        return
    if opening.upgrade or _verb(opening) in WITHOUT_BODY:
        raise Unreadable
    line = head.lstrip(b"\r\n").partition(b"\n")[0]
    request = REQUEST_LINE.match(line)
    if request is None or (request[3] == b"0" and b"transfer-encoding" in fields):
        raise Unreadable  # HTTP/1.0 has no chunks


async def _next(source: Source) -> Opening | None:
    """The next request, or None at a proper end."""
    while True:
        if source.held.strip(b"\r\n"):
            opening = read_opening(source.held)
            if opening is not None:
                return opening
        if len(source.held) > LONGEST_BYTES:
            raise Unreadable
        if not await source.fill():
            if source.held.strip(b"\r\n"):
                raise Unreadable
            return None


def _fields(head: bytes) -> Fields:
    found: Fields = {}
    for key, value in fields_of(head.lstrip(b"\r\n").partition(b"\n")[2]):
        found.setdefault(key, []).append(value.lower())
    return found


async def _pass_body(source: Source, fields: Fields) -> None:
    lengths, codings = fields.get(b"content-length", []), fields.get(b"transfer-encoding", [])
    if codings:
        if lengths or codings != [b"chunked"]:
            raise Unreadable
        await _pass_chunks(source)
    elif lengths:
        if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
            raise Unreadable
        await _refuse_request_in(source, int(lengths[0]))
        await source.pass_on(int(lengths[0]))


async def _refuse_request_in(source: Source, size: int) -> None:
    """Raises ``Unreadable`` for a body of ``size`` bytes that begins as a request does.

    A server that does not read the body would take it for the next one.  Nothing of it is passed on before.
    """
    while True:
        begin = source.held[: min(size, LONGEST_LINE_BYTES)]
        visible = begin.lstrip(BLANK)
        line, ended, _ = visible.partition(b"\n")
        if visible and (not FIRST_WORD.match(visible[:64]) or PROSE.match(visible)):
            return
        if ended or len(begin) == min(size, LONGEST_LINE_BYTES):
            break
        if not await source.fill():
            raise Unreadable
    if REQUEST_LINE.match(line) or SIMPLE_REQUEST.match(line) or (len(begin) == LONGEST_LINE_BYTES and not ended):
        raise Unreadable


async def _pass_chunks(source: Source) -> None:
    while True:
        line = await source.line()
        match = CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise Unreadable
        size = int(match[1], 16)
        await source.pass_on(len(line) + size)
        if size == 0:
            break
        if await source.line() != b"\r\n":
            raise Unreadable
        await source.pass_on(2)
    await _pass_trailers(source)


async def _pass_trailers(source: Source) -> None:
    """Fields only: a server that knows no trailers reads what follows the last chunk as the next request."""
    line = b""
    while line not in (b"\r\n", b"\n"):
        line = await source.line()
        fields_of(line)
        await source.pass_on(len(line))
