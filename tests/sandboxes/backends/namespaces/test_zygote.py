"""Sandboxes that a zygote makes: walls like bubblewrap's, and nothing of the sandbox before."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandboxes import owner
from sandboxes.backends.namespaces import zygote as zygote_module
from sandboxes.backends.namespaces.arguments import DEVICES
from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.backends.namespaces.zygote import Zygotes
from sandboxes.cgroups.group import Group, left_behind
from sandboxes.cgroups.hierarchies import found
from sandboxes.interface import SandboxLost, SandboxUnavailable
from sandboxes.opened import opened, zygotes_for
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed
from tests.sandboxes.asking import cell_output, children, opened_after_another, printed, shell

SPEC = SandboxSpec(timeout_s=20)
ROOT = Path(__file__).parents[4]
LOOK = """
import json, os, resource, socket, sys
streams = [sys.stdin, sys.stdout, sys.stderr, sys.__stdout__]
def lines(path, *starts):
    return [line.rstrip() for line in open(path) if line.startswith(starts)]
mounts = [line.split() for line in open("/proc/self/mountinfo")]
def sysctl(path):
    return open("/proc/sys/net/" + path).read().split()
def addresses():
    return [line.split()[0] for line in open("/proc/net/if_inet6")]
def entered(name):
    try: return os.stat("/proc/self/ns/" + name).st_ino
    except OSError as error: return error.strerror
told = ("Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups", "SigIgn", "SigBlk", "NSpid")
print(json.dumps({
    "status": lines("/proc/self/status", *told), "agent": lines("/proc/1/status", *told),
    "mounts": sorted({(m[4], m[5], *m[m.index("-") + 1:m.index("-") + 2]) for m in mounts}),
    "sizes": [[getattr(os.statvfs(p), f) for f in ("f_blocks", "f_bfree")] for p in ("/work", "/tmp")],
    "modes": [f"{p.st_mode:o} {p.st_uid}" for p in map(os.stat, ("/", "/work", "/tmp", "/etc", "/dev", "/proc"))],
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource)
               if n.startswith("RLIMIT") and n != "RLIMIT_NPROC"},
    "python": [sys.path, sys.argv, sorted(sys.modules), sorted(globals()), [str(file) for file in streams]],
    "streams": [[file.seekable(), file.line_buffering, file.write_through] for file in streams],
    "names": [os.uname().nodename, os.getcwd(), sorted(os.environ.items())],
    "processes": [n for n in os.listdir("/proc") if n.isdigit()],
    "descriptors": len(os.listdir("/proc/self/fd")),
    "nice": os.nice(0), "mask": os.umask(0o22), "affinity": len(os.sched_getaffinity(0)),
    "groups": open("/proc/self/cgroup").read(),
    "net": [[line.split(":")[0] for line in open("/proc/net/dev")], addresses()],
    "sysctl": [sysctl(name) for name in ("ipv4/tcp_rmem", "ipv4/tcp_wmem", "core/somaxconn")],
    "files": [sorted(os.listdir(p)) for p in ("/", "/work", "/tmp", "/dev", "/etc")],
    "oom": open("/proc/self/oom_score_adj").read() + open("/proc/1/oom_score_adj").read(),
}))
"""


@pytest.fixture
async def zygotes() -> AsyncIterator[Zygotes]:
    made = Zygotes(SPEC)
    yield made
    await made.close()


@asynccontextmanager
async def made(zygotes: Zygotes) -> AsyncIterator[NamespaceSandbox]:
    sandbox = await NamespaceSandbox.start(SPEC, zygotes=zygotes)
    try:
        yield sandbox
    finally:
        await completed(sandbox.close())


def zygote_pid(sandbox: NamespaceSandbox) -> int:
    """The process id of the process that made the agent: its parent, seen from the host."""
    fields = Path(f"/proc/{sandbox._process.init_pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


async def test_its_sandbox_has_the_walls_that_bubblewrap_makes():
    async with opened(SPEC) as ours:
        wanted = json.loads(await cell_output(ours, LOOK))
    async with opened_after_another(SPEC) as theirs:
        found = json.loads(await cell_output(theirs, LOOK))
    for mount in wanted["mounts"]:
        if mount[0].startswith("/dev/"):
            mount[1] = mount[1].replace("rw", "ro")  # walls.keep_times_of_devices
    assert {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]} == {}
    assert [line for line in found["status"] if line.startswith("Cap")] == [
        f"Cap{kind}:\t{0:016x}" for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")
    ]


async def test_each_has_namespaces_of_its_own(zygotes):
    async def namespaces(sandbox: NamespaceSandbox) -> dict[str, str]:
        folder = f"/proc/{sandbox._process.init_pid}/ns"
        return {name: os.readlink(f"{folder}/{name}") for name in ("pid", "mnt", "net", "ipc", "uts")}

    async with made(zygotes) as first:
        of_first = await namespaces(first)
        of_zygote = {name: os.readlink(f"/proc/{zygote_pid(first)}/ns/{name}") for name in of_first}
        # Held open, or the number of a namespace that is gone could be given again.
        held = [os.open(f"/proc/{first._process.init_pid}/ns/{name}", os.O_RDONLY) for name in of_first]
    try:
        async with made(zygotes) as second:
            of_second = await namespaces(second)
    finally:
        for fd in held:
            os.close(fd)
    for name in of_first:
        assert len({of_first[name], of_second[name], of_zygote[name]}) == 3, name


async def test_one_zygote_makes_one_sandbox_after_the_other(zygotes):
    async with made(zygotes) as first:
        pid = zygote_pid(first)
    for _ in range(3):
        async with made(zygotes) as later:
            assert zygote_pid(later) == pid
            assert await cell_output(later, "print(6 * 7)") == "42"


async def test_two_at_once_have_two_zygotes(zygotes):
    async with made(zygotes) as first, made(zygotes) as second:
        assert zygote_pid(first) != zygote_pid(second)


async def test_nothing_that_a_sandbox_was_reported_is_in_the_memory_of_its_zygote_or_its_successor(zygotes):
    """Searched by root of the host, who reads all of it, agent, interpreter and zygote."""
    if os.geteuid() != 0:
        pytest.skip("only root may read the memory of all of them")
    mark = b"a note for whoever comes next".hex()
    spell = f"''.join(chr(int('{mark}'[i:i+2], 16)) for i in range(0, {len(mark)}, 2))"
    async with made(zygotes) as first:
        pid = zygote_pid(first)
        await first.set_prelude(f"# {mark}\nkept = {mark!r} * 100")
        await first.write_file("note", mark.encode() * 1000)
        await first.exec(["/bin/cat"], stdin=mark.encode() * 1000, env={"NOTE": mark})
        await first.run_python(f"print({mark!r} * 50, {spell})")
        assert any(mark.encode() in part for part in memory(first._process.init_pid)), "or the search finds nothing"
    assert not any(mark.encode() in part for part in memory(pid))
    async with made(zygotes) as second:
        assert zygote_pid(second) == pid
        for process in (await second.inspect()).processes:
            assert not any(mark.encode() in part for part in memory(process.pid)), process


def memory(pid: int) -> list[bytes]:
    """What a process has mapped and may be read."""
    parts = []
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in maps:
            first, _, last = line.split()[0].partition("-")
            if "r" not in line.split()[1] or "[v" in line:
                continue
            file.seek(int(first, 16))
            parts.append(file.read(int(last, 16) - int(first, 16)))
    return parts


ATTACKS = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
os.system("kill -9 -1 2>/dev/null")
for number in range(2, 400):
    for kill in (os.kill, os.killpg):
        try: kill(number, 9)
        except OSError: pass
"""


async def test_no_guest_ends_or_stops_the_zygote(zygotes):
    async with made(zygotes) as sandbox:
        pid = zygote_pid(sandbox)
        await sandbox.exec(["/usr/bin/python3", "-S", "-c", ATTACKS])
        assert state(pid) == "S"
    async with made(zygotes) as sandbox:
        assert zygote_pid(sandbox) == pid
        assert await cell_output(sandbox, "print(1)") == "1"


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and state(pid) not in "ZX"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_guest_finds_no_process_and_no_descriptor_of_the_zygote(zygotes):
    async with made(zygotes) as sandbox:
        script = "ls -d /proc/[0-9]* | wc -l; cat /proc/1/status | grep PPid; ls -l /proc/$$/fd | grep -c socket"
        count, parent, sockets = (await shell(sandbox, script)).stdout.split("\n")[:3]
        assert int(count) <= 6, "agent, interpreter, and the shell's own"
        assert (parent.split()[1], sockets) == ("0", "0")


async def test_zygote_and_agent_hold_no_file_that_the_next_agent_would_hold_too(zygotes):
    """A path of a guest may lead the agent to /proc/self/fd: what is open there from before is shared by all."""
    async with opened(SPEC) as other:
        wanted = kinds_of_descriptors(other._process.init_pid)
    async with made(zygotes) as sandbox:
        await sandbox.run_python("1")
        assert kinds_of_descriptors(sandbox._process.init_pid) <= wanted | {"pipe", "socket", "/dev/null"}
        assert kinds_of_descriptors(zygote_pid(sandbox)) == {
            "/dev/null",
            "/memfd:complaints (deleted)",
            "pid",
            "socket",
        }
        for number in range(5, 40):
            await sandbox.run_python(f"import os; os.symlink('/proc/self/fd/{number}', '/work/{number}')")
            with pytest.raises(OSError, match=f"^.Errno .*{number}'$"):
                await sandbox.read_file(str(number))


async def test_no_guest_leaves_a_note_in_the_times_of_a_device(zygotes):
    """They are the machine's: whoever comes next would read them, to the nanosecond."""
    devices = [f"/dev/{name}" for name in DEVICES]
    before = [os.stat(path).st_mtime_ns for path in devices]
    async with made(zygotes) as sandbox:
        for path in devices:
            touched = await shell(sandbox, f"touch {path}")
            assert "Read-only file system" in touched.stderr
        assert await printed(sandbox, "echo lost > /dev/null && head -c 3 /dev/zero | wc -c") == "3\n"
        assert (await shell(sandbox, "echo x > /dev/full")).outcome == "error"
    assert [os.stat(path).st_mtime_ns for path in devices] == before


def kinds_of_descriptors(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    return {os.readlink(f"{folder}/{name}").partition(":[")[0] for name in os.listdir(folder)}


async def test_what_a_guest_leaves_running_is_dead_before_the_next_begins(zygotes):
    async with made(zygotes) as first:
        await shell(first, "for i in 1 2 3; do setsid sleep 1000 & done")
        left = [process.pid for process in (await first.inspect()).processes]
        assert len(left) == 5
    async with made(zygotes):
        assert [pid for pid in left if runs(pid)] == []


async def test_a_full_sandbox_leaves_its_successor_all_of_its_room(zygotes):
    async with made(zygotes) as first:
        await shell(first, "for place in work tmp; do cat /dev/zero > /$place/full; done")
        await shell(first, "for i in $(seq 40); do sleep 99 & done")
    async with made(zygotes) as second:
        full = "head -c 15m /dev/zero > /work/a && head -c 15m /dev/zero > /tmp/a && echo fits"
        assert await printed(second, full) == "fits\n"
        others = "import os\nfor n in range(15):\n  os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '99')\nprint('all')"
        assert await cell_output(second, others) == "all"
        assert (await second.run_python("os.fork()")).exception == "BlockingIOError"


async def test_descriptors_that_unix_sockets_hold_for_each_other_do_not_count_for_the_successor(zygotes):
    """The kernel counts descriptors in flight per user of the machine; what a dead cycle holds it collects."""
    fill = """
    import socket, errno
    pairs, sent, refused = [], 0, ""
    try:
        for _ in range(100):
            a, b = socket.socketpair()
            pairs.append((a, b))
            for _ in range(200):
                try: socket.send_fds(a, [b"x"], [b.fileno()] * 1); sent += 1
                except BlockingIOError: break
    except OSError as error:
        refused = errno.errorcode[error.errno]
    print(sent, refused)
    """
    async with made(zygotes) as first:
        wanted = await cell_output(first, fill)
    async with made(zygotes) as second:
        assert await cell_output(second, fill) == wanted


async def test_a_zygote_that_was_killed_is_replaced_and_its_sandbox_is_lost(zygotes):
    async with made(zygotes) as first:
        os.kill(zygote_pid(first), signal.SIGKILL)
        async with asyncio.timeout(60):
            with pytest.raises(SandboxLost):  # noqa: PT012  it takes a moment to be noticed
                while True:
                    await first.run_python("1")
    async with made(zygotes) as second:
        pid = zygote_pid(second)
    os.kill(pid, signal.SIGKILL)
    async with made(zygotes) as third:
        assert zygote_pid(third) != pid
        assert await cell_output(third, "print(1)") == "1"


async def test_a_zygote_that_does_not_answer_is_replaced(zygotes, monkeypatch):
    async with made(zygotes) as first:
        pid = zygote_pid(first)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(zygote_module, "MAKE_S", 0.2)
    async with made(zygotes) as second:
        monkeypatch.undo()
        assert zygote_pid(second) != pid
    assert not runs(pid)


@pytest.mark.skipif(not found().limits, reason="without a cgroup nobody can be found in it")
async def test_a_zygote_beside_which_somebody_lives_is_not_used_again(zygotes):
    stranger = await asyncio.create_subprocess_exec("sleep", "1000")
    async with made(zygotes) as first:
        pid = zygote_pid(first)
        for _, folder in first._process.group.folders:
            (folder / "cgroup.procs").write_text(str(stranger.pid))
    async with made(zygotes) as second:
        assert zygote_pid(second) != pid
    assert await stranger.wait() == -signal.SIGKILL, "the cgroup is ended as a whole"


async def test_the_zygote_of_a_frozen_sandbox_makes_no_other(zygotes):
    async with made(zygotes) as first:
        pid = zygote_pid(first)
        await first.freeze("to be looked at")
    assert not runs(pid)
    async with made(zygotes) as second:
        assert zygote_pid(second) != pid


async def test_a_start_that_is_cancelled_anywhere_leaves_nothing(zygotes):
    before = children()  # of other tests
    async with made(zygotes):
        pass
    for step in range(30):
        start = asyncio.create_task(NamespaceSandbox.start(SPEC, zygotes=zygotes))
        await asyncio.sleep(step * 0.001)
        start.cancel()
        ended = (await asyncio.gather(start, return_exceptions=True))[0]
        if isinstance(ended, NamespaceSandbox):
            await ended.close()
        else:
            assert isinstance(ended, asyncio.CancelledError)
    await zygotes.close()
    assert children() <= before


async def test_a_closed_pool_leaves_no_process_no_descriptor_and_no_group():
    async with Pool(SPEC, 2) as pool:
        await pool.warm()
    descriptors, before, groups = len(os.listdir("/proc/self/fd")), children(), own_groups()
    async with Pool(SPEC, 3) as pool:
        for _ in range(4):
            async with pool.acquire() as sandbox:
                await sandbox.run_python("1")
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert children() <= before
    assert own_groups() == groups


def own_groups() -> int:
    return len(left_behind().get(owner.mark(), []))


async def test_what_ends_a_child_on_its_way_is_reported(zygotes, monkeypatch):
    monkeypatch.setattr(zygote_module, "deny_filter", lambda: b"no filter")
    with pytest.raises(SandboxUnavailable, match="syscall.*refused"):
        await NamespaceSandbox.start(SPEC, zygotes=zygotes)


@pytest.mark.parametrize(
    "other",
    [{"network": "watched"}, {"reuse": "reset"}, {"place": "service"}, {"backend": "docker", "image": "host"}],
)
def test_only_sandboxes_without_network_that_are_not_used_again_are_made_by_zygotes(other):
    assert zygotes_for(SPEC) is not None
    assert zygotes_for(SandboxSpec(**other)) is None


ORDINARY = """
import asyncio, os
from sandboxes.backends.namespaces import probe
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

asyncio.run(probe.zygote_code())  # while we may read the files of this checkout
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)

async def main():
    async with Pool(SandboxSpec(timeout_s=20), 1) as pool:
        for _ in range(3):
            async with pool.acquire() as sandbox:
                print((await sandbox.run_python("open('/proc/sys/net/ipv4/tcp_rmem').read().split()[-1]")).stdout)

asyncio.run(main())
"""


def test_an_ordinary_user_has_zygotes_and_small_buffers_too():
    run = subprocess.run([sys.executable, "-c", ORDINARY], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (run.returncode, run.stdout.split()) == (0, ["'131072'"] * 3), run.stderr


EMBEDDER = """
import asyncio
from pathlib import Path
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

async def main():
    async with Pool(SandboxSpec(timeout_s=20), 1) as pool, pool.acquire() as sandbox:
        await sandbox.exec(["/bin/sh", "-c", "setsid sleep 1000 &"])
        pids = [process.pid for process in (await sandbox.inspect()).processes]
        zygote = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1]
        print(zygote, *pids, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_killed_embedder_takes_zygote_and_sandbox_along():
    with subprocess.Popen([sys.executable, "-c", EMBEDDER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as embedder:
        try:
            pids = [int(pid) for pid in embedder.stdout.readline().split()]
            assert len(pids) == 4, "zygote, agent, interpreter, sleep"
            assert all(map(runs, pids))
        finally:
            embedder.kill()
    give_up_s = time.monotonic() + 60
    while any(map(runs, pids)):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


async def test_a_zygote_whose_cgroup_cannot_be_read_is_not_used_again(zygotes, monkeypatch):
    async with made(zygotes) as first:
        pid = zygote_pid(first)
        if first._process.group is None:
            pytest.skip("there is no cgroup here")
        monkeypatch.setattr(Group, "count", unreadable)
    async with made(zygotes) as second:
        assert zygote_pid(second) != pid
    assert not runs(pid)


def unreadable(group: Group) -> int:
    raise OSError(24, "Too many open files")


async def test_the_agent_imports_nothing_that_guests_have_written(zygotes):
    plant = """
    import os, sys
    for name in {*sys.stdlib_module_names, "sandboxes", "encodings"}:
        with open(f"/work/{name}.py", "w") as file:
            file.write("import posix; posix.close(posix.open(f'/tmp/ran-{posix.getpid()}', posix.O_CREAT))")
    """
    async with made(zygotes) as sandbox:
        await cell_output(sandbox, plant)
        await sandbox.write_file("a/b", "\udcff".encode("utf-8", "surrogateescape"))
        with pytest.raises(OSError, match="a"):
            await sandbox.read_file("a")
        snapshot = await sandbox.snapshot()
        await sandbox.read_tree(["."])
        await sandbox.run_python("import this", timeout_s=0.5)
        await sandbox.exec(["/nowhere"])
        await sandbox.restore(snapshot)
        ran = (await shell(sandbox, "ls /tmp")).stdout.split()
        assert "ran-1" not in ran


def test_what_a_zygote_prepares_does_not_lead_to_the_files_of_guests():
    """It would lead the agent there too, who is a fork of it."""
    code = "from sandboxes.backends.namespaces.inside import guest; guest.prepare(); print('/work' in guest.sys.path)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (run.stdout, run.stderr) == ("False\n", "")
