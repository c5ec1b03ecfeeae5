"""A stream whose next request cannot be read is ended, not passed: ways of hiding a second request in a first."""

import asyncio
from collections import deque
from itertools import product

import pytest

from sandboxes.egress.gateway.first_response import FirstResponse
from sandboxes.egress.gateway.opening import RequestSearch, Unreadable, read_opening
from sandboxes.egress.gateway.requests import Source, pass_requests
from tests.sandboxes.watched_scene import Internet, allowing, scene

SITE = "files.example.org"
HIDDEN = b"DELETE /hidden HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: files.example.org\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


def post(body: bytes, fields: bytes = b"", version: bytes = b"1.1") -> bytes:
    return (
        b"POST / HTTP/" + version + b"\r\nHost: files.example.org\r\n" + fields
        + b"Content-Length: %d\r\n\r\n" % len(body) + body
    )  # fmt: skip


def with_body(method: bytes, body: bytes, fields: bytes = b"") -> bytes:
    head = method + b" / HTTP/1.1\r\nHost: files.example.org\r\n" + fields
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(method: bytes, body: bytes, version: bytes = b"1.1") -> bytes:
    head = method + b" / HTTP/" + version + b"\r\nHost: files.example.org\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"


class Forwarded:
    """What reached the server, and which requests were asked about."""

    def __init__(self) -> None:
        self.passed = b""
        self.asked: list[str | None] = []
        self.ended = False

    @property
    def hidden_passed(self) -> bool:
        return b"/hidden" in self.passed and "DELETE" not in self.asked


async def played(stream: bytes, size: int, status: int | None = None) -> Forwarded:
    """The stream in pieces of ``size``, after its first request was allowed."""
    reported, left = Forwarded(), [stream[at : at + size] for at in range(0, len(stream), size)]

    async def more() -> bytes:
        return left.pop(0) if left else b""

    async def send(piece: bytes) -> None:
        reported.passed += piece

    async def answered() -> int | None:
        return status

    async def allowed(opening) -> bool:
        reported.asked.append(opening.method)
        return opening.readable

    try:
        await pass_requests(Source(b"", more, send), answered, allowed)
    except Unreadable:
        reported.ended = True
    return reported


HIDING = {
    **{f"body of {method.decode()}": with_body(method, HIDDEN)
       for method in (b"GET", b"get", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE")},
    **{f"chunked body of {method.decode()}": chunked(method, HIDDEN) for method in (b"GET", b"HEAD", b"DELETE")},
    **{f"{name} before the next": post(b"a=1") + blank + HIDDEN
       for name, blank in {"space": b" ", "tab": b"\t", "line of blanks": b" \r\n", "form feed": b"\f",
                           "vertical tab": b"\v\r\n", "many": b"\r\n \r\n\t\r\n"}.items()},
    "body that is a request": post(HIDDEN),
    "body that begins with line ends": post(b"\r\n\r\n" + HIDDEN),
    "body that begins with blanks": post(b" \t" + HIDDEN),
    "body of nothing but blanks": post(b" " * 9000 + HIDDEN),
    "body that is a request of 0.9": post(b"GET /hidden\r\n"),
    "body whose request ends after it": post(b"DELETE /hid") + b"den HTTP/1.1\r\nHost: evil.example.net\r\n\r\n",
    "body that is a long request line": post(b"DELETE /hidden?" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n"),
    "upgrade with a body": with_body(b"POST", HIDDEN, UPGRADE),
    "chunks of 1.0": chunked(b"POST", HIDDEN, b"1.0"),
    "version that nobody knows": b"GET / HTTP/1.9\r\nHost: files.example.org\r\nContent-Length: 4\r\n\r\n1234" + HIDDEN,
    "two lengths": with_body(b"POST", HIDDEN, b"Content-Length: 0\r\n"),
    "length with a sign": GET.replace(b"GET", b"POST") + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    "length and chunks": with_body(b"POST", b"0\r\n\r\n" + HIDDEN, b"Transfer-Encoding: chunked\r\n"),
    "trailer that is a request": chunked(b"POST", b"a=1")[:-2] + HIDDEN,
    "trailer that is a request of 0.9": chunked(b"POST", b"a=1")[:-2] + b"DELETE /hidden\r\n\r\n",
    "trailer that is folded": chunked(b"POST", b"a=1")[:-2] + b"A: b\r\n " + HIDDEN,
    "trailer with a lone CR": chunked(b"POST", b"a=1")[:-2] + b"A: b\r\r\n" + HIDDEN,
    "chunk size that is a request": chunked(b"POST", b"a=1")[:-5] + b"DELETE /hidden\r\n" + HIDDEN,
    "other coding": GET.replace(b"GET", b"POST") + b"Transfer-Encoding: xchunked\r\n\r\n" + HIDDEN,
    "upgrade in the second": post(b"a=1") + GET + UPGRADE + b"\r\n" + HIDDEN,
    "connect in the second": post(b"a=1") + b"CONNECT files.example.org:80 HTTP/1.1\r\n\r\n" + HIDDEN,
}  # fmt: skip


@pytest.mark.parametrize("way", HIDING)
async def test_a_hidden_request_never_passes_unread(way: str):
    for size, status in product((1, 7, 10_000), (200, 101, 400, None)):
        reported = await played(HIDING[way], size, status)
        assert not reported.hidden_passed, (size, status, reported.passed, reported.asked)


@pytest.mark.parametrize("fields", [UPGRADE, b"Upgrade: websocket\r\n", b"upgrade: h2c\r\nHTTP2-Settings: x\r\n"])
async def test_an_upgrade_that_is_not_accepted_by_101_is_read_on(fields: bytes):
    for size, status in product((1, 10_000), (100, 103, 200, 204, 301, 400, 426, None)):
        reported = await played(GET + fields + b"\r\n" + HIDDEN, size, status)
        assert reported.asked == ["DELETE"], (size, status)


@pytest.mark.parametrize(("status", "read_on"), [(200, False), (101, True), (204, True), (403, True), (None, True)])
async def test_only_200_accepts_a_connect(status: int | None, read_on: bool):
    reported = await played(b"CONNECT files.example.org:80 HTTP/1.1\r\n\r\n" + HIDDEN, 10_000, status)
    assert reported.asked == (["DELETE"] if read_on else [])


async def test_what_101_accepts_passes_as_it_comes():
    reported = await played(GET + UPGRADE + b"\r\n\x82\x84\0\0\0\0ping", 5, 101)
    assert reported.passed.endswith(b"ping")
    assert not reported.ended


HONEST = {
    "json": post(b'{"query": "GET /x HTTP/1.1"}'),
    "form": post(b"name=value&other=GET"),
    "text of two lines": post(b"dear all\nGET / HTTP/1.1 is a request\n"),
    "one word": post(b"hello"),
    "words": post(b"hello and goodbye"),
    "prose in one line": post(b"dear all, this is no request " * 1000),
    "binary": post(bytes(range(256)) * 50),
    "empty": post(b""),
    "large": post(b"x" * 100_000),
    "blank then text": post(b"\r\n\r\nhello"),
    "get of length 0": with_body(b"GET", b""),
    "chunked post": chunked(b"POST", b"hello"),
    "chunked post with a trailer": chunked(b"POST", b"hello")[:-2] + b"Checksum: 7\r\n\r\n",
    "put": with_body(b"PUT", b"hello upstream\n"),
}


@pytest.mark.parametrize("kind", HONEST)
async def test_honest_requests_pass_whole_one_after_the_other(kind: str):
    for size in (1 if len(HONEST[kind]) < 20_000 else 100, 4096, 200_000):
        reported = await played(HONEST[kind] + GET + b"\r\n", size)
        assert (reported.passed, reported.asked, reported.ended) == (HONEST[kind] + GET + b"\r\n", ["GET"], False), size


@pytest.mark.parametrize(
    "data",
    [b" ", b"\t\r\n", b"\r\n \r\n", b" GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\f", b"\r\n\tGET / HTTP/1.1\r\n\r\n"],
)
def test_blanks_before_the_first_request_are_not_another_protocol(data: bytes):
    assert not read_opening(data, complete=True).readable


@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize(
    "junk", [b"\0\1\2\r\n", b"NOOP\r\n", b"x" * 500 + b"\n", b"hello there\n \t", b"\0", b"\xef\xbb\xbf", b"@"]
)
def test_a_request_behind_junk_is_found(junk: bytes, pieces: int):
    stream, search = junk + HIDDEN, RequestSearch()
    assert read_opening(junk).kind == "unknown"
    with pytest.raises(Unreadable):
        deque(map(search.feed, (stream[at : at + pieces] for at in range(0, len(stream), pieces))), maxlen=0)


def test_other_protocols_are_no_requests():
    search = RequestSearch()
    for piece in (b"SSH-2.0-x\r\n", b"USER a\r\nPASS GET / HTTP/1.1\r\n", bytes(range(256)) * 400, HIDDEN):
        search.feed(piece)  # what is beyond the beginning is not searched


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", 101),
        (b"HTTP/1.1 200 OK\r\nX: HTTP/1.1 101\r\n\r\n", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", 200),
        (b"HTTP/1.1 103 Early Hints\r\nLink: HTTP/1.1 101 x\r\n\r\nHTTP/1.0 404\r\n", 404),
        (b"HTTP/1.1 1010 x\r\n", None),
        (b"HTTP/2 101\r\n", None),
        (b"101 Switching\r\n", None),
        (b"HTTP/1.1 101", None),
        (b"x" * 200_000, None),
        (b"HTTP/1.1 100 x\r\n" + b"y" * 200_000, None),
    ],
)
def test_the_first_answer_that_counts_is_read(answer: bytes, status: int | None, size: int):
    first = FirstResponse()
    for at in range(0, min(len(answer), 70_000 if size == 1 else 10**9), size):
        first.feed(answer[at : at + size])
    assert first.status == status


@pytest.fixture
async def internet():
    internet = Internet({SITE: ["203.0.113.80"]})
    yield internet
    await internet.close()


def server(got: list[bytes], answer: bytes):
    """Answers whatever comes, and keeps it: a server that might understand anything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                got.append(piece)
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    return serve


async def _sent(internet, pieces: list[bytes], *, answer=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", **rule):
    """What the server got of the pieces, sent one after the other, and all records."""
    got: list[bytes] = []
    await internet.serve("203.0.113.80", 80, server(got, answer))
    async with scene(allowing(SITE, ports=(80,), **rule), internet.upstream) as staged:
        await staged.sandbox.run_python(f"""
import socket, time
made = socket.create_connection(("{SITE}", 80))
made.settimeout(10)
try:
    for piece in {pieces!r}:
        made.sendall(piece)
        made.recv(65536)
    made.shutdown(socket.SHUT_WR)
    while made.recv(65536):
        pass
except OSError:
    pass
""")
        await staged.until(lambda: any(record.ended for record in staged.records if record.attempt.protocol == "tcp"))
    return b"".join(got), [record for record in staged.records if record.attempt.protocol == "tcp"]


async def test_an_upgrade_answered_by_200_opens_nothing(internet):
    got, records = await _sent(internet, [GET + UPGRADE + b"\r\n", HIDDEN])
    assert got == GET + UPGRADE + b"\r\n"
    assert [(record.attempt.method, record.decision.allowed) for record in records if record.phase == "attempt"] == [
        ("GET", True), ("DELETE", False),
    ]  # fmt: skip


async def test_under_a_rule_of_methods_an_upgrade_is_refused_and_recorded(internet):
    got, records = await _sent(
        internet, [GET + UPGRADE + b"\r\n", HIDDEN], answer=b"HTTP/1.1 101 x\r\n\r\n", methods=("GET",)
    )
    assert got == b""
    assert [(record.decision.allowed, record.decision.reason) for record in records] == [(False, "upgrade-not-allowed")]


async def test_a_body_of_get_ends_the_stream_and_is_recorded(internet):
    got, records = await _sent(internet, [with_body(b"GET", HIDDEN)])
    assert b"hidden" not in got
    assert records[-1].decision.reason == "unreadable"
    assert records[-1].ended == "denied" or records[-1].ended == "cut"


@pytest.mark.parametrize("blank", [b" ", b" \r\n", b"\t\n"])
async def test_blanks_sent_alone_hide_nothing(internet, blank: bytes):
    got, records = await _sent(internet, [blank, HIDDEN])
    assert got == b""
    assert records[-1].decision.reason in ("unreadable", "name-mismatch")
    assert not records[-1].decision.allowed
