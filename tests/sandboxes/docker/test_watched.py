"""A container's network, entered from outside before anything runs in it."""

# ruff: noqa: ASYNC220, ASYNC221  the rules of the machine are looked at by a program of its own

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager

import pytest

from sandboxes.backends.docker import container, daemon, network
from sandboxes.backends.docker.container import OWNER
from sandboxes.egress.interception import rules
from sandboxes.interface import SandboxFrozen, SandboxUnavailable
from sandboxes.opened import open_sandbox
from sandboxes.spec import SandboxSpec
from tests.sandboxes import watched_scene
from tests.sandboxes.asking import errno_of
from tests.sandboxes.watched_scene import Internet, allowing

OPTIONS = {"backend": "docker", "image": "host"}


@pytest.fixture
def scene(docker_image):
    @asynccontextmanager
    async def staged(*arguments, **spec):
        async with watched_scene.scene(*arguments, **OPTIONS, **spec) as one:
            yield one

    return staged


async def test_every_attempt_is_recorded_with_its_true_destination(scene):
    async with scene() as staged:
        staged.sandbox.label("turn 1, call 2")
        await staged.attack(
            """
            attempt(tcp, "192.0.2.7", 80, b"GET / HTTP/1.1\\r\\nHost: a.example.org\\r\\n\\r\\n")
            attempt(tcp, "2001:db8::1", 25)
            attempt(tcp, "198.51.100.9", 3333, b'{"method":"mining.subscribe"}')
            attempt(udp, "203.0.113.4", 443)
            attempt(udp, "2001:db8::2", 123)
            attempt(udp, "198.51.100.53", 53, query("secret.example.net"))
            attempt(udp, "203.0.113.1", 0, b"\\x08\\0\\0\\0\\0\\0\\0\\0", None, 1)
            """
        )
    seen = {(attempt.attempt.protocol, attempt.attempt.address, attempt.attempt.port) for attempt in staged.attempts}
    assert seen == {
        ("tcp", "192.0.2.7", 80),
        ("tcp", "2001:db8::1", 25),
        ("tcp", "198.51.100.9", 3333),
        ("udp", "203.0.113.4", 443),
        ("udp", "2001:db8::2", 123),
        ("dns", "198.51.100.53", 53),
        ("icmp", "203.0.113.1", None),
    }
    assert staged.recorded == staged.tried == 7
    assert {attempt.label for attempt in staged.attempts} == {"turn 1, call 2"}
    assert not any(attempt.decision.allowed for attempt in staged.attempts)


async def test_what_the_policy_allows_is_forwarded(scene):
    internet = Internet({"files.example.org": ["192.0.2.10"]})

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    await internet.serve("192.0.2.10", 80, serve)
    async with scene(allowing("files.example.org"), internet.upstream) as staged:
        fetched = await staged.sandbox.run_python(
            "import urllib.request as u; print(u.urlopen('http://files.example.org/').read())"
        )
        assert fetched.stdout == "b'hello'\n", fetched
    await internet.close()
    assert any(attempt.decision.allowed and attempt.attempt.address == "192.0.2.10" for attempt in staged.attempts)


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        ("socket.AF_INET, socket.SOCK_RAW, 1", "EPERM"),
        ("socket.AF_INET6, socket.SOCK_RAW, 58", "EPERM"),
        ("socket.AF_INET, socket.SOCK_STREAM, 132", "EPERM"),  # SCTP
        ("socket.AF_INET, socket.SOCK_DGRAM, 136", "EPERM"),  # UDP-Lite
        ("socket.AF_PACKET, socket.SOCK_RAW, 3", "EAFNOSUPPORT"),
        ("40, socket.SOCK_STREAM, 0", "EAFNOSUPPORT"),  # VSOCK
        ("socket.AF_NETLINK, socket.SOCK_RAW, 0", "EAFNOSUPPORT"),
        ("socket.AF_NETLINK, socket.SOCK_RAW, 12", "EAFNOSUPPORT"),
        ("38, socket.SOCK_SEQPACKET, 0", "EAFNOSUPPORT"),  # ALG
    ],
)
async def test_a_socket_that_no_gateway_could_see_cannot_be_had(scene, made, answer):
    async with scene() as staged:
        assert await errno_of(staged.sandbox, f"socket.socket({made})") == answer


async def test_nobody_in_the_sandbox_changes_its_network_or_takes_the_gateways_place(scene):
    async with scene() as staged:
        for port in (rules.GATEWAY_PORT, rules.DNS_PORT):
            for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
                bind = f"socket.socket(socket.AF_INET6, socket.{kind}).bind(('::', {port}))"
                assert await errno_of(staged.sandbox, bind) == "EACCES"
        transparent = "socket.socket().setsockopt(socket.SOL_IP, 19, 1)"
        assert await errno_of(staged.sandbox, transparent) == "EPERM"
        for path in ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/net/ipv6/conf/all/disable_ipv6"):
            assert await errno_of(staged.sandbox, f"open({path!r}, 'w')") in ("EROFS", "EACCES")


async def test_a_frozen_sandbox_has_no_connection_left_and_its_records_stay(scene):
    ended = asyncio.Event()
    internet = Internet({"files.example.org": ["192.0.2.10"]})

    async def hold(reader, writer):
        await reader.read()
        ended.set()
        writer.close()

    await internet.serve("192.0.2.10", 443, hold)
    async with scene(allowing("files.example.org"), internet.upstream) as staged:
        code = "s = socket.create_connection(('files.example.org', 443)); s.send(b'SSH-2.0-x'); s.recv(1)"
        talking = asyncio.create_task(staged.sandbox.run_python(f"import socket; {code}"))
        await staged.until(lambda: staged.attempts)
        await staged.sandbox.freeze("looks like a tunnel")
        with pytest.raises(SandboxFrozen, match="tunnel"):
            await talking
        assert internet.dialled == [] or await asyncio.wait_for(ended.wait(), 60)
        assert staged.attempts
    await internet.close()


async def test_the_next_user_has_another_name_and_none_of_the_records(docker_image):
    sandbox = await open_sandbox(SandboxSpec(network="watched", timeout_s=10, **OPTIONS))
    try:
        before = sandbox.name
        await sandbox.run_python("import socket; socket.socket(2, 2).sendto(b'x', ('192.0.2.1', 9))")
        assert [record.attempt.sandbox for record in await sandbox.egress()] == [before]
        await sandbox.reset()
        assert sandbox.name != before
        assert await sandbox.egress() == []
    finally:
        await sandbox.close()


async def test_a_network_that_cannot_be_watched_makes_no_sandbox(docker_image, monkeypatch):
    """Without IPv6 the kernel refuses a part of the rules."""
    settings = container.settings

    def without_ipv6(*arguments):
        made = settings(*arguments)
        made["sysctls"]["net.ipv6.conf.all.disable_ipv6"] = "1"
        return made

    monkeypatch.setattr(container, "settings", without_ipv6)
    with pytest.raises(SandboxUnavailable, match="netns entry"):
        await open_sandbox(SandboxSpec(network="watched", **OPTIONS))
    assert daemon.client().containers(all=True, filters={"label": OWNER}) == []


async def test_the_network_of_the_machine_itself_is_never_entered(docker_image):
    pidfd = os.pidfd_open(os.getpid())
    before = subprocess.run(["nft", "list", "ruleset"], capture_output=True).stdout
    try:
        with pytest.raises(SandboxUnavailable, match="the network of its host"):
            await network.entered(os.getpid(), pidfd)
    finally:
        os.close(pidfd)
    assert subprocess.run(["nft", "list", "ruleset"], capture_output=True).stdout == before


async def test_a_network_with_a_way_out_is_never_entered():
    """A pair of devices inside of one namespace stands for an uplink."""
    made = "ip link add up0 type veth peer name up1 && ip link set up0 up && echo up && sleep 60"
    other = subprocess.Popen(["unshare", "--net", "sh", "-c", made], stdout=subprocess.PIPE)
    pidfd = os.pidfd_open(other.pid)
    try:
        assert await asyncio.to_thread(other.stdout.readline) == b"up\n"
        with pytest.raises(SandboxUnavailable, match="more network than its own loopback"):
            await network.entered(other.pid, pidfd)
    finally:
        os.close(pidfd)
        other.kill()
        other.wait()
        other.stdout.close()


async def test_a_container_that_cannot_be_seen_here_is_not_watched():
    with pytest.raises(SandboxUnavailable, match="processes to be seen here"):
        await network.entered(0, -1)
