"""The HTTP that clients of the real APIs speak, and what each RFC grants them; and what is answered to what is none."""

import asyncio
import gzip
import json
from random import Random
from typing import NamedTuple

import pytest

from engine.rollout.agents.connection import FAULTS, MOST_HEADER_BYTES, Patience
from tests.engine.rollout.agents.endpoints import KEY, answer_on, endpoint, request, scripted
from tests.engine.rollout.agents.test_capture import qwen3

CHAT, MESSAGES, RESPONSES, MODELS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/models"
HELLO = {"role": "user", "content": "hello"}
OF_PATH = {
    CHAT: {"model": "m", "messages": [HELLO]},
    MESSAGES: {"model": "m", "max_tokens": 300, "messages": [HELLO]},
    RESPONSES: {"model": "m", "input": "hello"},
}


class HttpAnswer(NamedTuple):
    """One of those on a connection, as it stood on it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self):
        return json.loads(self.body)["error"]


def answers_in(received, *, bodies=True):
    """Answers with a length, one behind the other; without ``bodies`` they are those of HEAD."""
    answers = []
    while received:
        head, received = received.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"]) if bodies else 0
        answers.append(HttpAnswer(int(first.split()[1]), headers, received[:length]))
        received = received[length:]
    return answers


async def received_for(*pieces, seconds=2.0):
    """All bytes that come back for these, until the connection is closed or nothing more comes; and the model."""
    async with endpoint(scripted(qwen3()), turn_tokens=400) as open_to:
        reader, writer = await open_to.connected()
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01 if len(pieces) > 1 else 0)
        received = b""
        try:
            while piece := await asyncio.wait_for(reader.read(2**16), 0.2 if received else seconds):
                received += piece
        except TimeoutError:
            pass
        writer.close()
        return received, open_to.model


async def answers_for(*pieces):
    received, model = await received_for(*pieces)
    return answers_in(received), model


def in_form_of(path, document):
    """Whether an error has all that the clients of this address take from one."""
    problem = document["error"]
    if path.startswith(MESSAGES):
        return document["type"] == "error" and problem.keys() == {"type", "message"}
    return problem.keys() == {"message", "type", "param", "code"}


# ---- addresses and methods ----


@pytest.mark.parametrize("path", OF_PATH)
@pytest.mark.parametrize(
    "form", ["{}?beta=true", "{}?next=http://elsewhere/v1", "http://model{}", "HTTP://model:80{}?a=b"]
)
async def test_an_address_may_be_absolute_and_have_a_query(path, form):
    """RFC 9112, 3.2.2: a server must accept the absolute form; a client behind a proxy sends it."""
    async with endpoint(scripted(qwen3())) as open_to:
        assert (await open_to.post(form.format(path), OF_PATH[path]))[0] == 200


@pytest.mark.parametrize(
    "target",
    ["*", "/", "//v1/messages", "http://model", "/x?http://model/v1/messages", f"{CHAT}/", f"{CHAT}x",
     f"{RESPONSES}/resp_0", f"{MODELS}/policy", f"ftp://model{CHAT}", f"{MESSAGES}/", f"{MESSAGES}/count_tokens",
     f"{MESSAGES}/batches?a=b", f"http://model{MESSAGES}/count_tokens"],
)  # fmt: skip
async def test_an_address_that_is_not_there_is_refused_in_the_form_of_what_stands_above_it(target):
    async with endpoint(scripted(qwen3())) as open_to:
        status, document = await open_to.post(target, OF_PATH[MESSAGES])
        assert (status, document["error"]["type"], dict(open_to.model.refused)) == (
            404,
            "not_found_error",
            {"route": 1},
        )
    assert in_form_of(target.removeprefix("http://model"), document)
    assert all(path in document["error"]["message"] for path in (*OF_PATH, MODELS))


@pytest.mark.parametrize("path", [*OF_PATH, MODELS])
@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "get", "x" * 99])
async def test_another_method_is_refused_with_the_one_that_is_taken(path, method):
    raw = request(path, b"", method=method)
    taken = "GET" if path == MODELS else "POST"
    [answer], model = await answers_for(raw)
    assert (answer.status, answer.headers["allow"], dict(model.refused)) == (405, taken.lower(), {"route": 1})
    assert in_form_of(path, json.loads(answer.body))
    assert f"{path} takes {taken} alone" in answer.problem["message"]


@pytest.mark.parametrize(
    ("path", "status"), [("/", 404), (MODELS, 405), (CHAT, 405), (f"{MESSAGES}/count_tokens", 404)]
)
async def test_a_head_request_is_answered_without_a_body_and_the_connection_goes_on(path, status):
    """Command-line agents ask so whether somebody is there."""
    received, model = await received_for(request(path, b"", method="HEAD") * 2 + request("/", b"", method="GET"))
    *heads, last = received.split(b"\r\n\r\n", 2)
    for head in answers_in(b"\r\n\r\n".join([*heads, b""]), bodies=False):
        assert (head.status, "connection" in head.headers) == (status, False)
        assert head.headers.get("allow") == ({MODELS: "get", CHAT: "post"}.get(path))
    assert len(heads) == 2
    [answer] = answers_in(last)
    assert answer.status == 404
    assert dict(model.refused) == {"route": 3}


async def test_a_head_request_of_nobody_who_is_known_learns_no_address():
    answers = [await received_for(request(path, b"", key="no", method="HEAD")) for path in ("/", CHAT)]
    assert answers[0][0] == answers[1][0]
    assert [dict(model.refused) for _, model in answers] == [{"key": 1}] * 2


async def test_a_head_request_with_a_body_ends_the_connection():
    received, model = await received_for(request(CHAT, b"xy", method="HEAD") + request(CHAT, OF_PATH[CHAT]))
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.endswith(b"\r\n\r\n")
    assert (dict(model.refused), model.calls) == ({"route": 1}, [])


async def test_a_head_request_whose_own_head_is_too_long_is_answered_without_a_body():
    received, model = await received_for(request(CHAT, b"", method="HEAD", **{"x-long": "y" * 17_000}))
    assert received.startswith(b"HTTP/1.1 431")
    assert received.endswith(b"\r\n\r\n")
    assert dict(model.refused) == {"malformed": 1}


# ---- what is no HTTP ----


def changed(path, old, new):
    return request(path, OF_PATH[path]).replace(old, new)


NO_HTTP = {
    "no host": (lambda path: changed(path, b"host: model\r\n", b""), 400, "host"),
    "two hosts": (lambda path: changed(path, b"host: model", b"host: model\r\nhost: other"), 400, "several host"),
    "a negative length": (lambda path: changed(path, b"content-length: ", b"content-length: -"), 400, "no number"),
    "an endless length": (lambda path: changed(path, b"content-length: ", b"content-length: " + b"9" * 30), 400,
                          "no number"),
    "two lengths": (lambda path: changed(path, b"host: m", b"content-length: 3\r\nhost: m"), 400, "contradict"),
    "a space before the colon": (lambda path: changed(path, b"authorization:", b"authorization :"), 400, "no header"),
    "no colon": (lambda path: changed(path, b"authorization: Bearer ", b"authorization "), 400, "no header"),
    "a line that goes on": (lambda path: changed(path, b"host:", b" host:"), 400, "begins with a space"),
    "a NUL": (lambda path: changed(path, b"Bearer ", b"Bearer \0"), 400, "no header"),
    "no version": (lambda path: changed(path, b" HTTP/1.1", b""), 400, "first line"),
    "packed chunks": (lambda path: changed(path, b"content-length", b"transfer-encoding: gzip, chunked\r\nx"), 501,
                      "chunked alone"),
    "chunked twice": (lambda path: changed(path, b"host", b"transfer-encoding: chunked\r\n" * 2 + b"host"), 501,
                      "several transfer-encoding"),
    "no chunk": (lambda path: changed(path, b"content-length: ", b"transfer-encoding: chunked\r\nx: "), 400, "chunk"),
    "a long head": (lambda path: request(path, OF_PATH[path], **{"x-long": "y" * 17_000}), 431, "16384 bytes"),
    "an endless head": (lambda path: request(path, b"", **{"x-long": "y" * 40_000})[:-4], 431, "16384 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("path", OF_PATH)
@pytest.mark.parametrize("case", NO_HTTP)
async def test_what_is_no_http_is_refused_in_the_dialects_form_with_what_is_wrong(path, case):
    made, status, words = NO_HTTP[case]
    [answer], model = await answers_for(made(path) + request(path, OF_PATH[path]))
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert (dict(model.refused), model.calls) == ({"malformed": 1}, [])
    assert in_form_of(path, json.loads(answer.body))
    assert answer.problem["type"] == "invalid_request_error"
    assert path == MESSAGES or answer.problem["code"] == "malformed"
    assert words in answer.problem["message"]
    assert KEY not in answer.body.decode()


@pytest.mark.parametrize(
    "raw",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n" * 5, b"\r\r\n", b" \r\n\r\n", b"hello\r\n\r\n",
     b"GET /\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n", KEY.encode() + b"\r\n\r\n", b"\xff \xfe\xff \xfd\r\n\r\n",
     b"x" * 20_000],
)  # fmt: skip
async def test_what_has_no_address_is_refused_in_openais_form(raw):
    [answer], model = await answers_for(raw)
    assert answer.status == (431 if len(raw) > MOST_HEADER_BYTES else 400)
    assert in_form_of(CHAT, json.loads(answer.body))
    assert "the request cannot be read: " in answer.problem["message"]
    assert "none of HTTP/1.1" not in answer.problem["message"]
    assert KEY not in answer.body.decode()
    assert dict(model.refused) == {"malformed": 1}


async def test_whatever_is_made_of_a_request_is_no_fault_of_the_servers():
    random = Random(0)
    scraps = [b"\r\n", b"\n", b"\r", b" ", b":", b"\0", b"\xff", b"HEAD", b"CONNECT", b"HTTP/1.0", b"http://", b"?",
              b"0", b"\r\ntransfer-encoding: chunked", b"\r\nupgrade: h2c", b"\r\nexpect: 100-continue"]  # fmt: skip
    patience = Patience(request=0.05, answer=5)
    async with endpoint(scripted(qwen3()), patience=patience, calls=10**6) as open_to:
        for _ in range(400):
            raw = bytearray(request(random.choice([*OF_PATH, MODELS, "/"]), OF_PATH[CHAT]))
            for _ in range(random.randrange(1, 4)):
                place = random.randrange(len(raw))
                raw[place : place + random.choice((0, 1, 4))] = random.choice(scraps)
            reader, writer = await open_to.connected()
            writer.write(bytes(raw))
            assert KEY.encode() not in await asyncio.wait_for(reader.read(), 5)
            writer.close()
        assert "failed" not in open_to.model.refused
        assert open_to.model.refused.keys() >= {"malformed", "route", "key"}
        assert open_to.model.calls


async def test_a_request_that_is_cut_off_is_answered_with_that():
    async with endpoint(scripted(qwen3())) as open_to:
        for cut in (8, 90, 200):
            reader, writer = await open_to.connected()
            writer.write(request(MESSAGES, OF_PATH[MESSAGES] | {"user": "x" * 200})[:cut])
            writer.write_eof()
            status, document = await answer_on(reader)
            assert status == 400
            assert FAULTS["peer "] in document["error"]["message"]
            assert in_form_of(MESSAGES if cut > 8 else "", document)
            writer.close()
        assert dict(open_to.model.refused) == {"malformed": 3}


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 431)])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_head_may_have_16_kib_and_no_byte_more(more, status, whole):
    bare = request(CHAT, OF_PATH[CHAT], **{"x-long": ""})
    room = MOST_HEADER_BYTES - bare.index(b"\r\n\r\n") - 4
    raw = request(CHAT, OF_PATH[CHAT], **{"x-long": "y" * (room + more)})
    assert raw.index(b"\r\n\r\n") + 4 == MOST_HEADER_BYTES + more
    pieces = [raw] if whole else [raw[:100], raw[100:16_000], raw[16_000:]]
    [answer], _ = await answers_for(*pieces)
    assert answer.status == status


# ---- empty lines ----


@pytest.mark.parametrize("empty", [b"\r\n", b"\n", b"\r\n" * 4, b"\n\r\n"])
async def test_a_few_empty_lines_before_a_request_are_passed_over(empty):
    """RFC 9112, 2.2: a server should ignore at least one; old clients send it behind a body."""
    raw = empty + request(CHAT, OF_PATH[CHAT])
    answers, model = await answers_for(raw + raw)
    assert [answer.status for answer in answers] == [200, 200]
    [answer], _ = await answers_for(*(raw[place : place + 1] for place in range(6)), raw[6:])
    assert answer.status == 200
    assert dict(model.refused) == {}


async def test_empty_lines_without_end_are_refused():
    async with endpoint(scripted(qwen3())) as open_to:
        reader, writer = await open_to.connected()
        for _ in range(5):
            writer.write(b"\r\n")
            await asyncio.sleep(0.01)
        status, document = await answer_on(reader)
        assert (status, document["error"]["code"]) == (400, "malformed")
        assert "empty lines" in document["error"]["message"]
        writer.close()


async def test_an_empty_line_and_no_request_count_as_nothing():
    async with endpoint(scripted(qwen3())) as open_to:
        reader, writer = await open_to.connected()
        writer.write(b"\r\n")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert dict(open_to.model.refused) == {}
        writer.close()


# ---- keys and other headers ----


@pytest.mark.parametrize("scheme", ["bearer", "Bearer", "BEARER", "bEARER "])
async def test_the_scheme_of_a_key_may_be_in_letters_of_any_case(scheme):
    """RFC 9110, 11.1: the name of a scheme is case-insensitive."""
    async with endpoint(scripted(qwen3())) as open_to:
        for key, status in ((KEY, 200), (KEY.upper(), 401), (f"bearer {KEY}", 401), (f"x-{KEY}", 401), ("", 401)):
            assert (await open_to.post(CHAT, OF_PATH[CHAT], key=None, authorization=f"{scheme} {key}"))[0] == status


async def test_headers_of_real_clients_change_nothing():
    fields = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "interleaved-thinking-2025-05-14,context-1m-2025-08-07",
        "x-stainless-lang": "python",
        "openai-organization": "org",
        "accept-encoding": "gzip, deflate, br, zstd",
        "content-type": "application/json; charset=utf-8",
        "content-encoding": "identity",
        "x-api-key": KEY,
    }
    async with endpoint(scripted(qwen3())) as open_to:
        for path, document in OF_PATH.items():
            assert (await open_to.post(path, document, **fields))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json"])
async def test_a_body_that_is_json_is_read_whatever_it_is_called(kind):
    async with endpoint(scripted(qwen3())) as open_to:
        assert (await open_to.post(CHAT, OF_PATH[CHAT], **{"content-type": kind}))[0] == 200


# ---- bodies ----


@pytest.mark.parametrize("path", OF_PATH)
@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "GZIP", "identity, gzip", "é" * 300])
async def test_a_body_that_is_packed_is_refused_by_how_it_is_packed(path, encoding):
    """415 by RFC 9110, 8.4; that "the body is no JSON" helps nobody who sent JSON and let a library pack it."""
    packed = gzip.compress(json.dumps(OF_PATH[path]).encode())
    [answer], model = await answers_for(request(path, packed, **{"content-encoding": encoding}))
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
    assert (dict(model.refused), in_form_of(path, json.loads(answer.body))) == ({"malformed": 1}, True)
    shown = encoding if encoding.isascii() else "\\xc3\\xa9" * 50
    assert f"content-encoding = {shown}: " in answer.problem["message"]
    assert "send it unpacked" in answer.problem["message"]


async def test_a_packed_body_is_not_asked_for():
    head = request(CHAT, b"x" * 99, **{"content-encoding": "gzip", "expect": "100-continue"}).split(b"\r\n\r\n")[0]
    [answer], _ = await answers_for(head + b"\r\n\r\n")
    assert answer.status == 415


@pytest.mark.parametrize("extension", [b"", b";a=b"])
async def test_a_body_may_come_in_chunks(extension):
    body = json.dumps(OF_PATH[CHAT]).encode()
    head = request(CHAT, b"", **{"transfer-encoding": "chunked"}).replace(b"content-length: 0\r\n", b"")
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    answers, _ = await answers_for((head + chunks + b"0\r\nx-trailer: 1\r\n\r\n") * 2)
    assert [answer.status for answer in answers] == [200, 200]


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"5\r\nhello--", b"1" * 40_000])
async def test_a_chunk_that_cannot_be_read_ends_the_connection_in_the_dialects_form(chunk):
    head = request(MESSAGES, b"", **{"transfer-encoding": "chunked"}).replace(b"content-length: 0\r\n", b"")
    [answer], model = await answers_for(head + chunk)
    assert answer.status == (431 if len(chunk) > MOST_HEADER_BYTES else 400)
    assert in_form_of(MESSAGES, json.loads(answer.body))
    assert "chunk" in answer.problem["message"]
    assert dict(model.refused) == {"malformed": 1}


async def test_a_caller_that_waits_for_leave_to_send_its_body_gets_it():
    raw = request(CHAT, OF_PATH[CHAT], expect="100-continue")
    head, body = raw.split(b"\r\n\r\n", 1)
    async with endpoint(scripted(qwen3())) as open_to:
        reader, writer = await open_to.connected()
        writer.write(head + b"\r\n\r\n")
        assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.write(body)
        assert (await answer_on(reader))[0] == 200
        writer.close()


async def test_a_caller_without_the_key_is_not_asked_for_its_body():
    head = request(CHAT, OF_PATH[CHAT], key="no", expect="100-continue").split(b"\r\n\r\n", 1)[0]
    [answer], model = await answers_for(head + b"\r\n\r\n")
    assert answer.status == 401
    assert dict(model.refused) == {"key": 1}


@pytest.mark.parametrize("behind", [b" garbage", b"{}", b"\x00"])
async def test_garbage_behind_a_body_is_refused(behind):
    body = json.dumps(OF_PATH[CHAT]).encode() + behind
    async with endpoint(scripted(qwen3())) as open_to:
        status, document = await open_to.post(CHAT, body)
        assert (status, document["error"]["code"]) == (400, "malformed")
        assert (await open_to.post(CHAT, OF_PATH[CHAT]))[0] == 200


# ---- connections ----


@pytest.mark.parametrize("begun", [b"", b"POST /v1/mess", request(CHAT, OF_PATH[CHAT])[:-3]])
async def test_a_connection_that_waits_too_long_is_closed_in_silence_and_counted_as_nothing(begun):
    """A tool may take longer than the server waits: the client connects again."""
    async with endpoint(scripted(qwen3()), patience=Patience(request=0.2, answer=5)) as open_to:
        reader, writer = await open_to.connected()
        writer.write(request(CHAT, OF_PATH[CHAT]) + begun)
        assert (await answer_on(reader))[0] == 200
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert dict(open_to.model.refused) == {}
        writer.close()


async def test_a_caller_that_closes_its_half_counts_as_hung_up():
    policy, begun = scripted(qwen3()), asyncio.Event()

    async def waits(wanted):
        begun.set()
        await asyncio.Event().wait()

    policy.generate = waits
    async with endpoint(policy) as open_to:
        reader, writer = await open_to.connected()
        writer.write(request(CHAT, OF_PATH[CHAT]))
        await begun.wait()
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert (open_to.model.unfinished, open_to.model.calls, dict(open_to.model.refused)) == (1, [], {})
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_http_1_0_gets_its_answer_unchunked_and_the_connection_ends(stream):
    raw = request(CHAT, OF_PATH[CHAT] | {"stream": stream}).replace(b"HTTP/1.1", b"HTTP/1.0")
    received, _ = await received_for(raw)
    head, body = received.split(b"\r\n\r\n", 1)
    assert b" 200 " in head
    assert b"chunked" not in head.lower()
    assert body.endswith(b"data: [DONE]\n\n") if stream else json.loads(body)["choices"]


async def test_requests_of_three_dialects_behind_one_another_are_answered_in_their_forms():
    raw = b"".join(request(path, document) for path, document in OF_PATH.items())
    for pieces in ([raw], [raw[start : start + 50] for start in range(0, len(raw), 50)]):
        answers, _ = await answers_for(*pieces)
        documents = [json.loads(answer.body) for answer in answers]
        assert [document.get("object", document.get("type")) for document in documents] == [
            "chat.completion", "message", "response",
        ]  # fmt: skip


async def test_a_connection_goes_on_behind_a_request_that_was_refused():
    async with endpoint(scripted(qwen3())) as open_to:
        reader, writer = await open_to.connected()
        for body, status in ((b"{", 400), (OF_PATH[CHAT], 200), ({"messages": []}, 400), (OF_PATH[CHAT], 200)):
            writer.write(request(CHAT, body))
            assert (await answer_on(reader))[0] == status
        for path, method, status in (("/", "GET", 404), (CHAT, "OPTIONS", 405), (MODELS, "GET", 200)):
            writer.write(request(path, b"", method=method).replace(b"content-length: 0\r\n", b""))
            assert (await answer_on(reader))[0] == status
        writer.close()


async def test_a_request_for_another_protocol_is_answered_by_this_one():
    fields = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
    [answer], _ = await answers_for(request(CHAT, OF_PATH[CHAT], **fields))
    assert answer.status == 200
