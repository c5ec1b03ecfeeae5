"""The resolver: names that an allow rule names, addresses only, nothing else."""

import struct

import pytest

from sandboxes.egress.gateway.pins import MOST_ADDRESSES, PIN_S, Pins
from sandboxes.egress.gateway.questions import MalformedQuestion, answer, complaint, read_question
from tests.sandboxes.watched_scene import Internet, allowing, scene

SITE = "files.example.org"


def query(*labels: bytes, kind: int = 1, flags: int = 0x100, questions: int = 1, kind_class: int = 1) -> bytes:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack("!6H", 77, flags, questions, 0, 0, 0) + name + struct.pack("!2H", kind, kind_class)


async def test_an_allowed_name_resolves_by_udp_and_tcp_and_another_does_not():
    internet = Internet({SITE: ["203.0.113.80"]})
    async with scene(allowing(SITE), internet.upstream) as staged:
        result = await staged.attack(f"""
            attempt(lambda: udp("203.0.113.53", 53, query("{SITE}"))[-4:])
            attempt(lambda: udp("2001:db8::53", 53, query("FILES.Example.ORG"))[-4:])
            message = query("{SITE}")
            def by_tcp():
                made = socket.create_connection(("198.51.100.53", 53))
                made.sendall(struct.pack("!H", len(message)) + message)
                return made.recv(100)[-4:]
            attempt(by_tcp)
            attempt(lambda: udp("203.0.113.53", 53, query("other.example.org"))[3] & 15)
        """)
    assert result.stdout.count(repr(b"\xcb\x00qP")) == 3, result
    assert "<lambda> 3" in result.stdout
    assert internet.looked_up == [SITE] * 3
    assert staged.recorded == staged.tried == 4
    assert [record.attempt.address for record in staged.attempts] == [
        "203.0.113.53", "2001:db8::53", "198.51.100.53", "203.0.113.53",
    ]  # fmt: skip


async def test_an_address_that_was_not_resolved_is_denied_though_the_name_is_claimed():
    internet = Internet({SITE: ["203.0.113.80"]})
    async with scene(allowing(SITE), internet.upstream) as staged:
        await staged.attack(f"""
            attempt(tcp, "203.0.113.80", 80, b"GET / HTTP/1.1\\r\\nHost: {SITE}\\r\\n\\r\\n")
        """)
    assert staged.attempts[0].decision.reason == "not-resolved"
    assert internet.dialled == []


async def test_a_name_that_has_no_address_of_a_family_exists_all_the_same():
    internet = Internet({SITE: ["203.0.113.80"]})
    async with scene(allowing(SITE), internet.upstream) as staged:
        result = await staged.sandbox.run_python(f"import socket; socket.getaddrinfo('{SITE}', 80)[0][4]")
    assert result.stdout == "('203.0.113.80', 80)\n"


async def test_a_resolver_that_cannot_ask_says_so_and_the_attempt_is_recorded():
    async def out_of_order(name, family):
        raise OSError("no name server")

    internet = Internet()
    internet._look_up = out_of_order
    async with scene(allowing(SITE), internet.upstream) as staged:
        result = await staged.attack(f'attempt(lambda: udp("203.0.113.53", 53, query("{SITE}"))[3] & 15)')
    assert "<lambda> 2" in result.stdout
    assert staged.recorded == 1


@pytest.mark.parametrize(
    "message",
    [
        b"",
        query(b"a")[:11],
        query(b"a")[:-1],
        query(b"a", flags=0x8000),
        query(b"a", flags=0x2800),
        query(b"a", questions=2),
        query(b"a", questions=0),
        query(b"a", kind_class=3),
        query(b"a.b", b"org"),
        query(*[b"a" * 63] * 4, b"bc"),
        struct.pack("!6H", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",
    ],
)
def test_what_is_not_one_plain_question_is_malformed(message):
    with pytest.raises(MalformedQuestion):
        read_question(message)


def test_an_answer_repeats_number_and_question_and_has_addresses_only():
    question = read_question(query(b"Files", b"example", b"org"))
    sent = answer(question, 0, ["203.0.113.80"], 30)
    number, flags, questions, answers, _, _ = struct.unpack_from("!6H", sent)
    assert (number, flags, questions, answers) == (77, 0x8180, 1, 1)
    assert sent[12:].startswith(b"\5Files\7example\3org\0\0\1\0\1\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4\xcb\0\x71\x50")


def test_an_answer_is_never_answered():
    assert complaint(query(b"a", flags=0x8000)) == b""
    assert complaint(b"short") == b""
    assert complaint(query(b"a", questions=2))[3] & 15 == 1


def test_a_pin_is_forgotten_after_its_time_and_when_there_are_too_many(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("sandboxes.egress.gateway.pins.time.monotonic", lambda: now)
    pins = Pins()
    pins.pin(SITE, "203.0.113.80")
    assert pins.resolved("203.0.113.80") == {"203.0.113.80": {SITE}}
    now += PIN_S
    assert pins.names("203.0.113.80") == set()
    for number in range(MOST_ADDRESSES + 1):
        pins.pin(SITE, f"198.51.{number // 256}.{number % 256}")
    assert pins.names("198.51.0.0") == set()
    assert pins.names("198.51.0.1") == {SITE}
