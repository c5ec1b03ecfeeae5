"""What every backend promises of reset, close and cancellation."""

# ruff: noqa: ASYNC110  what happens in a sandbox sets no event: one has to look again

import asyncio
import gc
import os

import pytest

from sandboxes.interface import SandboxLost
from sandboxes.opened import open_sandbox, opened
from tests.sandboxes.asking import host_processes, python, shell, until_running


async def test_reset_leaves_no_variable_file_or_process(sandbox):
    await python(
        sandbox,
        """
        import os, subprocess
        x = 1
        os.makedirs("/work/a/b/c"); os.chmod("/work/a/b", 0)
        open("/tmp/t", "w").write("t"); os.symlink("/usr", "/work/link"); os.mkfifo("/tmp/fifo")
        os.chmod("/work", 0o700)
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        """,
    )
    await sandbox.reset()
    seen = await python(
        sandbox,
        """
        import os
        print("x" in globals(), os.listdir("/work"), os.listdir("/tmp"), oct(os.stat("/work").st_mode))
        print(len([p for p in os.listdir("/proc") if p.isdigit()]), os.path.isdir("/usr/bin"))
        """,
    )
    assert seen.stdout == "False [] [] 0o40755\n2 True\n"


async def test_reset_says_nothing_of_the_former_users_interpreter(sandbox):
    await sandbox.run_python("while True: pass", timeout_s=0.2)
    await sandbox.reset()
    assert (await sandbox.run_python("1")).stderr == ""


async def test_every_interpreter_begins_with_what_the_first_one_had(sandbox):
    """Those after a reset are made of what is ready beforehand, the first one of nothing."""
    seen = []
    for _ in range(3):
        begun = await python(
            sandbox,
            """
            import gc, os, sys
            print(sorted(sys.modules), sorted(vars()), sorted(vars(sys.modules["builtins"])), sys.argv, sys.path)
            print(__name__, gc.isenabled(), os.listdir("/proc/self/fd"), os.getcwd(), sys.stdin.read())
            streams = (sys.stdin, sys.stdout, sys.stderr)
            print([(stream.encoding, stream.errors, stream.line_buffering) for stream in streams])
            """,
        )
        seen.append(begun.stdout + begun.stderr)
        await sandbox.reset()
    assert seen[0] == seen[1] == seen[2]
    assert "Traceback" not in seen[0]


async def test_reset_ends_programs_under_way(sandbox):
    seconds = f"{os.getpid()}876.54"
    program = asyncio.create_task(shell(sandbox, f"exec sleep {seconds}", timeout_s=60))
    await until_running(seconds)
    await sandbox.reset()
    assert (await program).outcome == "killed"


async def test_a_sandbox_that_cannot_be_reset_is_lost(sandbox):
    # Folders nested so deep that no path reaches the last one.
    await sandbox.run_python("import os\nfor _ in range(3000):\n  os.mkdir('dd'); os.chdir('dd')")
    with pytest.raises(SandboxLost, match="reset"):
        await sandbox.reset()
    assert not sandbox.alive


async def test_closing_twice_is_fine_and_every_later_call_is_lost(sandbox):
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    for call in (
        sandbox.run_python("1"),
        sandbox.exec(["true"]),
        sandbox.read_file("x"),
        sandbox.write_file("x", b""),
        sandbox.reset(),
    ):
        with pytest.raises(SandboxLost):
            await call


async def test_closing_while_code_runs_loses_that_call(sandbox):
    running = asyncio.create_task(sandbox.run_python("while True: pass"))
    await asyncio.sleep(0.2)
    await sandbox.close()
    with pytest.raises(SandboxLost):
        await running


async def test_close_leaves_no_process_and_no_descriptor(spec):
    await (await open_sandbox(spec)).close()  # what is made once per process (the spawner) is not counted
    gc.collect()  # what earlier tests left is not ours to count
    seconds = f"{os.getpid()}987.65"
    descriptors = [len(os.listdir("/proc/self/fd"))]
    while len(descriptors) == 1 or descriptors[-1] > descriptors[-2]:
        assert len(descriptors) < 6, "each sandbox leaves some; connections that are kept for all do not grow for ever"
        async with opened(spec) as sandbox:
            await shell(sandbox, f"sleep {seconds} & setsid sleep {seconds} &")
            await until_running(seconds, 2)
        assert host_processes(seconds.encode()) == []
        descriptors.append(len(os.listdir("/proc/self/fd")))


async def test_a_cancelled_program_is_dead_when_the_cancellation_arrives(sandbox):
    seconds = f"{os.getpid()}109.87"
    running = asyncio.create_task(shell(sandbox, f"echo begun > /tmp/begun; sleep {seconds}", timeout_s=60))
    await until_running(seconds)
    running.cancel()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert host_processes(seconds.encode()) == []
    assert (await shell(sandbox, "cat /tmp/begun")).stdout == "begun\n"


async def test_a_cancelled_cell_leaves_a_fresh_interpreter(sandbox):
    await sandbox.run_python("x = 1")
    running = asyncio.create_task(sandbox.run_python("open('/tmp/begun', 'w')\nwhile True: pass", timeout_s=60))
    while (await shell(sandbox, "test -e /tmp/begun")).exit_code:
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    after = await sandbox.run_python("x")
    assert after.exception == "NameError"
    assert "was stopped" in after.stderr


async def test_a_cell_that_waited_for_another_is_cancelled_without_harm(sandbox):
    first = asyncio.create_task(sandbox.run_python("import time; time.sleep(0.4); 'first'"))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(sandbox.run_python("'second'"))
    await asyncio.sleep(0.1)
    second.cancel()
    assert (await first).stdout == "'first'\n"
    assert (await sandbox.run_python("'third'")).stdout == "'third'\n"


async def test_opened_closes_although_its_user_is_cancelled_twice(spec):
    sandboxes = []

    async def user():
        async with opened(spec) as sandbox:
            sandboxes.append(sandbox)
            await asyncio.sleep(60)

    task = asyncio.create_task(user())
    while not sandboxes:
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(SandboxLost):
        await sandboxes[0].run_python("1")
