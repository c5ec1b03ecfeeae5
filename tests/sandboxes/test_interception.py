"""How a watched sandbox begins and ends: its namespace, its rules, its sockets, and who may see them."""

# ruff: noqa: ASYNC110, ASYNC220, E501, PT012  what happens in a sandbox sets no event, and a pool is used as a context

import asyncio
import errno
import gc
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.backends.namespaces.syscalls import AARCH64, X86_64, Architecture
from sandboxes.egress.interception import calls, netlink, rules, watched
from sandboxes.egress.interception.packets import Packet, logged
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.interface import SandboxFrozen, SandboxLost, SandboxUnavailable
from sandboxes.observation import filter as questions
from sandboxes.opened import opened
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import starts_cancelled_anywhere
from tests.sandboxes.watched_scene import NOWHERE, Internet, allowing, scene

ROOT = Path(__file__).parents[2]
SPEC = SandboxSpec(network="watched", timeout_s=10)
CONNECT = "import socket\ntry: socket.create_connection(('203.0.113.5', {port}), 5).recv(1)\nexcept OSError: pass"


def in_network_of(sandbox: NamespaceSandbox, *argv: str) -> str:
    pid = next(
        line.split()[1]
        for line in Path(f"/proc/self/fdinfo/{sandbox._process.init}").read_text().splitlines()
        if line.startswith("Pid:")
    )
    return subprocess.run(["nsenter", "-t", pid, "-n", *argv], capture_output=True, text=True, check=True).stdout


async def reported(sandbox: NamespaceSandbox, count: int) -> list[EgressRecord]:
    """The records of the sandbox as soon as there are so many: what sends nothing is recorded after a moment."""
    async with asyncio.timeout(60):
        while len(records := await sandbox.egress()) < count:
            await asyncio.sleep(0.01)
    return records


def test_a_policy_needs_a_watched_network():
    with pytest.raises(ValidationError, match="network"):
        SandboxSpec(egress=EgressPolicy())
    assert SandboxSpec(network="watched").egress is None  # denies everything


async def test_a_sandbox_without_network_stays_without():
    async with opened(SandboxSpec()) as sandbox:
        result = await sandbox.run_python(CONNECT.format(port=80) + "\nopen('/proc/net/route').read().count('\\n')")
        assert result.stdout == "1\n"
        assert await sandbox.egress() == []


async def test_a_watched_sandbox_resets_and_snapshots_as_any_other():
    async with scene() as staged:
        await staged.sandbox.run_python("x = 1")
        kept = await staged.sandbox.snapshot()
        await staged.sandbox.run_python("x = 2")
        await staged.sandbox.restore(kept)
        assert (await staged.sandbox.run_python("x")).stdout == "1\n"
        await staged.sandbox.reset()
        assert (await staged.sandbox.run_python("'x' in globals()")).stdout == "False\n"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft"), reason="looks into the namespace with root's nft")
async def test_nft_reads_our_rules_as_they_were_meant():
    async with opened(SPEC, upstream=NOWHERE) as sandbox:
        listed = in_network_of(sandbox, "nft", "list", "ruleset")
        addresses = in_network_of(sandbox, "ip", "-o", "link")
        routes = in_network_of(sandbox, "ip", "route", "show", "default", "table", "all")
    assert "type filter hook output priority filter; policy drop;" in listed
    assert "meta l4proto tcp tproxy to :1 accept" in listed
    output = [line.strip() for line in listed[listed.index("chain output") :].splitlines()]
    assert output[-4:-2] == ['limit name "packets" goto without-port', "goto without-port-excess"], (
        "all else is refused"
    )
    ending = 'log prefix "refused" group 1 snaplen 128 queue-threshold 1 reject with icmpx admin-prohibited'
    for chain in ("refused", "without-port"):
        rules_of_it = listed[listed.index(f"chain {chain} {{") :].split("}")[0]
        assert f'counter name "packets" {ending}' in rules_of_it
    assert 'tcp dport 1 tcp flags syn / syn,ack limit name "packets" goto gateway' in listed
    assert addresses.count("\n") == 1
    assert routes.startswith("local default dev lo")


async def test_records_name_the_call_during_which_they_were_made():
    async with opened(SPEC, upstream=NOWHERE) as sandbox:
        for number in (1, 2):
            sandbox.label(f"call {number}")
            await sandbox.run_python(CONNECT.format(port=number + 100))
        sandbox.label(None)
        records = await reported(sandbox, 2)
        assert [(record.label, record.attempt.port) for record in records] == [("call 1", 101), ("call 2", 102)]
        assert await sandbox.egress(1) == records[1:]
        sandbox.acknowledge_egress(2)
        with pytest.raises(ValueError, match="acknowledged"):
            await sandbox.egress()


async def test_records_can_be_read_after_the_sandbox_is_closed():
    async with opened(SPEC, upstream=NOWHERE) as sandbox:
        running = asyncio.create_task(sandbox.run_python("import socket\nmade = socket.socket()\n"
                                                     "made.connect_ex(('203.0.113.5', 9))\nopen('/work/there', 'w')\nwhile True: pass"))  # fmt: skip
        while True:
            try:
                await sandbox.read_file("there")
                break
            except FileNotFoundError:
                await asyncio.sleep(0.01)
    with pytest.raises(SandboxLost):
        await running
    assert [record.attempt.port for record in await sandbox.egress()] == [9]


async def test_a_callback_that_fails_misses_nothing(caplog):
    received, fail = [], True

    def on_record(record):
        if fail:
            raise RuntimeError("no database")
        received.append(record.seq)

    async with opened(SPEC, on_record, NOWHERE) as sandbox:
        await sandbox.run_python(CONNECT.format(port=1))
        async with asyncio.timeout(60):
            while "could not be delivered" not in caplog.text:
                await asyncio.sleep(0.01)
        fail = False
        await sandbox.run_python(CONNECT.format(port=2))
    assert received == [1, 2]


async def test_users_of_a_pool_have_records_quotas_and_pins_of_their_own():
    internet, records = Internet({"files.example.org": ["203.0.113.5"]}), []
    spec = SPEC.model_copy(update={"egress": allowing("files.example.org", ports=(80,))})
    async with Pool(spec, 1, records.append, internet.upstream) as pool:
        for number in (1, 2):
            async with pool.acquire() as sandbox:
                sandbox.label(f"user {number}")
                if number == 1:
                    await sandbox.run_python("import socket; socket.gethostbyname('files.example.org')")
                await sandbox.run_python(CONNECT.format(port=80))
    assert len({record.attempt.sandbox for record in records}) == 2
    assert [(record.label, record.seq, record.attempt.protocol, record.decision.allowed)
            for record in records if record.phase == "attempt"] == [
        ("user 1", 1, "dns", True), ("user 1", 2, "tcp", True), ("user 2", 1, "tcp", False),
    ]  # fmt: skip


async def test_what_a_user_left_behind_is_recorded_as_its_own_and_cut():
    internet, records, hung_up = Internet({"files.example.org": ["203.0.113.5"]}), [], asyncio.Event()

    async def patient(reader, writer):
        await reader.read()
        hung_up.set()

    await internet.serve("203.0.113.5", 80, patient)
    spec = SPEC.model_copy(update={"egress": allowing("files.example.org", ports=(80,))})
    async with Pool(spec, 1, records.append, internet.upstream) as pool:
        async with pool.acquire() as sandbox:
            sandbox.label("user 1")
            await sandbox.run_python("import socket, os\nmade = socket.create_connection(('files.example.org', 80))\n"
                                 "made.sendall(b'PUT / HTTP/1.1\\r\\nHost: files.example.org\\r\\n\\r\\n')\n"
                                 "os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60')")  # fmt: skip
            while not internet.dialled:
                await asyncio.sleep(0.01)
        async with pool.acquire() as sandbox:
            async with asyncio.timeout(60):
                await hung_up.wait()
            assert await sandbox.egress() == []
    await internet.close()
    assert records[-1].label == "user 1"
    assert records[-1].phase == "traffic"
    assert records[-1].ended in ("closed", "cut")


async def test_a_start_that_is_cancelled_anywhere_leaves_nothing():
    await starts_cancelled_anywhere(SPEC, pause_s=0.0015)


async def test_rules_that_cannot_be_set_mean_no_sandbox(monkeypatch):
    batch = rules.rules_batch().replace(b"tproxy", b"nproxy")
    monkeypatch.setattr(watched.rules, "rules_batch", lambda: batch)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxUnavailable, match="netns entry.*load nf_tables"):
        await NamespaceSandbox.start(SPEC)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


async def test_a_stopped_supervisor_process_means_no_traffic_and_its_death_the_end():
    """The embedder of a watched sandbox is frozen: what the sandbox sends waits, and is not forwarded by anybody."""
    embedder = subprocess.Popen([sys.executable, "-c", EMBEDDER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    agent = int(await asyncio.to_thread(embedder.stdout.readline))
    embedder.send_signal(signal.SIGSTOP)
    await asyncio.sleep(0.2)
    assert Path(f"/proc/{agent}").exists()
    embedder.kill()
    embedder.wait()
    async with asyncio.timeout(60):
        while Path(f"/proc/{agent}/exe").is_symlink() and alive(agent):
            await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


EMBEDDER = """
import asyncio
from sandboxes.opened import open_sandbox
from sandboxes.spec import SandboxSpec
async def main():
    sandbox = await open_sandbox(SandboxSpec(network="watched", timeout_s=60))
    info = open(f"/proc/self/fdinfo/{sandbox._process.init}").read()
    print(next(line.split()[1] for line in info.splitlines() if line.startswith("Pid:")), flush=True)
    await sandbox.run_python("import socket\\nwhile True:\\n  socket.socket().connect_ex(('203.0.113.5', 80))")
asyncio.run(main())
"""

ORDINARY = """
import asyncio, os
from sandboxes.backends.namespaces import probe
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

asyncio.run(probe.agent_code())  # while we may read the files of this checkout
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)

async def main():
    records = []
    async with opened(SandboxSpec(network="watched"), records.append) as sandbox:
        await sandbox.run_python('''
import socket
try: socket.create_connection(("203.0.113.5", 22), 5).recv(1)
except OSError: pass
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("203.0.113.5", 443))
except OSError: pass
for _ in range(3000):
    try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("203.0.113.6", 443))
    except OSError: pass
''')
    print([record.attempt.target for record in records[:2]], sum(record.count for record in records))

asyncio.run(main())
"""


def test_an_ordinary_user_can_watch_sandboxes():
    run = subprocess.run([sys.executable, "-c", ORDINARY], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (run.returncode, run.stdout) == (0, "['tcp 203.0.113.5:22', 'udp 203.0.113.5:443'] 3002\n"), run.stderr


# -- which sockets are asked about ------------------------------------------------------------------


def asked(machine: Architecture, *arguments: int, number: int | None = None) -> int:
    """What the filter returns, by interpreting it as the kernel would."""
    call = machine.numbers["socket"] if number is None else number
    data = struct.pack("=IIQ6Q", call, machine.audit, 0, *(arguments + (0,) * 6)[:6])
    program, at, register = list(struct.iter_unpack("=HBBI", calls.socket_filter(machine))), 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == questions.RETURN:
            return value
        if code == questions.LOAD:
            (register,) = struct.unpack_from("=I", data, value)
        elif code == questions.AND:
            register &= value
        else:
            at += if_true if register == value else if_false


@pytest.mark.parametrize("machine", [X86_64, AARCH64], ids=["x86_64", "aarch64"])
def test_every_socket_but_tcp_udp_ping_and_unix_is_asked_about(machine):
    allowed = {
        (family, kind, protocol)
        for family in range(64) for kind in range(1, 11) for protocol in (*range(256), 262, 263)
        if asked(machine, family, kind | 0o2004000, protocol) == questions.ALLOW and family != questions.UNIX
    }  # fmt: skip
    assert allowed == {
        (family, kind, protocol) for family in (2, 10)
        for kind, protocol in [(1, 0), (1, 6), (1, 262), (2, 0), (2, 17), (2, 1), (2, 58)]
    }  # fmt: skip
    assert asked(machine, questions.UNIX, 5, 0) == questions.ALLOW
    assert asked(machine, 16, 3, 12) == questions.ASK
    assert asked(machine, 16, 3, 0) == questions.ERRNO | errno.EAFNOSUPPORT
    assert {asked(machine, 17, 3, 0, number=other) for other in machine.numbers.values()} == {
        questions.ALLOW,
        questions.ASK,
    }


# -- what the kernel says --------------------------------------------------------------------------


def log_message(payload: bytes) -> bytes:
    return netlink.message(0x400, 0, b"\0\0\0\1" + netlink.attribute(9, payload))


@pytest.mark.parametrize(
    ("payload", "packet"),
    [
        (b"\x45" + bytes(8) + b"\x11" + bytes(6) + b"\xcb\0\x71\5" + b"\0\1\1\xbb", ("udp", "ipv4", "203.0.113.5", 443)),
        (b"\x46" + bytes(8) + b"\1" + bytes(6) + b"\xcb\0\x71\5" + bytes(8), ("icmp", "ipv4", "203.0.113.5", None)),
        (b"\x45" + bytes(8) + b"\x84" + bytes(6) + b"\xcb\0\x71\5", ("other", "ipv4", "203.0.113.5", None)),
        (b"\x60" + bytes(5) + b"\0\0" + bytes(16) + b"\x20\1" + bytes(13) + b"\1" + b"\x11\0" + bytes(6) + b"\0\1\0\x35",
         ("udp", "ipv6", "2001::1", 53)),
        (b"\x45\0", ("other", "other", None, None)),
        (b"", ("other", "other", None, None)),
    ],
)  # fmt: skip
def test_a_logged_packet_is_read_for_its_destination(payload, packet):
    assert logged(log_message(payload)) == [Packet(*packet)]


@pytest.mark.parametrize(
    "datagram", [b"x", struct.pack("=IHHII", 9999, 0x400, 0, 0, 0), struct.pack("=IHHII", 4, 1, 0, 0, 0)]
)
def test_what_is_no_netlink_message_is_said_to_be_none(datagram):
    with pytest.raises(netlink.MalformedMessage):
        logged(datagram)


# -- names and freezing ----------------------------------------------------------------------------


async def test_a_sandbox_has_the_name_of_its_records():
    async with opened(SPEC, upstream=NOWHERE) as sandbox:
        names = []
        for _ in range(2):
            await sandbox.run_python(CONNECT.format(port=1))
            names.append(sandbox.name)
            assert {record.attempt.sandbox for record in await reported(sandbox, 1)} == {sandbox.name}
            await sandbox.reset()
    assert len(set(names)) == 2


async def test_a_freeze_cuts_connections_and_forwards_nothing_more():
    internet, received = Internet({"files.example.org": ["203.0.113.5"]}), bytearray()
    hung_up = asyncio.Event()

    async def listen(reader, writer):
        while piece := await reader.read(65536):
            received.extend(piece)
        hung_up.set()

    await internet.serve("203.0.113.5", 80, listen)
    program = """
import socket
made = socket.create_connection(("files.example.org", 80))
made.sendall(b"PUT / HTTP/1.1\\r\\nHost: files.example.org\\r\\nContent-Length: 999999999\\r\\n\\r\\n")
waiting = []
while True:
    made.sendall(b"secret " * 100)
    if len(waiting) < 50:
        waiting.append(socket.socket()); waiting[-1].setblocking(False)
        waiting[-1].connect_ex(("203.0.113.5", 80))
"""
    async with scene(allowing("files.example.org", ports=(80,)), internet.upstream) as staged:
        sandbox = staged.sandbox
        running = asyncio.create_task(sandbox.exec(["/usr/bin/python3", "-S", "-c", program], timeout_s=60))
        await staged.until(lambda: len(received) > 10_000)
        await sandbox.freeze("it sends secrets")
        async with asyncio.timeout(60):
            await hung_up.wait()
        sent, dialled, records = len(received), len(internet.dialled), len(staged.records)
        await asyncio.sleep(1.5)
        assert (len(received), len(internet.dialled), len(staged.records)) == (sent, dialled, records)
        with pytest.raises(SandboxFrozen):
            await running
        sandbox.label("too late")
    ended = [record for record in staged.records if record.phase == "traffic" and record.ended]
    assert ended[0].ended == "cut"
    assert sum(record.bytes_up for record in staged.records) >= sent
    await internet.close()


async def test_records_of_a_frozen_sandbox_can_be_read():
    async with opened(SPEC, upstream=NOWHERE) as sandbox:
        name = sandbox.name
        await sandbox.run_python(CONNECT.format(port=22))
        await sandbox.freeze("it connects")
        assert [(record.attempt.sandbox, record.attempt.port) for record in await sandbox.egress()] == [(name, 22)]
        assert sandbox.name == name
    assert len(await sandbox.egress()) == 1
