"""What every backend promises of a sandbox that is stopped because of what it did, and of a look into a sandbox."""

# ruff: noqa: ASYNC110  what happens in a sandbox sets no event: one has to look again

import asyncio
import os

import pytest

from sandboxes.interface import (
    INSPECTED_FILES,
    Inspection,
    Sandbox,
    SandboxFrozen,
    SandboxLost,
    SnapshotUnavailable,
)
from sandboxes.opened import open_sandbox
from tests.sandboxes.asking import cell_output, host_processes, shell, until_running

SPIN = "while True: pass"


async def looked_twice(sandbox: Sandbox) -> tuple[Inspection, Inspection]:
    """0.3 s apart; again for a while if they differ: a busy kernel takes its time with whom it was ending already."""
    for _ in range(10):
        first = await sandbox.inspect()
        await asyncio.sleep(0.3)
        second = await sandbox.inspect()
        if first == second:
            break
    return first, second


async def started(sandbox: Sandbox, name: str) -> None:
    """Wait for a file that a program in the sandbox makes."""
    while name not in [file.path for file in (await sandbox.inspect()).files]:
        await asyncio.sleep(0.01)


async def test_nothing_runs_in_a_frozen_sandbox(sandbox):
    counting = asyncio.create_task(
        shell(sandbox, "n=0; while true; do n=$((n+1)); echo $n > /work/n; done", timeout_s=60)
    )
    spinning = asyncio.create_task(sandbox.run_python(SPIN, timeout_s=60))
    await started(sandbox, "/work/n")
    await sandbox.freeze("it mines")
    before, after = await looked_twice(sandbox)
    assert before == after
    assert len(before.processes) >= 3
    assert all(
        isinstance(end, SandboxFrozen) for end in await asyncio.gather(counting, spinning, return_exceptions=True)
    )


async def test_a_fork_storm_does_not_outrun_the_freeze(sandbox):
    storm = """
import os
open("/work/begun", "w").close()
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
"""
    for _ in range(2):
        await sandbox.exec(["/usr/bin/python3", "-S", "-c", storm])
    await started(sandbox, "/work/begun")
    await sandbox.freeze("it forks")
    before, after = await looked_twice(sandbox)
    assert [(process.pid, process.cpu_seconds) for process in before.processes] == [
        (process.pid, process.cpu_seconds) for process in after.processes
    ]


async def test_calls_under_way_and_later_ones_say_why(sandbox):
    calls = [
        asyncio.create_task(call)
        for call in (sandbox.run_python(SPIN), sandbox.run_python("'waits'"), shell(sandbox, "sleep 60", timeout_s=60))
    ]
    await asyncio.sleep(0.2)
    await sandbox.freeze("it mines")
    await sandbox.freeze("a second reason")
    for call in (
        *calls, sandbox.run_python("1"), sandbox.set_prelude("1"), sandbox.exec(["true"]), sandbox.read_file("x"),
        sandbox.write_file("x", b""), sandbox.reset(),
    ):  # fmt: skip
        with pytest.raises(SandboxFrozen, match="^it mines$"):
            await call
    with pytest.raises((SandboxFrozen, SnapshotUnavailable)):
        await sandbox.snapshot()
    assert sandbox.frozen == "it mines"


async def test_its_time_limits_do_not_lose_a_frozen_sandbox(sandbox):
    running = asyncio.create_task(sandbox.run_python(SPIN, timeout_s=1.5))
    await asyncio.sleep(0.1)
    await sandbox.freeze("it mines")
    with pytest.raises(SandboxFrozen):
        await running
    await asyncio.sleep(1.6)
    assert sandbox.alive
    assert (await sandbox.inspect()).frozen == "it mines"


async def test_a_freeze_that_is_cancelled_twice_is_still_one(sandbox):
    await sandbox.run_python("1")
    freezing = asyncio.create_task(sandbox.freeze("it mines"))
    await asyncio.sleep(0)
    freezing.cancel()
    await asyncio.sleep(0)
    freezing.cancel()
    await asyncio.gather(freezing, return_exceptions=True)
    with pytest.raises(SandboxFrozen):
        await sandbox.run_python("1")
    before, after = await looked_twice(sandbox)
    assert before == after


async def test_freezing_from_several_sides_at_once_is_fine(sandbox):
    await asyncio.gather(*(sandbox.freeze(f"reason {number}") for number in range(5)))
    assert sandbox.frozen == "reason 0"


async def test_a_frozen_sandbox_can_be_closed_and_leaves_no_process(sandbox):
    sign = f"{os.getpid()}654.32"
    sleeping = asyncio.create_task(shell(sandbox, f"setsid sleep {sign} & trap '' TERM; sleep {sign}", timeout_s=60))
    await until_running(sign, 2)
    await sandbox.freeze("it sleeps")
    with pytest.raises(SandboxFrozen):
        await sleeping
    await asyncio.gather(sandbox.close(), sandbox.close())
    assert host_processes(sign.encode()) == []
    assert (sandbox.alive, sandbox.frozen) == (False, "it sleeps")
    for call in (sandbox.run_python("1"), sandbox.inspect()):
        with pytest.raises(SandboxFrozen, match="it sleeps"):
            await call


async def test_closing_while_it_is_being_frozen_closes_it(sandbox):
    freezing = asyncio.create_task(sandbox.freeze("it mines"))
    await asyncio.sleep(0)
    await sandbox.close()
    await freezing
    assert not sandbox.alive


async def test_a_sandbox_that_is_gone_stays_gone(sandbox):
    await sandbox.close()
    await sandbox.freeze("too late")
    assert sandbox.frozen is None
    for call in (sandbox.run_python("1"), sandbox.inspect()):
        with pytest.raises(SandboxLost):
            await call


async def test_a_sandbox_that_is_frozen_while_it_is_reset_is_frozen(sandbox):
    await sandbox.write_file("f", b"x")
    resetting = asyncio.create_task(sandbox.reset())
    await asyncio.sleep(0)
    await sandbox.freeze("it mines")
    with pytest.raises(SandboxFrozen):
        await resetting


# -- looking ---------------------------------------------------------------------------------------


async def test_an_inspection_shows_processes_and_files(sandbox):
    running = asyncio.create_task(
        shell(sandbox, "echo 12345 > /work/f; mkdir /tmp/d; ln -s /etc /tmp/l; exec sleep 54321")
    )
    while ("sleep 54321", "S") not in [
        (process.command, process.state) for process in (await sandbox.inspect()).processes
    ]:
        await asyncio.sleep(0.01)
    inspection = await sandbox.inspect()
    assert {(file.path, file.kind) for file in inspection.files} == {
        ("/work/f", "file"),
        ("/tmp/d", "folder"),
        ("/tmp/l", "link"),
    }
    assert next(file.size_bytes for file in inspection.files if file.path == "/work/f") == 6
    assert (inspection.frozen, inspection.complete) == (None, True)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_processor_time_is_seen(sandbox):
    await cell_output(sandbox, "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
    assert max(process.cpu_seconds for process in (await sandbox.inspect()).processes) >= 0.25


async def test_hostile_names_are_shown_without_harm(sandbox):
    await cell_output(
        sandbox,
        r"""
        import os, ctypes
        for name in (b"\x1b[2J", b"a\nb", b"\xff\xfe", b"n" * 255, "\u202egnp".encode()):
            os.close(os.open(b"/work/" + name, os.O_CREAT))
        os.mkfifo("/work/fifo")
        for target in ("/", "/proc/self/root", "..", "/work/loop"):
            os.symlink(target, "/work/" + ("loop" if "loop" in target else "to-" + str(len(target))))
        os.spawnve(os.P_NOWAIT, "/bin/sleep", ["sl\x1b[31m\neep", "60"] , {})
        None
        """,
    )
    inspection = await sandbox.inspect()
    texts = [file.path for file in inspection.files] + [process.command for process in inspection.processes]
    assert all(" " <= letter <= "~" for text in texts for letter in text)
    assert {file.path for file in inspection.files if file.kind == "link"} == {
        "/work/to-1", "/work/to-15", "/work/to-2", "/work/loop",
    }  # fmt: skip
    assert {file.path.split("/")[1] for file in inspection.files} == {"work"}, "no link was followed"


async def test_an_inspection_is_bounded(sandbox):
    await cell_output(
        sandbox,
        f"""
        import os
        for number in range({INSPECTED_FILES + 100}): open(f"/tmp/{{number}}", "w").close()
        os.chdir("/work")
        for _ in range(60): os.mkdir("dd"); os.chdir("dd")
        """,
    )
    inspection = await sandbox.inspect()
    assert len(inspection.files) <= INSPECTED_FILES
    assert not inspection.complete


async def test_every_inspection_says_which_limits_are_in_force(sandbox):
    assert (await sandbox.inspect()).limits in ("cgroup", "prlimit")


# -- names -----------------------------------------------------------------------------------------


async def test_each_user_of_a_sandbox_has_a_name_of_its_own(sandbox, spec):
    names = [sandbox.name]
    for _ in range(3):
        await sandbox.run_python("1")
        assert sandbox.name == names[-1]
        await sandbox.reset()
        names.append(sandbox.name)
    other = await open_sandbox(spec)
    await other.close()
    assert len({*names, other.name}) == 5
