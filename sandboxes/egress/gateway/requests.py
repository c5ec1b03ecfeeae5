"""Plain HTTP on one connection: every request is looked at, because each may name another host or method.

The body of a request is passed on by its declared length.  A request whose length two servers could
understand in two ways ends the connection: that is how a second request is hidden in a first.
"""

import re
from collections.abc import Awaitable, Callable

from sandboxes.egress.gateway.opening import LONGEST_BYTES, Opening, Unreadable, fields_of, read_opening

CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(;[^\r\n]*)?\r\n")
Allowed = Callable[[Opening], Awaitable[bool]]
"""Asked for every request after the first; it records, and refuses in its own words."""


class Source:
    """What the box sends: ``more`` waits for bytes (none: the end), ``send`` passes bytes on."""

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

    async def pass_line(self) -> bytes:
        """Pass one line on, of bounded length."""
        while (end := self._held.find(b"\n")) < 0:
            if len(self._held) > LONGEST_BYTES or not await self.fill():
                raise Unreadable
        line = self._held[: end + 1]
        await self.pass_on(len(line))
        return line

    async def pass_everything(self) -> None:
        while self._held or await self.fill():
            part, self._held = self._held, b""
            await self.send(part)


async def pass_requests(source: Source, upgraded: Callable[[], Awaitable[bool]], allowed: Allowed) -> None:
    """Pass on the first request, which has been allowed, and what follows as far as it is allowed.

    ``upgraded`` waits for the answer's first line, and tells whether the server changes the protocol.
    Raises ``Unreadable`` where nothing more may be passed on.
    """
    first = True
    while True:
        opening = await _next(source)
        if opening is None:
            return
        if not first and not await allowed(opening):
            return
        if opening.kind != "http" or opening.host == "(unreadable)":
            raise Unreadable
        head = source.held[: opening.length_bytes]
        fields = _fields(head)
        await source.pass_on(len(head))
        if b"upgrade" in fields or opening.method == "CONNECT":
            if not first:
                raise Unreadable  # whose answer comes first could not be told
            if await upgraded():
                await source.pass_everything()
                return
        await _pass_body(source, fields)
        first = False


async def _next(source: Source) -> Opening | None:
    """The next request, or None at a proper end."""
    while True:
        if source.held.strip(b"\r\n"):
            opening = read_opening(source.held)
            if opening is not None:
                return opening
        if not await source.fill():
            if source.held.strip(b"\r\n"):
                raise Unreadable
            return None


def _fields(head: bytes) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for key, value in fields_of(head.lstrip(b"\r\n").partition(b"\n")[2]):
        found.setdefault(key, []).append(value.lower())
    return found


async def _pass_body(source: Source, fields: dict[bytes, list[bytes]]) -> None:
    lengths, codings = fields.get(b"content-length", []), fields.get(b"transfer-encoding", [])
    if codings:
        if lengths or codings != [b"chunked"]:
            raise Unreadable
        await _pass_chunks(source)
    elif lengths:
        if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
            raise Unreadable
        await source.pass_on(int(lengths[0]))


async def _pass_chunks(source: Source) -> None:
    while True:
        match = CHUNK_SIZE.fullmatch(await source.pass_line())
        if match is None:
            raise Unreadable
        size = int(match[1], 16)
        if size == 0:
            break
        await source.pass_on(size)
        if await source.pass_line() != b"\r\n":
            raise Unreadable
    while await source.pass_line() not in (b"\r\n", b"\n"):
        pass  # trailer fields
