"""What the next user of a pool can read of the one before: nothing, or the list of docs/sandboxes.md."""

# ruff: noqa: ASYNC110  a pool tells nobody when it has cleaned up: one has to look again

import asyncio
import json

import pytest

from sandboxes.pool import Pool
from tests.sandboxes.asking import cell_output

LEAVE_NOTES = """
import os, socket, struct
server = socket.create_server(("127.0.0.1", 8765))
for _ in range(20):  # whoever closes first waits for a minute: here the server's end
    client = socket.create_connection(("127.0.0.1", 8765))
    accepted, _ = server.accept()
    accepted.close(); client.recv(1); client.close()
server.close()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(50):
    datagrams.sendto(b"note", ("127.0.0.1", 8765))
for _ in range(300):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
for number in range(300):
    for folder in ("/work", "/tmp", "/dev/shm"):
        open(f"{folder}/{number}", "w").close()
os.setpriority(os.PRIO_PROCESS, 0, 10)
try:  # a flow label outlives its socket
    whom, lasting = socket.inet_pton(socket.AF_INET6, "::1"), struct.pack("=BBHHHI", 0, 255, 1, 99, 99, 0)
    wish = whom + struct.pack("!I", 0x12345) + lasting
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).setsockopt(41, 32, wish)
except OSError:
    pass
names = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
for ours, name in zip(names, ("note", "other note")):
    ours.bind("\\0" + name)
names[0].connect("\\0other note"); names[1].connect("\\0note")
for ours in names:  # each keeps the other open, when nobody else does
    socket.send_fds(ours, [b"x"], [other.fileno() for other in names])
"""
READ_NOTES = """
import json, os, socket
def counted(path, name):
    lines = [line.split() for line in open(path) if line.startswith(name)]
    return dict(zip(lines[0][1:], map(int, lines[1][1:])))
try:
    socket.socket().bind(("127.0.0.1", 8765))
    port = "free"
except OSError as error:
    port = os.strerror(error.errno)
try:
    labels = len(list(open("/proc/net/ip6_flowlabel")))
except OSError:
    labels = None
inodes = []
for folder in ("/work", "/tmp", "/dev/shm"):
    open(folder + "/mine", "w").close()
    inodes.append(os.stat(folder + "/mine").st_ino)
files = {folder: sorted(os.listdir(folder)) for folder in ("/work", "/tmp", "/dev/shm")}
print(json.dumps({
    "port": port, "labels": labels, "process": os.getpid() > 250, "files": files,
    "inodes": [inode > 250 for inode in inodes],
    "TCP": counted("/proc/net/snmp", "Tcp:")["ActiveOpens"] > 0,
    "UDP": counted("/proc/net/snmp", "Udp:")["OutDatagrams"] > 0,
    "names": [line.split()[-1] for line in open("/proc/net/unix") if "note" in line],
    "waiting": sum(line.split()[3] == "06" for line in list(open("/proc/net/tcp"))[1:]),
    "nice": (os.nice(0), os.getpriority(os.PRIO_PROCESS, 1)),
}))
"""


async def successor_sees(spec) -> tuple[dict, dict]:
    """What a first user reads, and what reads one who comes after somebody has left notes."""
    async with Pool(spec, 1) as pool:
        async with pool.acquire() as sandbox:
            first = json.loads(await cell_output(sandbox, READ_NOTES))
            await cell_output(sandbox, LEAVE_NOTES)
        while pool.stats().cleaning:
            await asyncio.sleep(0.01)
        async with pool.acquire() as sandbox:
            return first, json.loads(await cell_output(sandbox, READ_NOTES))


async def test_a_user_of_a_sandbox_that_is_never_used_again_reads_nothing_of_the_one_before(make_spec):
    first, second = await successor_sees(make_spec(snapshots=False))
    assert first == second
    assert (first["port"], first["names"], first["waiting"]) == ("free", [], 0)


async def test_after_a_reset_only_what_the_kernel_has_counted_is_left(make_spec):
    first, second = await successor_sees(make_spec(snapshots=False, reuse="reset"))
    assert (second["files"], second["nice"]) == (first["files"], first["nice"])
    left = {name for name in first if first[name] != second[name]}
    assert {"process", "TCP", "waiting", "port"} <= left, "then the docs promise too little"
    assert left <= {"process", "inodes", "TCP", "UDP", "names", "waiting", "port"}


@pytest.mark.parametrize("reuse", ["never", "reset"])
async def test_a_server_begins_anew_on_its_port_only_in_a_sandbox_of_its_own(make_spec, reuse):
    """An episode's server on a fixed port, without SO_REUSEADDR as many programs have it."""
    _, second = await successor_sees(make_spec(snapshots=False, reuse=reuse))
    assert second["port"] == ("free" if reuse == "never" else "Address already in use")
