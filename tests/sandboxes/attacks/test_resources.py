"""Programs that take what they can: each is bounded, its neighbour goes on, and its sandbox can be reset or ended."""

import asyncio
import os
from pathlib import Path

import pytest

from sandboxes.cgroups.hierarchies import found
from sandboxes.interface import SandboxLost

BOMB = """
while True:
    try: os.fork()
    except OSError: pass
"""
EACH_LEAVES_TWO = """
while True:
    try:
        if os.fork() == 0: os.setsid()
        if os.fork() == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except OSError: pass
"""
THREADS = """
import _thread
_thread.stack_size(32768)
while True:
    try: _thread.start_new_thread(lambda: [None for _ in iter(int, 1)], ())
    except (RuntimeError, MemoryError): pass
"""
ZOMBIES = """
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: pass
"""


@pytest.mark.parametrize("program", [BOMB, EACH_LEAVES_TWO, THREADS, ZOMBIES])
async def test_a_bomb_goes_off_in_its_sandbox_only(make_arena, program):
    arena, neighbour = await make_arena(), await make_arena()
    bomb = asyncio.create_task(arena.attack(program, timeout_s=2))
    for _ in range(5):
        assert (await neighbour.sandbox.run_python("2 + 2")).stdout == "4\n"
        assert len((await arena.sandbox.inspect()).processes) <= 16 + 2
    result = await bomb
    assert result.outcome in ("timeout", "output", "killed")
    if result.outcome == "killed":
        await arena.sandbox.reset()  # forks were refused faster than the kernel forgets them: its memory was full
    assert (await arena.sandbox.run_python("'alive'")).stdout == "'alive'\n"
    assert len((await arena.sandbox.inspect()).processes) <= 3, "all of its family is dead"


MEMORY = {
    "anonymous": "x = []\nwhile True: x.append(bytes(range(256)) * 4096)",
    "mapped": "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 2**20)); x[-1].write(b'x' * 2**20)",
    "in children": """
while True:
    try:
        if os.fork() == 0:
            x = []
            while True:
                try: x.append(b"x" * 2**20)
                except MemoryError: time.sleep(60)
    except OSError: time.sleep(1)
""",
    "in pipes": """
import fcntl
x = []
while True:
    try:
        x.append(os.pipe2(os.O_NONBLOCK)); fcntl.fcntl(x[-1][1], 1031, 2**20)
        while True: os.write(x[-1][1], b"x" * 65536)
    except OSError:
        if len(x) > 100 and os.fork() == 0: x = []
""",
    "in sockets": """
x = []
while True:
    try:
        x.append(socket.socketpair()); x[-1][0].setblocking(False)
        while True: x[-1][0].send(b"x" * 65536)
    except OSError:
        if len(x) > 100 and os.fork() == 0: x = []
""",
    "in refused forks": BOMB,
    "in files": """
n = 0
while True:
    n += 1
    try: write(f"/tmp/{n}", "x" * 2**20)
    except OSError: write(f"/work/{n}", "")
""",
}


@pytest.mark.skipif(not found().limits, reason="without cgroups memory is bounded process by process")
@pytest.mark.parametrize("program", MEMORY.values(), ids=MEMORY)
async def test_memory_of_every_kind_is_bounded(make_arena, program):
    arena = await make_arena(memory_mib=64, disk_mib=8, snapshots=False)
    hungry = asyncio.create_task(arena.attack(program, timeout_s=4))
    largest_bytes = 0
    while not hungry.done():
        largest_bytes = max(largest_bytes, used_bytes(arena.sandbox))
        await asyncio.sleep(0.02)
    assert (await hungry).outcome in ("timeout", "killed", "error")
    assert largest_bytes <= (64 + 2 * 8 + 32) * 2**20
    try:
        await arena.sandbox.reset()
    except SandboxLost:
        return  # the kernel ended its agent for memory: a sandbox less, and nothing else
    assert (await arena.sandbox.run_python("import os; os.listdir('/tmp')")).stdout == "[]\n"


def used_bytes(sandbox) -> int:
    folder = next(folder for tree, folder in sandbox._process.group.folders if "memory" in tree.controllers)
    usage = next(path for path in (folder / "memory.usage_in_bytes", folder / "memory.current") if path.exists())
    return int(usage.read_text())


CONNECTED = """
for _ in range(9):
    if os.fork() == 0: break
kept, listener = [], socket.create_server(("127.0.0.1", 0), backlog=100)
for _ in range(60):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
    made.connect(listener.getsockname()); kept += [made, listener.accept()[0]]
    for end in kept[-2:]:
        end.setblocking(False)
        try:
            while True: end.send(b"x" * 65536)
        except OSError: pass
time.sleep(2)
"""
DATAGRAMS = """
for _ in range(9):
    if os.fork() == 0: break
kept = []
for _ in range(100):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); made.bind(("127.0.0.1", 0)); kept.append(made)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
    for _ in range(20):
        try: made.sendto(b"x" * 30000, made.getsockname())
        except OSError: pass
time.sleep(2)
"""
UNACCEPTED = """
for _ in range(9):
    if os.fork() == 0: break
kept = []
while True:
    try:
        listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        listener.bind(("127.0.0.1", 0)); listener.listen(4096); kept.append(listener)
    except OSError: time.sleep(1); continue
    for _ in range(100):
        made = socket.socket(); made.setblocking(False); made.connect_ex(listener.getsockname())
        try:
            while True: made.send(b"x" * 65536)
        except OSError: made.close()
"""
BUFFERS_MIB = 64
"""What docs/security.md says that sockets hold beside a sandbox's memory at most."""


def buffer_limit(sandbox) -> Path | None:
    """The folder of the cgroup that counts TCP and UDP buffers apart from memory: v1."""
    folders = [folder for tree, folder in sandbox._process.group.folders if "memory" in tree.controllers]
    return next((folder for folder in folders if (folder / "memory.kmem.tcp.usage_in_bytes").exists()), None)


@pytest.mark.skipif(not found().limits, reason="without cgroups buffers are bounded socket by socket")
@pytest.mark.parametrize("program", [CONNECTED, DATAGRAMS], ids=["connections", "datagrams"])
async def test_full_buffers_of_sockets_are_bounded(make_arena, program):
    arena = await make_arena(memory_mib=128)
    folder = buffer_limit(arena.sandbox)
    if folder is None:
        pytest.skip("cgroup v2 counts buffers as memory")
    running = asyncio.create_task(arena.attack(program))
    largest_bytes = 0
    while not running.done():
        largest_bytes = max(largest_bytes, int((folder / "memory.kmem.tcp.usage_in_bytes").read_text()))
        await asyncio.sleep(0.02)
    assert (await running).outcome in ("ok", "error", "killed"), "it may find no memory"
    assert 2**20 < largest_bytes <= BUFFERS_MIB * 2**20


async def test_connections_that_nobody_accepts_end_the_sandbox(make_arena):
    """They belong to no process and to no cgroup."""
    arena, neighbour = await make_arena(), await make_arena()
    with pytest.raises(SandboxLost, match="sockets"):
        await arena.attack(UNACCEPTED, timeout_s=60)
    assert (await neighbour.sandbox.run_python("2 + 2")).stdout == "4\n"


async def test_connections_of_a_later_user_end_the_sandbox_as_well(make_arena):
    """Nobody is looked at between a reset and the next request, and whoever comes then is."""
    arena = await make_arena()
    for _ in range(2):
        assert (await arena.sandbox.run_python("2 + 2")).stdout == "4\n"
        await arena.sandbox.reset()
    with pytest.raises(SandboxLost, match="sockets"):
        await arena.attack(UNACCEPTED, timeout_s=60)


async def test_a_larger_buffer_is_a_wish_and_no_error(arena):
    result = await arena.attack("""
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            made = socket.socket(); before = made.getsockopt(socket.SOL_SOCKET, option)
            made.setsockopt(socket.SOL_SOCKET, option, 2**22)
            print(made.getsockopt(socket.SOL_SOCKET, option) == before <= 262144)
    """)
    assert result.stdout == "True\nTrue\n"


async def test_disks_are_full_at_their_size(make_arena):
    arena = await make_arena(disk_mib=4)
    result = await arena.attack("""
        for folder in ("/work", "/tmp"):
            size = 0
            try:
                while True:
                    with open(f"{folder}/{size}", "wb", buffering=0) as file: size += file.write(bytes(65536))
            except OSError as error: print(folder, size <= 4 * 2**20, error.strerror)
        try: os.truncate("/work/0", 2**40)
        except OSError as error: print("sparse:", error.strerror)
    """)
    assert [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()[:2]] == [
        "True No space left on device"
    ] * 2
    await arena.sandbox.reset()
    assert (await arena.sandbox.exec(["/bin/sh", "-c", "df -k /work /tmp | grep -c ' 0%'"])).stdout == "2\n"


async def test_folders_too_deep_and_names_too_many_end_the_sandbox_at_worst(arena):
    await arena.attack("""
        for _ in range(3000): os.mkdir("dd"); os.chdir("dd")
    """)
    assert not (await arena.sandbox.inspect()).complete
    with pytest.raises(SandboxLost):
        await arena.sandbox.reset()


async def test_a_flood_of_output_is_not_held_by_anybody(arena):
    before_kib = resident_kib()
    for stream in (1, 2):
        result = await arena.attack(f"while True: os.write({stream}, b'x' * 65536)")
        assert (result.outcome, result.truncated) == ("output", True)
    assert resident_kib() - before_kib < 32 * 1024


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


async def test_every_descriptor_taken_in_a_sandbox_is_taken_from_nobody_else(make_arena):
    arena, neighbour = await make_arena(), await make_arena()
    taken = asyncio.create_task(
        arena.attack(
            """
            while True:
                try:
                    while True: os.open("/dev/null", os.O_RDONLY)
                except OSError:
                    try: os.fork()
                    except OSError: pass
            """,
            timeout_s=3,
        )
    )
    await asyncio.sleep(0.5)
    for sandbox in (neighbour.sandbox, arena.sandbox):
        await sandbox.write_file("f", b"content")
        assert await sandbox.read_file("f") == b"content"
    os.close(os.open("/dev/null", os.O_RDONLY))
    assert (await taken).outcome in ("timeout", "killed")  # killed: refused forks filled its memory


@pytest.mark.parametrize(
    "program",
    [
        "time.sleep(10**6)",
        "for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: time.sleep(1)",  # noqa: E501
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nos.mkfifo('/tmp/p')\nopen('/tmp/p')",
        "os.setsid() if os.fork() == 0 else None\nos.close(1); os.close(2)\nwhile True: pass",
    ],
)
async def test_whoever_does_not_end_is_ended(arena, program):
    assert (await arena.attack(program, timeout_s=0.5)).outcome == "timeout"
    alive = [
        process for process in (await arena.sandbox.inspect()).processes if process.state != "Z"
    ]  # the agent buries them in turn
    assert len(alive) == 2, "the agent and its interpreter"
