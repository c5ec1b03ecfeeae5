"""A snapshot is a moment to which a sandbox can be set back.  Each test is one claim, made against a real sandbox."""

# ruff: noqa: ASYNC110  what happens in a sandbox sets no event: one has to look again

import asyncio

import pytest

from sandboxes.interface import SandboxLost, Snapshot, SnapshotUnavailable
from sandboxes.opened import opened
from sandboxes.pool import Pool
from tests.sandboxes.asking import cell_output, printed

# -- the interpreter -------------------------------------------------------------------------------


async def test_variables_functions_and_imports_are_as_they_were(sandbox):
    await cell_output(sandbox, "import math\nnumbers = [1]\ndef f(x): return math.sqrt(x) + len(numbers)")
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, "numbers.append(2); new = 1; del math\ndef f(x): return 'changed'")
    await sandbox.restore(snapshot)
    assert await cell_output(sandbox, "numbers, f(9), 'new' in globals()") == "([1], 4.0, False)"


async def test_a_snapshot_changes_nothing_by_itself(sandbox):
    await cell_output(sandbox, "x = [1]; import os; pid = os.getpid(); open('f', 'w').write('a')")
    await sandbox.snapshot()
    assert await cell_output(sandbox, "x, pid == os.getpid(), open('f').read()") == "([1], True, 'a')"


async def test_it_can_be_restored_many_times(sandbox):
    await cell_output(sandbox, "x = 0")
    snapshot = await sandbox.snapshot()
    for number in range(12):
        assert await cell_output(sandbox, f"x += {number}; x") == str(number)
        await sandbox.restore(snapshot)


async def test_an_older_moment_and_then_a_newer_one(sandbox):
    await cell_output(sandbox, "x = 1; open('/work/f', 'w').write('one')")
    older = await sandbox.snapshot()
    await cell_output(sandbox, "x = 2; open('/work/f', 'w').write('two'); open('/tmp/g', 'w').write('g')")
    newer = await sandbox.snapshot()
    await cell_output(sandbox, "x = 3")
    for snapshot, expected in ((older, "(1, 'one', [])"), (newer, "(2, 'two', ['g'])"), (older, "(1, 'one', [])")):
        await sandbox.restore(snapshot)
        assert await cell_output(sandbox, "import os; x, open('/work/f').read(), os.listdir('/tmp')") == expected


async def test_a_snapshot_of_a_restored_moment_is_one_like_any_other(sandbox):
    await cell_output(sandbox, "x = 1")
    first = await sandbox.snapshot()
    await sandbox.restore(first)
    await cell_output(sandbox, "x += 1")
    second = await sandbox.snapshot()
    await sandbox.drop(first)
    await cell_output(sandbox, "x += 1")
    await sandbox.restore(second)
    assert await cell_output(sandbox, "x") == "2"


async def test_random_numbers_after_a_restore_are_those_that_would_have_come(sandbox):
    await cell_output(sandbox, "import random; random.seed(7); random.gauss(0, 1)")
    snapshot = await sandbox.snapshot()
    first = await cell_output(sandbox, "random.gauss(0, 1), random.random()")
    for _ in range(2):
        await sandbox.restore(snapshot)
        assert await cell_output(sandbox, "random.gauss(0, 1), random.random()") == first


async def test_cells_are_numbered_on_from_the_snapshot(sandbox):
    await cell_output(sandbox, "1")
    snapshot = await sandbox.snapshot()
    before = (await sandbox.run_python("1/0")).stderr
    await sandbox.restore(snapshot)
    assert (await sandbox.run_python("1/0")).stderr == before


async def test_restore_after_a_time_out_brings_the_variables_back(sandbox):
    await sandbox.set_prelude("def helper(): return 'prelude'")
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    assert (await sandbox.run_python("while True: pass", timeout_s=0.2)).outcome == "timeout"
    await sandbox.restore(snapshot)
    result = await sandbox.run_python("x, helper()")
    assert (result.stdout, result.stderr) == ("(1, 'prelude')\n", "")


async def test_a_time_out_after_a_restore_still_leads_to_a_fresh_interpreter_with_the_prelude(sandbox):
    await sandbox.set_prelude("def helper(): return 'prelude'")
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    await sandbox.restore(snapshot)
    assert (await sandbox.run_python("while True: pass", timeout_s=0.2)).outcome == "timeout"
    result = await sandbox.run_python("'x' in globals(), helper()")
    assert result.stdout == "(False, 'prelude')\n"
    assert result.stderr.startswith("[fresh interpreter: ")
    await sandbox.restore(snapshot)
    assert await cell_output(sandbox, "x") == "1"


async def test_restore_after_a_memory_error(sandbox, spec):
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    assert (await sandbox.run_python(f"bytearray({spec.memory_mib} * 2**20)")).outcome == "memory"
    await sandbox.restore(snapshot)
    assert await cell_output(sandbox, "x") == "1"


async def test_the_state_after_a_time_out_is_a_moment_too(sandbox):
    await sandbox.run_python("while True: pass", timeout_s=0.2)
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, "x = 1")
    await sandbox.restore(snapshot)
    after = await sandbox.run_python("'x' in globals()")
    assert (after.stdout, after.stderr[:20]) == ("False\n", "[fresh interpreter: ")


async def test_an_unused_sandbox_is_a_moment_too(sandbox):
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, "x = 1; open('f', 'w').write('x')")
    await sandbox.restore(snapshot)
    assert await cell_output(sandbox, "import os; 'x' in globals(), os.listdir('/work')") == "(False, [])"


async def test_a_prelude_set_later_is_unset(sandbox):
    await sandbox.set_prelude("who = 'first'")
    snapshot = await sandbox.snapshot()
    await sandbox.set_prelude("who = 'second'")
    await sandbox.restore(snapshot)
    await sandbox.run_python("while True: pass", timeout_s=0.2)
    assert await cell_output(sandbox, "who") == "'first'"


async def test_the_limits_hold_for_a_restored_interpreter(sandbox, spec):
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    await sandbox.restore(snapshot)
    assert (await sandbox.run_python(f"bytearray({2 * spec.memory_mib} * 2**20)")).outcome == "memory"
    await sandbox.restore(snapshot)
    assert (await sandbox.run_python("while True: print('x' * 10**6)", timeout_s=60)).outcome == "output"
    await sandbox.restore(snapshot)
    assert (await sandbox.run_python("import os; os._exit(9)")).exit_code == 9
    await sandbox.restore(snapshot)
    assert (await sandbox.run_python("import ctypes; ctypes.string_at(0)")).exit_code == -11


async def test_of_threads_only_the_main_one_comes_back(sandbox):
    await cell_output(
        sandbox,
        """
        import threading, time
        ticks = []
        def tick():
            while True:
                ticks.append(1); time.sleep(0.01)
        threading.Thread(target=tick, daemon=True).start()
        """,
    )
    snapshot = await sandbox.snapshot()
    goes_on = "before = len(ticks)\nwhile len(ticks) == before: time.sleep(0.01)\nlen(ticks) > before"
    assert await cell_output(sandbox, goes_on) == "True"
    await sandbox.restore(snapshot)
    seen = await cell_output(
        sandbox, "before = len(ticks); time.sleep(0.1); len(ticks) > before, threading.active_count()"
    )
    assert seen == "(False, 1)"


# -- processes -------------------------------------------------------------------------------------


async def test_processes_started_since_are_gone(sandbox):
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True); None")
    program = asyncio.create_task(sandbox.exec(["sleep", "61"]))
    while "sleep 61" not in await printed(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"):
        await asyncio.sleep(0.01)
    await sandbox.restore(snapshot)
    assert (await program).outcome == "killed"
    assert "sleep" not in await printed(sandbox, "cat /proc/[0-9]*/comm")


async def test_a_program_under_way_is_not_disturbed_by_a_snapshot(sandbox):
    program = asyncio.create_task(printed(sandbox, "sleep 0.2; echo done"))
    await asyncio.sleep(0.05)
    await sandbox.snapshot()
    assert await program == "done\n"


async def test_user_code_sees_no_child_that_it_did_not_make(sandbox):
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    for _ in range(2):
        assert (await sandbox.run_python("import os; os.wait()")).exception == "ChildProcessError"
        await sandbox.restore(snapshot)


async def test_a_copy_cannot_be_made_without_room_for_its_process(spec):
    async with opened(spec.model_copy(update={"processes": 2})) as sandbox:
        await cell_output(sandbox, "x = 1")
        with pytest.raises(SnapshotUnavailable, match="processes"):
            await sandbox.snapshot()
        assert await cell_output(sandbox, "x") == "1"


async def test_dropping_frees_the_process_at_once(spec):
    async with opened(spec.model_copy(update={"processes": 3})) as sandbox:
        await cell_output(sandbox, "x = 1")
        for _ in range(30):
            snapshot = await sandbox.snapshot()
            await sandbox.restore(snapshot)
            await sandbox.drop(snapshot)
        assert await cell_output(sandbox, "x") == "1"


# -- files -----------------------------------------------------------------------------------------


LISTING = """
import os, stat
def listing(root):
    found = []
    for folder, folders, files in os.walk(root):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            at = os.lstat(path)
            what = stat.S_ISREG(at.st_mode) and open(path, 'rb').read()
            what = os.readlink(path) if stat.S_ISLNK(at.st_mode) else what
            found.append((path, oct(at.st_mode), what))
    return found
def both(): return listing('/work'), listing('/tmp'), oct(os.stat('/work').st_mode), oct(os.stat('/tmp').st_mode)
"""


async def test_files_are_as_they_were(sandbox):
    await cell_output(
        sandbox,
        LISTING
        + """
os.makedirs('/work/a/b'); open('/work/a/b/deep', 'w').write('deep'); os.chmod('/work/a', 0o750)
open('/work/changed', 'wb').write(bytes(range(256)) * 100); open('/work/same', 'w').write('same')
open('/work/deleted', 'w').write('d'); os.chmod('/work/deleted', 0o705)
open('/work/becomes_folder', 'w').write('f'); os.mkdir('/work/becomes_file')
os.symlink('same', '/work/link'); os.symlink('/nowhere', '/work/dangling'); os.mkfifo('/tmp/fifo')
open('/tmp/empty', 'w').close(); os.mkdir('/tmp/emptied'); open('/work/ü \\n', 'w').write('odd name')
before = both()
""",
    )
    snapshot = await sandbox.snapshot()
    await cell_output(
        sandbox,
        """
        import shutil
        with open('/work/changed', 'r+b') as f: f.seek(5000); f.write(b'!')
        os.unlink('/work/deleted'); shutil.rmtree('/work/a'); open('/work/a', 'w').write('now a file')
        os.unlink('/work/becomes_folder'); os.makedirs('/work/becomes_folder/x/y')
        os.rmdir('/work/becomes_file'); open('/work/becomes_file', 'w').write('f')
        os.unlink('/work/link'); os.symlink('changed', '/work/link'); os.chmod('/work/same', 0o600)
        os.makedirs('/tmp/new/a/b'); open('/tmp/new/a/b/c', 'w').write('c'); os.chmod('/tmp/new/a', 0)
        open('/tmp/empty', 'w').write('no more'); os.unlink('/tmp/fifo'); open('/tmp/emptied/f', 'w').close()
        os.chmod('/work', 0o700)
        """,
    )
    await sandbox.restore(snapshot)
    assert await cell_output(sandbox, "both() == before or print(both(), before)") == "True"


async def test_what_cannot_be_read_by_its_permissions_is_kept_too(sandbox):
    await cell_output(
        sandbox,
        """
        import os
        os.makedirs('/work/locked'); open('/work/locked/f', 'w').write('secret')
        os.chmod('/work/locked/f', 0); os.chmod('/work/locked', 0)
        """,
    )
    snapshot = await sandbox.snapshot()
    assert await printed(sandbox, "stat -c %a /work/locked") == "0\n"
    await cell_output(sandbox, "os.chmod('/work/locked', 0o700); os.unlink('/work/locked/f'); os.rmdir('/work/locked')")
    await sandbox.restore(snapshot)
    assert await printed(
        sandbox, "stat -c %a locked; chmod 700 locked; stat -c %a locked/f; chmod 600 locked/f; cat locked/f"
    ) == ("0\n0\nsecret")


async def test_links_are_not_followed_out_of_the_sandbox_files(sandbox):
    """Neither when it is kept (a link to a system folder) nor when it is put back (a folder became a link)."""
    await cell_output(sandbox, "import os; os.symlink('/usr/lib', 'lib'); os.mkdir('d'); open('d/f', 'w').write('f')")
    snapshot = await sandbox.snapshot()
    await cell_output(
        sandbox, "os.unlink('d/f'); os.rmdir('d'); os.symlink('/usr', 'd'); os.unlink('lib'); os.mkdir('lib')"
    )
    await sandbox.restore(snapshot)
    assert (
        await cell_output(sandbox, "os.readlink('lib'), open('d/f').read(), os.path.islink('d')")
        == "('/usr/lib', 'f', False)"
    )


async def test_a_disk_full_of_other_files_does_not_stand_in_the_way(sandbox, spec):
    fill = f"open('/work/{{}}', 'wb').write(os.urandom({spec.disk_mib} * 2**20 - 8192))"
    await cell_output(
        sandbox, f"import os, hashlib; {fill.format('old')}; digest = hashlib.md5(open('old', 'rb').read()).digest()"
    )
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, f"os.unlink('old'); {fill.format('new')}")
    await sandbox.restore(snapshot)
    assert (
        await cell_output(sandbox, "os.listdir(), hashlib.md5(open('old', 'rb').read()).digest() == digest")
        == "(['old'], True)"
    )


async def test_the_interpreter_stands_where_it_stood(sandbox):
    await cell_output(sandbox, "import os; os.mkdir('/work/here'); os.chdir('/work/here')")
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, "os.chdir('/tmp'); os.rmdir('/work/here')")
    await sandbox.restore(snapshot)
    assert (
        await cell_output(sandbox, "open('f', 'w').write('x'); os.getcwd(), os.listdir('/work/here')")
        == "('/work/here', ['f'])"
    )


async def test_snapshots_of_files_that_stay_the_same_cost_nothing_more(sandbox, spec):
    await cell_output(sandbox, f"import os; open('f', 'wb').write(os.urandom({spec.disk_mib} * 2**20))")
    for number in range(8):
        await cell_output(sandbox, f"x = {number}")
        await sandbox.snapshot()


async def test_too_much_to_keep_is_reported_and_changes_nothing(sandbox, spec):
    async def fill() -> None:
        await cell_output(sandbox, f"import os; open('f', 'wb').write(os.urandom({spec.disk_mib} * 2**20))")

    kept = []
    for _ in range(2):
        await fill()
        kept.append(await sandbox.snapshot())
    await fill()
    with pytest.raises(SnapshotUnavailable, match=f"{2 * spec.disk_mib} MiB"):
        await sandbox.snapshot()
    assert await cell_output(sandbox, "os.listdir()") == "['f']"
    await sandbox.drop(kept[0])
    await sandbox.snapshot()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("for n in range(10001): open(f'/tmp/{n}', 'w').close()", "too many files"),
        ("import os\nfor n in range(70): os.mkdir('d'); os.chdir('d')", "too deep"),
        ("for n in range(9):\n  with open(f'/work/{n}', 'w') as f: f.truncate(2 * 2**20)", "MiB of files"),
    ],
)
async def test_files_beyond_the_bounds_are_refused_with_the_reason(sandbox, code, reason):
    await cell_output(sandbox, code)
    with pytest.raises(SnapshotUnavailable, match=reason):
        await sandbox.snapshot()
    assert sandbox.alive


# -- what the code may do against it ---------------------------------------------------------------

KILL_OTHERS = (
    "import os\nfor p in os.listdir('/proc'):\n  if p.isdigit() and int(p) not in (1, os.getpid()): os.kill(int(p), 9)"
)


async def test_killing_the_frozen_copy_loses_the_sandbox_at_restore_and_not_before(sandbox):
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, KILL_OTHERS)
    assert await cell_output(sandbox, "x") == "1"
    async with asyncio.timeout(60):
        with pytest.raises(SandboxLost, match="set back"):
            await sandbox.restore(snapshot)
    assert not sandbox.alive


async def test_a_killed_copy_can_be_dropped_and_the_next_one_serves(sandbox):
    await cell_output(sandbox, "x = 1")
    killed = await sandbox.snapshot()
    await cell_output(sandbox, KILL_OTHERS)
    await sandbox.drop(killed)
    snapshot = await sandbox.snapshot()
    await sandbox.restore(snapshot)
    assert await cell_output(sandbox, "x") == "1"


@pytest.mark.parametrize("signal", ["SIGSTOP", "SIGINT", "SIGTERM"])
async def test_a_copy_that_does_not_answer_loses_the_sandbox_in_bounded_time(sandbox, signal):
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, f"import signal\n{KILL_OTHERS.replace('9)', f'signal.{signal})')}")
    async with asyncio.timeout(60):
        with pytest.raises(SandboxLost):
            await sandbox.restore(snapshot)


async def test_an_interpreter_that_poses_as_its_copy_is_not_believed(sandbox):
    await cell_output(
        sandbox,
        """
        import _socket, os
        def forged():
            _socket.socket(fileno=os.dup(5)).send(b'+')
            return 1
        os.fork = forged
        """,
    )
    with pytest.raises(SnapshotUnavailable, match="Protocol error"):
        await sandbox.snapshot()
    assert await cell_output(sandbox, "1") == "1"


async def test_an_interpreter_that_does_not_fork_cannot_be_kept_and_goes_on(sandbox):
    await cell_output(sandbox, "import os, time\nx = 1\nos.fork = lambda: time.sleep(3) or 1 / 0")
    async with asyncio.timeout(60):
        with pytest.raises(SnapshotUnavailable):
            await sandbox.snapshot()
    assert sandbox.alive


@pytest.mark.parametrize(
    "answer", ["b'+'", "b'-' + bytes(4)", "b'-' + b'x' * 4", "b''", "b'x' * 16", "b'x' * 70000", "bytes(16)"]
)
async def test_forged_answers_lose_the_sandbox_at_worst(sandbox, answer):
    """The interpreter answers instead of a copy, and then as often as it can."""
    await cell_output(
        sandbox,
        f"""
        import _socket, os
        def forged(self=None):
            for fd in range(5, 40):
                try: control = _socket.socket(fileno=os.dup(fd))
                except OSError: continue
                for _ in range(5):
                    try: control.send({answer}, _socket.MSG_DONTWAIT)
                    except OSError: pass
            return 1
        os.fork = forged
        x = 1
        """,
    )
    async with asyncio.timeout(60):
        try:
            snapshot = await sandbox.snapshot()
            await sandbox.restore(snapshot)
            await sandbox.run_python("x", timeout_s=1)
        except (SandboxLost, SnapshotUnavailable):
            return
        await sandbox.reset()
        assert await cell_output(sandbox, "'x' in globals()") == "False"


async def test_a_child_hidden_behind_a_frozen_copy_does_not_survive_a_time_out(sandbox):
    await cell_output(
        sandbox,
        """
        import os, time
        fork = os.fork
        setsid = os.setsid
        def hiding():
            setsid()
            if fork() == 0:
                time.sleep(1.0); open('/tmp/survived', 'w').close(); os._exit(0)
        os.setsid = hiding
        """,
    )
    await sandbox.snapshot()
    assert (await sandbox.run_python("while True: pass", timeout_s=0.2)).outcome == "timeout"
    await asyncio.sleep(1.1)
    assert await printed(sandbox, "ls /tmp") == ""


# -- life ------------------------------------------------------------------------------------------


async def test_a_sandbox_without_snapshots_says_how_to_get_them(spec):
    async with opened(spec.model_copy(update={"snapshots": False})) as sandbox:
        with pytest.raises(SnapshotUnavailable, match="snapshots = true"):
            await sandbox.snapshot()
        assert await cell_output(sandbox, "1") == "1"


async def test_more_than_eight_are_refused(sandbox):
    await cell_output(sandbox, "x = 1")
    kept = [await sandbox.snapshot() for _ in range(8)]
    with pytest.raises(ValueError, match="8"):
        await sandbox.snapshot()
    await sandbox.drop(kept[3])
    await sandbox.restore(await sandbox.snapshot())
    assert await cell_output(sandbox, "x") == "1"


async def test_a_dropped_or_foreign_snapshot_is_refused_and_dropping_twice_is_fine(sandbox, spec):
    await cell_output(sandbox, "x = 1")
    snapshot = await sandbox.snapshot()
    async with opened(spec) as other:
        with pytest.raises(ValueError, match="another sandbox"):
            await other.restore(snapshot)
    await sandbox.drop(snapshot)
    await sandbox.drop(snapshot)
    with pytest.raises(ValueError, match="dropped"):
        await sandbox.restore(snapshot)
    assert await cell_output(sandbox, "x") == "1"


async def test_reset_drops_all_and_leaves_no_process_or_variable(sandbox):
    await cell_output(sandbox, "x = 1")
    kept = [await sandbox.snapshot() for _ in range(3)]
    await sandbox.reset()
    for snapshot in kept:
        with pytest.raises(ValueError, match="dropped"):
            await sandbox.restore(snapshot)
    assert await printed(sandbox, "set -- /proc/[0-9]*; echo $#") == "3\n", "the agent, an interpreter, sh"
    assert await cell_output(sandbox, "'x' in globals()") == "False"


async def test_a_sandbox_from_the_pool_has_nothing_of_the_former_users_snapshots(spec):
    async with Pool(spec, size=1) as pool:
        async with pool.acquire() as sandbox:
            await cell_output(sandbox, "x = 1")
            snapshot = await sandbox.snapshot()
        async with pool.acquire() as sandbox:
            with pytest.raises(ValueError, match="dropped"):
                await sandbox.restore(snapshot)
            assert await cell_output(sandbox, "'x' in globals()") == "False"
            assert await printed(sandbox, "set -- /proc/[0-9]*; echo $#") == "3\n"


async def test_every_call_on_a_closed_sandbox_is_lost(sandbox):
    snapshot = await sandbox.snapshot()
    await sandbox.close()
    for call in (sandbox.snapshot(), sandbox.restore(snapshot), sandbox.drop(snapshot)):
        with pytest.raises(SandboxLost):
            await call


async def test_a_cancelled_snapshot_is_not_kept(sandbox):
    await cell_output(sandbox, "x = 1")
    for _ in range(12):
        taking = asyncio.create_task(sandbox.snapshot())
        await asyncio.sleep(0.001)
        taking.cancel()
        (taken,) = await asyncio.gather(taking, return_exceptions=True)
        if isinstance(taken, Snapshot):  # before it could be cancelled
            await sandbox.drop(taken)
    for _ in range(8):
        await sandbox.snapshot()
    assert await cell_output(sandbox, "x") == "1"


async def test_a_cancelled_restore_is_whole(sandbox):
    await cell_output(sandbox, "x = 1; open('f', 'w').write('1')")
    snapshot = await sandbox.snapshot()
    await cell_output(sandbox, "x = 2; open('f', 'w').write('2')")
    restoring = asyncio.create_task(sandbox.restore(snapshot))
    await asyncio.sleep(0.001)
    restoring.cancel()
    await asyncio.gather(restoring, return_exceptions=True)
    assert await cell_output(sandbox, "x, open('f').read()") == "(1, '1')"
