"""What is particular to sandboxes of namespaces: their processes on the host, their agent, their protocol."""

# ruff: noqa: ASYNC110, ASYNC220, PT012  processes on the host set no event: one has to look again

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandboxes.backends.namespaces import limits, probe, sockets
from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.cgroups.hierarchies import Found
from sandboxes.interface import SandboxLost, SandboxUnavailable
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import errno_of, host_processes, shell, starts_cancelled_anywhere, until_running

SPEC = SandboxSpec(timeout_s=10)
ROOT = Path(__file__).parents[4]


@pytest.fixture
async def sandbox():
    sandbox = await NamespaceSandbox.start(SPEC)
    yield sandbox
    await sandbox.close()


def first_process(sandbox: NamespaceSandbox) -> int:
    with open(f"/proc/self/fdinfo/{sandbox._process.init}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))


async def test_a_killed_agent_loses_the_sandbox_at_once(sandbox):
    running = asyncio.create_task(sandbox.run_python("while True: pass"))
    await asyncio.sleep(0.1)
    os.kill(first_process(sandbox), signal.SIGKILL)
    async with asyncio.timeout(60):
        with pytest.raises(SandboxLost, match="agent"):
            await running
    assert not sandbox.alive
    with pytest.raises(SandboxLost):
        await sandbox.run_python("1")


async def test_sockets_are_counted_from_the_first_request_until_a_reset(sandbox, monkeypatch):
    looked_at, number = [], sockets.number

    def counted(pid: int) -> int:
        looked_at.append(pid)
        return number(pid)

    async def looks() -> bool:
        looked_at.clear()
        await asyncio.sleep(3 * sockets.LOOK_S)
        return first_process(sandbox) in looked_at

    monkeypatch.setattr(sockets, "number", counted)
    assert not await looks(), "nobody has asked it for anything"
    for _ in range(2):
        await sandbox.exec(["true"])
        assert await looks(), "what a program left behind may go on"
        await sandbox.reset()
        assert not await looks()
    asked, resetting = sandbox._link.asked, asyncio.create_task(sandbox.reset())
    while sandbox._link.asked == asked:
        await asyncio.sleep(0)
    begun = asyncio.create_task(sandbox.exec(["true"]))
    await asyncio.gather(resetting, begun)
    assert begun.result().outcome == "ok"
    assert await looks(), "it began behind the reset, before that was answered"


async def test_a_host_that_stands_still_loses_no_sandbox(sandbox, monkeypatch):
    monkeypatch.setattr("sandboxes.backends.namespaces.sandbox.GRACE_S", 0.5)
    written = asyncio.create_task(sandbox.write_file("a", b"b"))
    await asyncio.sleep(0)  # it is asked
    time.sleep(1)  # noqa: ASYNC251  longer than the agent may take, which has answered long before

    await written

    assert await sandbox.read_file("a") == b"b"


async def test_a_killed_monitor_takes_the_sandbox_with_it(sandbox):
    sandbox._process.bubblewrap.monitor.kill()
    async with asyncio.timeout(60):
        with pytest.raises(SandboxLost):
            while True:
                await sandbox.run_python("1")


async def test_a_silent_agent_loses_the_sandbox_when_its_time_is_over(sandbox, monkeypatch):
    monkeypatch.setattr("sandboxes.backends.namespaces.sandbox.GRACE_S", 0.2)
    os.kill(first_process(sandbox), signal.SIGSTOP)
    with pytest.raises(SandboxLost, match="did not answer within"):
        await sandbox.run_python("1", timeout_s=0.1)
    await sandbox.close()


@pytest.mark.parametrize(
    "forged",
    [
        frames.LENGTH.pack(2**31),
        frames.LENGTH.pack(0),
        frames.reply(99, frames.RESULT),
        frames.reply(1, frames.RESULT, b"short"),
        frames.reply(1, frames.HELLO),
        frames.reply(1, 77, b"x" * 50),
        frames.reply(1, frames.RESULT, frames.RESULT_HEAD.pack(200, False, 0, False, 0.0, 0, 0, 0)),
        frames.reply(1, frames.RESULT, frames.RESULT_HEAD.pack(0, False, 0, False, float("nan"), 0, 0, 0)),
        frames.reply(1, frames.RESULT, frames.RESULT_HEAD.pack(0, False, 0, False, 1.0, 0, 5, 5) + b"123"),
        frames.reply(1, frames.RESULT, frames.RESULT_HEAD.pack(0, False, 0, False, 1.0, 900, 0, 0) + b"e" * 900),
    ],
)
async def test_a_reply_that_makes_no_sense_loses_the_sandbox(sandbox, forged):
    os.kill(first_process(sandbox), signal.SIGSTOP)  # so that ours is the only reply
    running = asyncio.create_task(sandbox.run_python("1"))
    await asyncio.sleep(0.05)
    sandbox._link.data_received(forged)
    with pytest.raises(SandboxLost):
        await running
    assert not sandbox.alive


async def test_a_reply_is_understood_however_it_is_cut(sandbox):
    received = sandbox._link.data_received
    sandbox._link.data_received = lambda data: [received(data[at : at + 1]) for at in range(len(data))]
    assert (await sandbox.run_python("'a' * 20")).stdout == repr("a" * 20) + "\n"


async def test_the_host_buffers_no_more_of_a_flood_than_the_limit(sandbox):
    seen = 0
    received = sandbox._link.data_received

    def counting(data: bytes) -> None:
        nonlocal seen
        seen += len(data)
        received(data)

    sandbox._link.data_received = counting
    assert (await sandbox.run_python("while True: print('x' * 10**6)")).outcome == "output"
    assert seen < 2 * SPEC.output_bytes + frames.OVERHEAD_BYTES


EMBEDDER = """
import asyncio, sys, threading
from sandboxes.opened import open_sandbox
from sandboxes.spec import SandboxSpec

async def main():
    sandboxes = [await open_sandbox(SandboxSpec()) for _ in range(3)]
    await asyncio.gather(*(
        sandbox.exec(["/bin/sh", "-c", "setsid sleep " + sys.argv[1] + " & sleep " + sys.argv[1]], timeout_s=60)
        for sandbox in sandboxes
    ))

asyncio.run(main())
"""


async def test_an_embedder_that_is_killed_leaves_no_process():
    sign = f"{os.getpid()}765.43"
    embedder = subprocess.Popen([sys.executable, "-c", EMBEDDER, sign], cwd=ROOT)
    try:
        await until_running(sign, 6)
    finally:
        embedder.kill()
        embedder.wait()
    async with asyncio.timeout(60):
        while host_processes(sign.encode()):
            await asyncio.sleep(0.05)


def test_a_sandbox_outlives_the_thread_that_asked_for_it():
    """``--die-with-parent`` follows the parent thread, so that must not be the caller's."""
    sandbox: list[NamespaceSandbox] = []

    def in_a_thread_that_ends() -> None:
        sandbox.append(asyncio.run(NamespaceSandbox.start(SPEC)))

    thread = threading.Thread(target=in_a_thread_that_ends)
    thread.start()
    thread.join()
    time.sleep(0.3)
    alive = sandbox[0]._process.bubblewrap.monitor.poll() is None
    sandbox[0]._process.kill()
    asyncio.run(sandbox[0]._process.gone())
    assert alive


async def test_on_the_host_a_sandbox_of_root_is_nobody_in_particular(sandbox):
    status = Path(f"/proc/{first_process(sandbox)}/status").read_text()
    uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))
    assert uid != 0
    if os.geteuid() == 0:
        assert uid >= limits.HOST_IDS_FROM
    else:
        assert uid == os.geteuid()


ORDINARY = """
import asyncio, os
from sandboxes.backends.namespaces import probe
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

asyncio.run(probe.agent_code())  # while we may read the files of this checkout
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)

async def main():
    async with opened(SandboxSpec(processes=4)) as sandbox:
        print((await sandbox.run_python("6 * 7")).stdout)
        bomb = "import os\\nwhile True:\\n  try: os.fork()\\n  except OSError: pass"
        print((await sandbox.run_python(bomb, timeout_s=0.5)).outcome)
        await sandbox.reset()
        print((await sandbox.run_python("'after'")).stdout)

asyncio.run(main())
"""


def test_an_ordinary_user_can_make_sandboxes():
    run = subprocess.run([sys.executable, "-c", ORDINARY], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (run.returncode, run.stdout.split()) == (0, ["42", "timeout", "'after'"]), run.stderr


async def test_a_machine_without_bubblewrap_is_told_how_to_get_it(monkeypatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **options: None if name == "bwrap" else which(name, **options))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        await NamespaceSandbox.start(SPEC)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_bubblewrap_complains_of_is_passed_on(monkeypatch):
    monkeypatch.setattr("sandboxes.backends.namespaces.arguments.SANDBOX_PYTHON", "/usr/bin/no-python")
    with pytest.raises(SandboxUnavailable, match=r"no-python.*install"):
        await NamespaceSandbox.start(SPEC)


@pytest.mark.parametrize(
    ("complaint", "remedy"),
    [
        ("bwrap: No permissions to create new namespace, likely because ...", "sysctl"),
        ("bwrap: setting up uid map: Permission denied", "sysctl"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("bwrap: Unknown option --size", "0.7 or later"),
        ("", "without a word"),
    ],
)
def test_each_complaint_has_its_remedy(complaint, remedy):
    assert remedy in str(probe.unavailable(complaint))


@pytest.mark.parametrize("network", ["none", "watched"])
async def test_a_sandbox_that_does_not_answer_is_not_said_to_have_ended(monkeypatch, network):
    monkeypatch.setattr("sandboxes.backends.namespaces.sandbox.START_S", 0.0001)
    with pytest.raises(SandboxUnavailable, match=r"did not answer within 0.0001 s: the machine"):
        await NamespaceSandbox.start(SPEC.model_copy(update={"network": network}))


async def test_a_start_that_is_cancelled_anywhere_leaves_nothing():
    await starts_cancelled_anywhere(SPEC, pause_s=0.001)


async def test_many_sandboxes_live_at_once():
    sandboxes = await asyncio.gather(*(NamespaceSandbox.start(SPEC) for _ in range(64)))
    try:
        results = await asyncio.gather(*(sandbox.run_python(f"{n}") for n, sandbox in enumerate(sandboxes)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(64)]
    finally:
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))


async def test_without_network_there_is_no_way_to_anything(sandbox):
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connect = "s = socket.create_connection(({!r}, {}), timeout=3)"
    assert await errno_of(sandbox, connect.format("127.0.0.1", port)) == "ECONNREFUSED"
    assert await errno_of(sandbox, connect.format("192.0.2.1", 80)) == "ENETUNREACH"
    datagram = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('198.51.100.1', 53))"
    assert await errno_of(sandbox, datagram) == "ENETUNREACH"
    server.close()
    assert (await shell(sandbox, "cat /proc/net/dev")).stdout.count(":") == 1, "only its own loopback"


async def test_a_fault_of_the_spawner_is_the_callers_and_not_the_end_of_it(monkeypatch):
    def impossible() -> str:
        raise LookupError("unknown encoding: ascii")

    with monkeypatch.context() as patch:
        patch.setattr("sandboxes.owner.mark", impossible)
        patch.setattr("sandboxes.cgroups.group.found", Found)
        async with asyncio.timeout(60):
            with pytest.raises(LookupError):
                await NamespaceSandbox.start(SPEC)
    await (await NamespaceSandbox.start(SPEC)).close()


async def test_a_name_that_is_no_utf_8_is_taken_byte_by_byte(sandbox):
    await sandbox.write_file("\udcff\udcfe", b"content")
    assert (await shell(sandbox, "ls | od -An -tx1")).stdout == " ff fe 0a\n"
    assert await sandbox.read_file("\udcff\udcfe") == b"content"


async def test_signals_that_the_embedder_ignores_are_not_ignored_by_guests():
    """As under nohup; an ignored signal survives fork and exec."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with opened(SandboxSpec(timeout_s=10)) as sandbox:
            reported = await sandbox.exec(["/bin/sh", "-c", "kill -HUP $$"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (reported.outcome, reported.exit_code) == ("killed", -signal.SIGHUP)
