"""What the gateway forwards, and how it says no: real programs in sandboxes against real servers of ours."""

import asyncio
import base64
import datetime
import hashlib
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.gateway.connection import Connection
from sandboxes.egress.gateway.opening import UNREADABLE, read_opening
from sandboxes.egress.gateway.upstream import Upstream
from sandboxes.egress.policy import EgressPolicy, Quotas
from sandboxes.egress.rule import Rule
from tests.sandboxes.watched_scene import Internet, allowing, scene

SITE = "files.example.org"


@pytest.fixture
async def internet():
    internet = Internet({SITE: ["203.0.113.80", "2001:db8::80"]})
    yield internet
    await internet.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder, key = tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SITE)]), datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SITE)]), False).sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


async def web(reader, writer):
    """Answers each request with its method, path and body."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-len")), 0
            )
            body = b" ".join(head.split(b" ")[:2]) + b" " + await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def test_allowed_http_is_forwarded_counted_and_recorded_with_the_label(internet):
    await internet.serve("203.0.113.80", 80, web)
    async with scene(allowing(SITE), internet.upstream) as staged:
        staged.sandbox.label("turn 3, call 1")
        result = await staged.sandbox.run_python(f"""
import http.client
site = http.client.HTTPConnection("{SITE}")
for number in range(3):
    site.request("POST", f"/{{number}}", b"x" * 1000)
    print(site.getresponse().read()[:10])
site.close()
""")
        # A sandbox that is closed at once cuts what the gateway has not yet seen the end of.
        await staged.until(lambda: any(record.ended for record in staged.records))
    assert result.stdout.split("\n")[:3] == ["b'POST /0 xx'", "b'POST /1 xx'", "b'POST /2 xx'"], result
    requests = [record for record in staged.attempts if record.attempt.protocol == "tcp"]
    assert [record.attempt.method for record in requests] == ["POST"] * 3
    assert {record.attempt.host for record in requests} == {SITE}
    traffic = [record for record in staged.records if record.phase == "traffic"]
    assert traffic[-1].ended == "closed"
    assert 3000 < traffic[-1].bytes_up < 4000
    assert traffic[-1].opening_down.startswith(b"HTTP/1.1 200")
    assert {record.label for record in staged.records} == {"turn 3, call 1"}
    assert internet.dialled == [("203.0.113.80", 80)]


async def test_tls_is_forwarded_end_to_end_and_refused_with_an_alert(internet, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    await internet.serve("203.0.113.80", 443, web, ssl=context)
    async with scene(allowing(SITE), internet.upstream) as staged:
        await staged.sandbox.write_file("ca.pem", (certificate / "cert.pem").read_bytes())
        result = await staged.sandbox.run_python(f"""
import socket, ssl, urllib.request, urllib.error
context = ssl.create_default_context(cafile="ca.pem")
print(urllib.request.urlopen("https://{SITE}/a", context=context).read())
made = socket.create_connection(("{SITE}", 443))
try:
    ssl._create_unverified_context().wrap_socket(made, server_hostname="evil.example.net")
except ssl.SSLError as error:
    print(error.reason)
""")
    assert result.stdout == "b'GET /a '\nTLSV1_ALERT_ACCESS_DENIED\n", result
    assert [record.attempt.sni for record in staged.attempts if record.attempt.protocol == "tcp"] == [
        SITE, "evil.example.net",
    ]  # fmt: skip
    assert staged.attempts[-1].decision.reason == "name-mismatch"


async def test_a_websocket_is_forwarded_after_its_upgrade(internet):
    async def sockets(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(line[19:] for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: "))
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")  # fmt: skip
        writer.write(b"\x82\x04" + (await reader.readexactly(10))[6:])
        await reader.read()
        writer.close()

    await internet.serve("203.0.113.80", 80, sockets)
    async with scene(allowing(SITE), internet.upstream) as staged:
        result = await staged.sandbox.run_python(f"""
import socket
made = socket.create_connection(("{SITE}", 80))
made.sendall(b"GET /ws HTTP/1.1\\r\\nHost: {SITE}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
             b"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n")
head = made.recv(4096)
made.sendall(b"\\x82\\x84\\0\\0\\0\\0ping")
print(head[9:12], made.recv(100)[2:])
""")
    assert result.stdout == "b'101' b'ping'\n", result


@pytest.mark.parametrize("pause_s", [0, 1.5])
async def test_a_server_that_speaks_first_has_time_and_so_has_who_answers_it(internet, pause_s):
    async def mail(reader, writer):
        await asyncio.sleep(pause_s)
        writer.write(b"220 ready\r\n")
        writer.write(b"250 " + await reader.readline())
        writer.close()

    await internet.serve("203.0.113.80", 25, mail)
    async with scene(allowing(SITE, ports=(25,)), internet.upstream) as staged:
        result = await staged.sandbox.run_python(f"""
import socket, time
made = socket.create_connection(("{SITE}", 25))
print(made.recv(100)); time.sleep({pause_s}); made.sendall(b"EHLO sandbox\\r\\n"); print(made.recv(100))
""")
    assert result.stdout == "b'220 ready\\r\\n'\nb'250 EHLO sandbox\\r\\n'\n", result


async def test_what_comes_in_the_moment_in_which_a_silence_ends_is_not_lost():
    """The loop stands still until the time is over, and by then the sandbox has sent something."""
    silence_s = 0.05
    sandbox, own = socket.socketpair()
    own.setblocking(False)
    gateway = SimpleNamespace(ledger=SimpleNamespace(label=""))
    attempt = ConnectionAttempt(sandbox="b", sequence=1, at=1.0, protocol="tcp", address="203.0.113.80", port=25)
    connection = Connection(gateway, own, attempt)

    def stand_still():
        sandbox.sendall(b"EHLO sandbox\r\n")
        time.sleep(2 * silence_s)

    with sandbox, own:
        asyncio.get_running_loop().call_later(silence_s / 5, stand_still)
        await connection._read_opening(silence_s, silence_s)
        await connection._read_opening(silence_s, silence_s)
        assert connection._first == b"EHLO sandbox\r\n"


async def test_ipv6_is_forwarded_to_its_own_address(internet):
    await internet.serve("2001:db8::80", 80, web)
    async with scene(allowing(SITE), internet.upstream) as staged:
        result = await staged.sandbox.run_python(f"""
import socket
info = socket.getaddrinfo("{SITE}", 80, socket.AF_INET6, socket.SOCK_STREAM)[0]
made = socket.socket(info[0]); made.connect(info[4])
made.sendall(b"GET /six HTTP/1.1\\r\\nHost: {SITE}\\r\\n\\r\\n"); print(made.recv(100)[-9:])
""")
    assert result.stdout == "b'GET /six '\n"
    assert internet.dialled == [("2001:db8::80", 80)]


async def test_a_denied_request_is_told_policy_and_rule():
    policy = EgressPolicy(
        name="lab", rules=(Rule(name="no-uploads", action="deny", cidrs=("203.0.113.0/24",), ports=(80,)),)
    )
    async with scene(policy) as staged:
        result = await staged.sandbox.run_python("""
import urllib.request, urllib.error
try:
    urllib.request.urlopen("http://203.0.113.5/x")
except urllib.error.HTTPError as error:
    print(error.code, error.headers["X-Egress-Denied"])
""")
    assert result.stdout == "403 policy 'lab' (rule 'no-uploads') denied tcp 203.0.113.5:80: a rule denies it\n"


async def test_a_site_that_does_not_answer_is_told_apart_from_one_that_is_denied(internet):
    async with scene(allowing(SITE), internet.upstream) as staged:
        result = await staged.sandbox.run_python(f"""
import urllib.request, urllib.error
try:
    urllib.request.urlopen("http://{SITE}/x")
except urllib.error.HTTPError as error:
    print(error.code, error.headers["X-Egress-Failed"])
""")
    assert result.stdout == "502 tcp 203.0.113.80:80: Connection refused\n"
    assert staged.records[-1].ended == "unreachable"


async def test_a_connection_that_is_cut_while_it_is_dialled_says_so():
    async def never(address, port):
        await asyncio.Event().wait()

    internet = Internet({SITE: ["203.0.113.80"]})
    upstream = Upstream(never, internet.upstream.look_up)
    async with scene(allowing(SITE), upstream) as staged:
        await staged.sandbox.exec(["/usr/bin/python3", "-c", f"""
import socket
made = socket.create_connection(("{SITE}", 80)); made.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
"""])  # fmt: skip
        await staged.until(lambda: any(record.attempt.protocol == "tcp" for record in staged.records))
        await staged.sandbox.freeze("enough")
        reported = [(record.phase, record.ended) for record in staged.records if record.attempt.protocol == "tcp"]
    assert reported == [("attempt", None), ("traffic", "cut")]


@pytest.mark.parametrize(
    ("quotas", "reason"),
    [
        ({"connection_up_bytes": 100_000}, "quota-bytes-up"),
        ({"sandbox_up_bytes": 100_000}, "quota-bytes-up"),
        ({"connection_down_bytes": 100_000}, "quota-bytes-down"),
        ({"sandbox_down_bytes": 100_000}, "quota-bytes-down"),
    ],
)
async def test_a_quota_of_bytes_cuts_the_connection(internet, quotas, reason):
    received = 0

    async def mirror(reader, writer):
        nonlocal received
        try:
            while piece := await reader.read(65536):
                received += len(piece)
                writer.write(piece)
        except ConnectionError:
            pass
        writer.close()

    await internet.serve("203.0.113.80", 9, mirror)
    policy = allowing(SITE, ports=(9,)).model_copy(update={"quotas": Quotas(**quotas)})
    async with scene(policy, internet.upstream) as staged:
        result = await staged.sandbox.run_python(f"""
import socket
made = socket.create_connection(("{SITE}", 9)); got = 0
try:
    for _ in range(100):
        made.sendall(b"\\0" * 5000); got += len(made.recv(65536))
except OSError as error:
    print(type(error).__name__, got <= 100_000)
""")
    assert result.stdout in ("ConnectionResetError True\n", "BrokenPipeError True\n")
    last = staged.records[-1]
    assert (last.ended, last.decision.allowed, last.decision.reason) == ("cut", False, reason)
    # What is sent is ahead of what comes back, so only the quota of what is sent bounds it.
    assert received <= 100_000 or reason == "quota-bytes-down"


async def test_attempts_beyond_the_rate_are_denied(internet):
    policy = allowing(SITE).model_copy(update={"quotas": Quotas(attempts_per_minute=5)})
    async with scene(policy, internet.upstream) as staged:
        await staged.sandbox.run_python(f"""
import socket
for _ in range(10):
    try: socket.getaddrinfo("{SITE}", 80, socket.AF_INET)
    except OSError: pass
""")
    assert [record.decision.allowed for record in staged.attempts] == [True] * 5 + [False] * 5
    assert staged.attempts[-1].decision.reason == "quota-rate"


async def test_a_gateway_that_is_dead_lets_nothing_through(internet):
    await internet.serve("203.0.113.80", 80, web)
    async with scene(allowing(SITE), internet.upstream) as staged:
        await staged.sandbox._watched.close()  # every socket of gateway, resolver and log
        result = await staged.sandbox.run_python(f"""
import socket
def attempt(call, *arguments):
    try: return call(*arguments)
    except OSError as error: return type(error).__name__
print(attempt(socket.gethostbyname, "{SITE}"))
print(attempt(socket.create_connection, ("203.0.113.80", 80), 1))
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(attempt(made.sendto, b"x", ("203.0.113.80", 9)))
""")
    assert result.stdout == "gaierror\nConnectionRefusedError\nPermissionError\n", result
    assert internet.dialled == []


async def test_a_fault_in_the_gateway_denies_and_is_recorded(internet, monkeypatch):
    async def broken(self, silence_s, within_s):
        raise RuntimeError("a bug")

    monkeypatch.setattr("sandboxes.egress.gateway.connection.Connection._read_opening", broken)
    async with scene(allowing(SITE), internet.upstream) as staged:
        await staged.sandbox.run_python(f"""
import socket
try: print(socket.create_connection(("{SITE}", 80)).recv(10))
except OSError as error: print(error)
""")
    assert staged.attempts[-1].decision.reason == "gateway-failed"
    assert internet.dialled == []


# -- the first bytes -------------------------------------------------------------------------------


def hello(*names: bytes, pieces: int = 1, name_type: int = 0) -> bytes:
    """A client hello, its handshake message in so many records."""
    listed = b"".join(bytes([name_type]) + struct.pack("!H", len(name)) + name for name in names)
    sni = struct.pack("!HHH", 0, len(listed) + 2, len(listed)) + listed if names else b""
    extensions = struct.pack("!HH", 0xFFCE, 2) + b"xx" + sni
    body = b"\3\3" + b"r" * 32 + b"\0" + b"\0\2\x13\1" + b"\1\0" + struct.pack("!H", len(extensions)) + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    size = -(-len(message) // pieces)
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\3\1" + struct.pack("!H", len(part)) + part for part in parts)


@pytest.mark.parametrize("pieces", [1, 2, 7, 50])
def test_a_tls_name_is_read_however_the_hello_is_cut(pieces):
    data = hello(b"files.example.org", pieces=pieces)
    assert read_opening(data).sni == "files.example.org"
    assert all(read_opening(data[:size]) is None for size in range(len(data)))


def test_a_hello_of_openssl_is_read():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=SITE)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    assert read_opening(outgoing.read()).sni == SITE


@pytest.mark.parametrize(
    "data",
    [
        hello(b"a.example.org", b"b.example.org"),
        hello(b"a.example.org", name_type=1),
        hello(b""),
        hello(b"a\0b.example.org"),
        hello(b"x" * 300),
        b"\x16\3\1\0\0",
        b"\x16\3\1\xff\xff",
        b"\x16\3\1\0\4\2\0\0\0",
        b"\x16\3\1\0\4\1\xff\xff\xff",
        b"\x16\2\1\0\4\1\0\0\0",
        b"\x16\3\1\0\0" + hello(b"a.example.org"),  # OpenSSL skips an empty record
    ],
)
def test_a_hello_that_hides_its_name_is_unreadable(data):
    assert read_opening(data).sni == UNREADABLE


def test_an_opening_that_never_ends_is_unreadable():
    assert read_opening(hello(b"a.example.org")[:40], complete=True).sni == UNREADABLE
    assert read_opening(b"GET / HTTP/1.1\r\nX: y", complete=True).host == UNREADABLE
    assert read_opening(b"GET / HTTP/1.1\r\nX: " + b"y" * 40_000).host == UNREADABLE
    assert read_opening(b"G", complete=True).host == UNREADABLE


def test_a_hello_without_a_name_claims_nothing():
    assert read_opening(hello()).sni is None


@pytest.mark.parametrize(
    ("head", "method", "host"),
    [
        (b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET", "a.example"),
        (b"\r\nget / http/1.0\nhOsT: \t A.example:80 \n\n", "get", "a.example"),
        (b"GET http://u@a.example:8080/x HTTP/1.1\r\nHost: a.example:8080\r\n\r\n", "GET", "a.example:8080"),
        (b"CONNECT b.example:443 HTTP/1.1\r\n\r\n", "CONNECT", "b.example"),
        (b"GET / HTTP/1.0\r\n\r\n", "GET", None),
        (b"OPTIONS * HTTP/1.1\r\nHost: [2001:db8::1]:8080\r\n\r\n", "OPTIONS", "[2001:db8::1]:8080"),
        (b"GET /?q=http:x HTTP/1.1\r\nHost: my_service-1.example.:\r\n\r\n", "GET", "my_service-1.example.:"),
    ],
)
def test_an_http_request_names_method_and_host(head, method, host):
    opening = read_opening(head + b"body")
    assert (opening.kind, opening.method, opening.host) == ("http", method, host)
    assert (head + b"body")[opening.length_bytes :] == b"body"


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: y\r\n Host: b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nX: y\rHost: b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nneither\r\n\r\n",
        b"GET\x0b/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example:80@b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example:b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example/b\r\n\r\n",
        b"GET http:/b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET http:b.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET http:\\\\b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET b.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"CONNECT a.example:443@b.example HTTP/1.1\r\n\r\n",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_unreadable(head):
    assert read_opening(head).host == UNREADABLE


LARGE = """
from sandboxes.egress.gateway.opening import read_opening
for blanks in (b" " * 32000, b"\\t" * 32000, b" \\t" * 16000):
    for line in (b"X:%b\\0", b"X:%b\\0%b", b"X: y%bz\\0", b"X%b:", b"%bX: y\\0"):
        head = b"GET / HTTP/1.1\\r\\n" + line.replace(b"%b", blanks) + b"\\r\\n\\r\\n"
        print(read_opening(head, complete=True).host)
"""
"""In a process of its own: whoever takes too long at it could not be interrupted."""


def test_no_head_keeps_the_gateway_of_all_sandboxes_for_long():
    ended = subprocess.run([sys.executable, "-P", "-c", LARGE], capture_output=True, text=True, timeout=120,
                           env={"PYTHONPATH": str(Path(__file__).parents[2])}, check=True)  # fmt: skip
    assert ended.stdout.splitlines() == [UNREADABLE] * 15


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n", b"PING\r\n", b"\0\1\2", b"USER a b c d\r\n", b"x" * 100, b"\x80\x2e\1"]
)
def test_other_protocols_are_passed_on_as_unknown(data):
    assert read_opening(data).kind == "unknown"
