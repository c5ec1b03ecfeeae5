"""What every backend promises of a program that runs alone: nobody else is alive, and the kernel says how it ended."""

import asyncio
import textwrap

import pytest

from tests.sandboxes.asking import cell_output, python, shell

PYTHON = ["/usr/bin/python3", "-I", "-S", "-c"]
OTHERS = """
import os
own = {1, os.getpid()}
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own))
"""
SURVIVORS = {
    "a child that was left behind": "subprocess.Popen(['/bin/sleep', '600'])",
    "a daemon": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                for fd in (0, 1, 2): os.close(fd)
                while True: time.sleep(600)
            os._exit(0)
    """,
    "who is stopped": """
        if os.fork() == 0:
            os.setsid()
            while True: os.kill(os.getpid(), signal.SIGSTOP)
    """,
    "who hears no signal": """
        if os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            while True: time.sleep(600)
    """,
    "who forks without end": """
        if os.fork() == 0:
            os.setsid()
            while True:
                try:
                    if os.fork(): os._exit(0)
                except OSError: pass
    """,
    "forks everywhere": """
        if os.fork() == 0:
            while True:
                try: os.fork(); os.setsid()
                except OSError: pass
    """,
    "a child whose end nobody is told": """
        libc = __import__("ctypes").CDLL(None)
        if libc.syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], 0, 0, 0, 0, 0) == 0:
            while True: time.sleep(600)
    """,
    "threads": """
        import threading
        for _ in range(4): threading.Thread(target=time.sleep, args=(600,)).start()
    """,
    "who wakes the others": """
        if os.fork() == 0:
            os.setsid()
            while True:
                try: os.kill(-1, signal.SIGCONT)
                except OSError: pass
    """,
}
LEFT_BEHIND = 'setsid /usr/bin/python3 -S -c "$0" >/dev/null 2>&1 </dev/null & sleep 0.2'
LIAR = """
import sys, struct
frame = sys._getframe()
while "run_cell" not in frame.f_globals: frame = frame.f_back
frame.f_globals["run_cell"] = lambda *_: struct.pack("!B?iH", 0, False, 0, 0)
"""


async def test_nobody_else_is_alive(sandbox):
    for name, survivor in SURVIVORS.items():
        begin = "import os, signal, subprocess, time\nif True:\n" + survivor
        await python(sandbox, begin)
        # One after the other: who forks without end may leave no room for another program to start.
        await nobody_is_left(sandbox, name)
        await sandbox.exec(["/bin/sh", "-c", LEFT_BEHIND, textwrap.dedent(begin)])
        await nobody_is_left(sandbox, name)
        assert (await sandbox.run_python("6 * 7")).stdout == "42\n", name


async def nobody_is_left(sandbox, name):
    result = await sandbox.exec([*PYTHON, OTHERS], alone=True, timeout_s=60)
    assert (result.outcome, result.stdout) == ("ok", "[]\n"), (name, result)


async def test_its_exit_code_is_the_kernels_whatever_was_rewritten(sandbox):
    await python(sandbox, LIAR)
    assert (await sandbox.run_python("1/0")).outcome == "ok", (
        "an interpreter that was rewritten lies about its own cells"
    )
    for script, code, outcome in (("exit 0", 0, "ok"), ("exit 3", 3, "error"), ("kill -KILL $$", -9, "killed")):
        result = await sandbox.exec(["/bin/sh", "-c", script], alone=True)
        assert (result.outcome, result.exit_code) == (outcome, code)
    assert (await sandbox.run_python("1/0")).exception == "ZeroDivisionError"


async def test_an_interpreter_that_a_program_rewrote_in_its_memory_is_gone(sandbox):
    """``/proc/PID/mem`` of a process of the same user can be written, without ptrace."""
    where = await cell_output(sandbox, "decision = bytearray(b'wrong' * 100)\nimport ctypes, os\n"
                            "print(os.getpid(), ctypes.addressof(ctypes.c_char.from_buffer(decision)))")  # fmt: skip
    pid, address = where.split()
    rewrite = f"memory = open('/proc/{pid}/mem', 'r+b', 0); memory.seek({address}); memory.write(b'right' * 100)"
    await sandbox.exec([*PYTHON, rewrite])
    assert (await cell_output(sandbox, "print(decision[:5])")) == "bytearray(b'right')", (
        "if it cannot be done, docs are too modest"
    )
    checked = await sandbox.exec([*PYTHON, "raise SystemExit('decision' in globals())"], alone=True)
    assert (checked.outcome, checked.exit_code) == ("ok", 0)
    assert (await sandbox.run_python("decision")).exception == "NameError"


async def test_the_next_cell_is_told_and_has_its_prelude(sandbox):
    await sandbox.set_prelude("def double(x): return 2 * x")
    await sandbox.run_python("x = 1")
    assert (await sandbox.exec(["true"], alone=True)).outcome == "ok"
    after = await sandbox.run_python("double(4), 'x' in globals()")
    assert (after.outcome, after.stdout) == ("ok", "(8, False)\n")
    assert after.stderr.startswith(
        "[fresh interpreter: the former one was ended, because something had to be done alone"
    )


async def test_programs_under_way_are_killed_and_answered(sandbox):
    running = [asyncio.create_task(shell(sandbox, f": > /work/{n}; sleep 600", timeout_s=600)) for n in range(3)]
    while (await shell(sandbox, "test -e 0 -a -e 1 -a -e 2")).outcome != "ok":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await sandbox.exec([*PYTHON, OTHERS], alone=True)).stdout == "[]\n"
    assert [result.outcome for result in await asyncio.gather(*running)] == ["killed"] * 3


async def test_nobody_begins_before_it_ends(sandbox):
    watching = f"""
import os, time
open("/work/begun", "w").close()
for _ in range(30):
    {OTHERS.strip().replace(chr(10), "; ")}
    time.sleep(0.02)
"""
    alone = asyncio.create_task(sandbox.exec([*PYTHON, watching], alone=True, timeout_s=60))
    while "begun" not in [file.path.rpartition("/")[2] for file in (await sandbox.inspect()).files]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    cell, program = await asyncio.gather(sandbox.run_python("6 * 7"), shell(sandbox, "echo hi"))
    assert alone.done()
    assert (await alone).stdout == "[]\n" * 30
    assert (cell.stdout, program.stdout) == ("42\n", "hi\n")


async def test_the_copies_of_snapshots_are_processes_too_and_go(sandbox):
    await sandbox.run_python("x = 1")
    kept = await sandbox.snapshot()
    assert (await sandbox.exec([*PYTHON, OTHERS], alone=True)).stdout == "[]\n"
    with pytest.raises(ValueError, match="dropped"):
        await sandbox.restore(kept)
    await sandbox.snapshot()


async def test_a_cancelled_one_leaves_a_sandbox_of_use(sandbox):
    alone = asyncio.create_task(sandbox.exec(["/bin/sh", "-c", ": > begun; sleep 600"], alone=True, timeout_s=600))
    while "begun" not in [file.path.rpartition("/")[2] for file in (await sandbox.inspect()).files]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    alone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone
    assert (await sandbox.run_python("6 * 7")).stdout == "42\n"
    assert (await sandbox.exec([*PYTHON, OTHERS], alone=True)).stdout == "[]\n"


async def test_its_input_environment_and_time_are_as_ever(sandbox):
    result = await sandbox.exec(["/bin/sh", "-c", 'cat; echo "$K"'], stdin=b"in\n", env={"K": "v"}, alone=True)
    assert (result.outcome, result.stdout) == ("ok", "in\nv\n")
    assert (await shell(sandbox, "echo again")).stdout == "again\n"
    assert (await sandbox.exec(["sleep", "600"], alone=True, timeout_s=0.3)).outcome == "timeout"
