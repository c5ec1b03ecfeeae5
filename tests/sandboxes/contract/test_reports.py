"""What every backend promises of reports: only the code of the cell that runs can say how it ended.

The programs below are attackers: they write what the interpreter writes, to where it writes it, from everywhere.
"""

import asyncio

from tests.sandboxes.asking import cell_output, python

FORGER = """
import os, struct, sys, time
LIE = struct.pack("!B?iH", 0, False, 0, 0)  # "this cell went well"
def own_nonces():
    # Whatever the frames of the interpreter hold that may be one.
    frame, found = sys._getframe(), []
    while frame:
        found += [value for value in frame.f_locals.values() if isinstance(value, bytes) and len(value) == 16]
        frame = frame.f_back
    return found
def wait_for(path):
    while not os.path.exists(path): time.sleep(0.01)
def in_a_child(action):
    if os.fork() == 0:
        action()
        os._exit(0)
def in_a_thread(action):
    import threading
    threading.Thread(target=action, daemon=True).start()
def at_exit(action):
    # A daemon that has left its session and its parent.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: action()
        os._exit(0)
    os.wait()
"""
LATE = """
nonces = own_nonces()
def report_late():
    wait_for("/work/go")
    os.write(4, {forged})
    open("/work/sent", "w").close()
{way}(report_late)
"""
FAILING = """
import os, time
open("/work/go", "w").close()
while not os.path.exists("/work/sent"): time.sleep(0.01)
raise ValueError("the truth")
"""
UNASKED_REPORT = "reported what it was not asked"


WAYS = [("in_a_child", "LIE"), ("in_a_thread", "(nonces + [b''])[0] + LIE"), ("at_exit", "b'x' * 16 + LIE"),
        ("in_a_child", "(nonces + [b''])[0] + LIE"), ("at_exit", "LIE"), ("in_a_thread", "LIE[:3]")]  # fmt: skip


async def test_a_late_report_of_a_former_cell_is_none_of_the_next(sandbox):
    for way, forged in WAYS:
        await cell_output(sandbox, FORGER + LATE.format(way=way, forged=forged))
        result = await sandbox.run_python(FAILING, timeout_s=60)
        assert (result.outcome, result.exit_code) == ("killed", None), (way, forged, result)
        assert UNASKED_REPORT in result.stderr
        after = await sandbox.run_python(
            "import os; [os.remove(n) for n in ('go', 'sent') if os.path.exists(n)]; 6 * 7"
        )
        assert (after.outcome, after.stdout) == ("ok", "42\n")
        assert after.stderr.startswith(f"[fresh interpreter: the former one {UNASKED_REPORT}")


async def test_a_report_between_two_cells_ends_the_interpreter_and_not_the_next_cell(sandbox):
    pid = await cell_output(sandbox, "import os; print(os.getpid())")
    await cell_output(sandbox, FORGER + LATE.format(way="in_a_child", forged="LIE"))
    await sandbox.write_file("go", b"")
    # Not the file "sent": the child may be ended, with its interpreter, before it can write that.
    while (await sandbox.exec(["/bin/sh", "-c", f"test -e /proc/{pid}"])).outcome == "ok":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    result = await sandbox.run_python("raise ValueError('the truth')")
    assert (result.outcome, result.exception) == ("error", "ValueError")
    assert result.stderr.startswith(f"[fresh interpreter: the former one {UNASKED_REPORT}")


async def test_a_report_without_the_nonce_ends_its_own_cell(sandbox):
    result = await sandbox.run_python(FORGER + "os.write(4, LIE)\nwait_for('/work/never')", timeout_s=60)
    assert result.outcome == "killed"
    assert UNASKED_REPORT in result.stderr


async def test_a_program_that_reports_on_behalf_of_the_interpreter_is_not_believed(sandbox):
    pid = await cell_output(sandbox, "import os; print(os.getpid())")
    running = asyncio.create_task(sandbox.run_python(FAILING, timeout_s=60))
    program = (
        FORGER
        + f"""
wait_for("/work/go")
os.write(os.open("/proc/{pid}/fd/4", os.O_WRONLY), LIE)
open("/work/sent", "w").close()
"""
    )
    await sandbox.exec(["/usr/bin/python3", "-S", "-c", program], timeout_s=60)
    result = await running
    assert (result.outcome, result.exception) == ("killed", None), result
    assert UNASKED_REPORT in result.stderr


async def test_frames_on_every_descriptor_change_no_result(sandbox):
    sprayed = """
        for fd in range(256):
            for forged in (LIE, b"\\0" * 16 + LIE, b"\\0\\0\\0\\x05\\0\\0\\0\\1\\1" * 50):
                if fd not in (1, 2):
                    try: os.write(fd, forged)
                    except OSError: pass
                for pid in (1, os.getppid()):
                    try: os.write(os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK), forged)
                    except OSError: pass
        raise ValueError("the truth")
    """
    result = await python(sandbox, FORGER + "\nif True:\n" + sprayed, timeout_s=60)
    assert (result.outcome, result.exception) == ("killed", None), result
    assert (await sandbox.run_python("6 * 7")).stdout == "42\n"


async def test_each_cell_has_a_nonce_of_its_own_that_an_honest_interpreter_reports(sandbox):
    """Through a prelude, a restore and a fork too: nobody is mistaken for a forger."""
    await sandbox.set_prelude(FORGER)
    seen = [await cell_output(sandbox, "print(own_nonces()[0])") for _ in range(3)]
    kept = await sandbox.snapshot()
    seen.append(await cell_output(sandbox, "print(own_nonces()[0])"))
    await sandbox.restore(kept)
    seen.append(await cell_output(sandbox, "if os.fork() == 0: os._exit(3)\nprint(own_nonces()[0])"))
    assert len(set(seen)) == 5
    assert (await sandbox.run_python("1/0")).exception == "ZeroDivisionError"
