"""What the first bytes of a connection speak of: a TLS name, an HTTP host and method, or nothing known.

Pure.  The bytes are hostile, and there may be too few of them: ``read_opening`` then says so, and the
caller waits for more or gives up.  What looks like TLS or HTTP but cannot be read gets the name
``UNREADABLE``, which no rule can name: a program that hides its destination reaches nothing by name.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["tls", "http", "unknown"]

UNREADABLE = "(unreadable)"
LONGEST_BYTES = 32768
"""More than any honest client hello or request head has."""
LONGEST_LINE_BYTES = 8192
HANDSHAKE, CLIENT_HELLO, SERVER_NAME = 22, 1, 0
WORD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}"
REQUEST_LINE = re.compile(rb"(" + WORD + rb")[ \t]+(\S+)[ \t]+HTTP/1\.([01])[ \t]*\r?\Z", re.IGNORECASE)
VERSION = re.compile(rb"HTTP/\d", re.IGNORECASE)
VERSION_IN_LINE = re.compile(rb"[^\n]*?HTTP/\d", re.IGNORECASE)
FIRST_WORD = re.compile(WORD + rb"([ \t]|$)")
TARGET = re.compile(rb"/|\*\Z|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""RFC 9112, 3.2, but for CONNECT.  Servers differ in where they look for the host in all else."""
AUTHORITY = re.compile(rb"(?:[a-z][a-z0-9+.-]*:)?//([^/?#]*)", re.IGNORECASE)
HOST_AND_PORT = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{0,5})?")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)\r?")
"""RFC 9112, 5.  Servers differ in what they make of all else: folded lines, a space before the colon, a lone CR.

Nothing here takes blanks twice in a row: hostile bytes would then be tried in all ways (32,000 blanks, for weeks).
"""
HEAD_END = re.compile(rb"\r?\n\r?\n")
REQUEST_INSIDE = re.compile(rb"[\r\n][ \t\v\f]*" + WORD + rb"[ \t]+[^\s]{1,8192}[ \t]+HTTP/1", re.IGNORECASE)
BLANK = b" \t\r\n\v\f"
"""What some servers skip before a request; line ends alone may stand there (RFC 9112, 2.2)."""


@dataclass(frozen=True, slots=True)
class Opening:
    kind: Kind
    sni: str | None = None
    host: str | None = None
    method: str | None = None
    upgrade: bool = False
    """The request asks for another protocol on this connection."""
    length_bytes: int = 0
    """The length of an HTTP head: where its body begins."""

    @property
    def readable(self) -> bool:
        return UNREADABLE not in (self.sni, self.host)


class Unreadable(Exception):
    """It is TLS or HTTP, and not one that can be read."""


class TooShort(Exception):
    """More bytes are needed to tell."""


def read_opening(data: bytes, *, complete: bool = False) -> Opening | None:
    """Return what the bytes say; None if more are needed.  ``complete``: there will be no more, so say something."""
    if not data:
        return Opening("unknown") if complete else None
    kind: Kind = "tls" if data[0] == HANDSHAKE else "http"
    try:
        if kind == "tls":
            return Opening("tls", sni=_server_name(_client_hello(data)))
        return _request(data)
    except TooShort:
        if not complete and len(data) < LONGEST_BYTES:
            return None
    except (Unreadable, UnicodeDecodeError):
        pass  # what cannot be read is said below
    return Opening(kind, sni=UNREADABLE) if kind == "tls" else Opening(kind, host=UNREADABLE)


# -- TLS -------------------------------------------------------------------------------------------


class _Bytes:
    """Reads fields from the front; a field that is not there entirely is ``error``."""

    def __init__(self, data: bytes, error: type[Exception]) -> None:
        self._data, self._at, self._error = data, 0, error

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise self._error
        self._at += size
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_size: int) -> "_Bytes":
        return _Bytes(self.take(self.number(length_size)), Unreadable)


def _client_hello(data: bytes) -> _Bytes:
    """The body of the client hello, which may lie in pieces over several records."""
    records, handshake = _Bytes(data, TooShort), b""
    while True:
        kind, major, _ = records.take(3)
        if kind != HANDSHAKE or major != 3:
            raise Unreadable
        size = records.number(2)
        if not 0 < size <= 16384 + 256:
            raise Unreadable
        handshake += records.take(size)
        if handshake[0] != CLIENT_HELLO:
            raise Unreadable
        if len(handshake) >= 4:
            length = int.from_bytes(handshake[1:4], "big")
            if length > LONGEST_BYTES:
                raise Unreadable
            if len(handshake) >= 4 + length:
                return _Bytes(handshake[4 : 4 + length], Unreadable)


def _server_name(hello: _Bytes) -> str | None:
    """The one server name of the hello, or None if it has none.  Two are unreadable."""
    hello.take(2 + 32)
    hello.vector(1)
    hello.vector(2)
    hello.vector(1)
    if not hello:
        return None
    extensions, names = hello.vector(2), []
    while extensions:
        kind = extensions.number(2)
        body = extensions.vector(2)
        if kind == SERVER_NAME:
            entries = body.vector(2)
            while entries:
                entry = entries.number(1), entries.vector(2)
                names.append(entry)
    if not names:
        return None
    if len(names) > 1 or names[0][0] != 0:
        raise Unreadable
    name = names[0][1]
    return _name(name.take(len(name._data)))


def _name(raw: bytes) -> str:
    text = raw.decode("ascii")
    if not text or len(text) > 253 or not all(letter.isalnum() or letter in "-._" for letter in text):
        raise Unreadable
    return text


# -- HTTP ------------------------------------------------------------------------------------------


def _request(data: bytes) -> Opening:
    """The head of a request; ``unknown`` if the first line is none."""
    visible = data.lstrip(BLANK)
    if not visible:
        raise TooShort  # a request may follow, and no blank is passed on before it
    start = data.lstrip(b"\r\n")
    line, ended, _ = start.partition(b"\n")
    if start != visible and FIRST_WORD.match(visible[:64]):
        raise Unreadable  # servers differ in whether they see a request here
    if not FIRST_WORD.match(start[:64]):
        if VERSION.search(line[:LONGEST_LINE_BYTES]):
            raise Unreadable
        return Opening("unknown")
    if not ended:
        if len(line) > LONGEST_LINE_BYTES:
            raise Unreadable
        raise TooShort
    request = REQUEST_LINE.match(line)
    if request is None:
        if VERSION.search(line):
            raise Unreadable  # servers differ in what they take for a request
        return Opening("unknown")
    end = HEAD_END.search(start)
    if end is None:
        raise TooShort
    method = request[1].decode("ascii")
    fields = fields_of(start[len(line) + 1 : end.start()])
    return Opening(
        "http",
        host=_host(request[1], request[2], fields),
        method=method,
        upgrade=any(key == b"upgrade" for key, _ in fields),
        length_bytes=len(data) - len(start) + end.end(),
    )


def _host(method: bytes, target: bytes, fields: list[tuple[bytes, bytes]]) -> str | None:
    """The one host that the request speaks of, in target and Host field; two different ones are unreadable."""
    named = set()
    if method.upper() == b"CONNECT":
        named.add(target)
    elif TARGET.match(target) is None:
        raise Unreadable
    elif (absolute := AUTHORITY.match(target)) is not None:
        named.add(absolute[1].rpartition(b"@")[2])
    if method.upper() == b"PRI":
        raise Unreadable  # HTTP/2 without TLS: its hosts are compressed
    for key, value in fields:
        if key == b"host":
            named.add(value)
    hosts = {_without_default_port(value.decode("ascii").lower()) for value in named}
    if len(hosts) > 1 or any(len(host) > 255 or not HOST_AND_PORT.fullmatch(host) for host in hosts):
        raise Unreadable
    return hosts.pop() if hosts else None


def fields_of(lines: bytes) -> list[tuple[bytes, bytes]]:
    """Names in lower case, and values.  Raises ``Unreadable``."""
    found = []
    for line in lines.split(b"\n"):
        if line.rstrip(b"\r"):
            if (field := FIELD.fullmatch(line)) is None:
                raise Unreadable
            found.append((field[1].lower(), field[2].strip(b" \t")))
    return found


def _without_default_port(host: str) -> str:
    return host.removesuffix(":80").removesuffix(":443") if not host.endswith("]") else host


class RequestSearch:
    """Looks for a request in the beginning of a stream that did not begin with one.  ``feed`` raises ``Unreadable``.

    Some servers skip lines that they do not understand.  A request would pass them unread.
    """

    def __init__(self) -> None:
        self._begin = bytearray()
        self._line_at = 0
        """Where the line break before the last line stands: no request can begin before it any more."""

    def feed(self, piece: bytes | memoryview) -> None:
        """Before the piece is passed on."""
        room = LONGEST_BYTES - len(self._begin)
        if room <= 0:
            return
        before = len(self._begin)
        self._begin += piece[:room]
        if self._line_at == 0 and VERSION_IN_LINE.match(self._begin, max(0, before - len("HTTP/"))):
            raise Unreadable  # in one piece it would have been no other protocol either
        if REQUEST_INSIDE.match(self._begin, self._line_at) or REQUEST_INSIDE.search(self._begin, before):
            raise Unreadable
        self._line_at = max(self._begin.rfind(b"\n", before), self._begin.rfind(b"\r", before), self._line_at)
