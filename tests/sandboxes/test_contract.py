"""What every backend promises.  Each test is one claim, made against a real box."""

# ruff: noqa: ASYNC110  what happens in a box sets no event: one has to look again

import asyncio
import gc
import os
import socket
import textwrap
import time

import pytest

from sandboxes.interface import Sandbox, SandboxLost
from sandboxes.opened import BACKENDS, open_box, opened
from sandboxes.spec import SandboxSpec


@pytest.fixture(params=sorted(BACKENDS))
def spec(request) -> SandboxSpec:
    return SandboxSpec(backend=request.param, timeout_s=10)


@pytest.fixture
async def box(spec):
    async with opened(spec) as box:
        yield box


async def python(box: Sandbox, code: str, **options):
    return await box.run_python(textwrap.dedent(code), **options)


async def shell(box: Sandbox, script: str, **options):
    return await box.exec(["/bin/sh", "-c", script], **options)


async def errno_of(box: Sandbox, expression: str) -> str:
    """The name of the error that a call in the box fails with, or ``none``."""
    result = await python(
        box,
        f"""
        import errno, os, socket, ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def call(name, *arguments):
            if getattr(libc, name)(*arguments) < 0:
                raise OSError(ctypes.get_errno(), name)
        try:
            {expression}
            print("none")
        except OSError as error:
            print(errno.errorcode.get(error.errno, error))
        """,
    )
    assert result.outcome == "ok", result
    return result.stdout.splitlines()[-1]


# -- cells -----------------------------------------------------------------------------------------


async def test_the_value_of_the_last_expression_is_printed(box):
    result = await box.run_python("x = 20\nx * 2 + 2")
    assert (result.outcome, result.stdout, result.stderr) == ("ok", "42\n", "")


async def test_none_and_earlier_expressions_are_not_printed(box):
    assert (await box.run_python("1\n2\nNone")).stdout == ""


async def test_what_is_printed_comes_before_the_value(box):
    assert (await box.run_python("print('a')\n'b'")).stdout == "a\n'b'\n"


async def test_variables_functions_and_imports_live_on(box):
    await python(box, "import math\ndef area(r): return math.pi * r * r\nr = 2")
    assert (await box.run_python("round(area(r), 3)")).stdout == "12.566\n"


async def test_an_uncaught_exception_is_an_error_with_its_class_and_line(box):
    result = await box.run_python("a = 1\nb = a / 0\n")
    assert (result.outcome, result.exception, result.exit_code) == ("error", "ZeroDivisionError", None)
    assert 'File "<cell 1>", line 2' in result.stderr
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "sandboxes" not in result.stderr, "the traceback shows the agent's own frames"


async def test_output_before_an_exception_is_kept(box):
    assert (await box.run_python("print('so far')\n1/0")).stdout == "so far\n"


async def test_a_syntax_error_is_an_error_and_runs_nothing(box):
    result = await box.run_python("print('ran')\nif True print(1)")
    assert (result.outcome, result.exception, result.stdout) == ("error", "SyntaxError", "")


async def test_a_null_byte_in_the_code_is_an_error_of_the_code(box):
    result = await box.run_python("x = '\0'")
    assert result.outcome == "error"
    assert result.exception in ("ValueError", "SyntaxError"), "which one depends on the version of Python"


@pytest.mark.parametrize(("call", "code"), [("sys.exit(3)", 3), ("exit()", 0), ("sys.exit('gone')", 1), ("quit(7)", 7)])
async def test_leaving_is_an_error_with_its_code_and_keeps_the_variables(box, call, code):
    result = await box.run_python(f"import sys; kept = 5\n{call}")
    assert (result.outcome, result.exception, result.exit_code) == ("error", "SystemExit", code)
    assert (await box.run_python("kept")).stdout == "5\n"


async def test_os_exit_ends_the_interpreter_and_the_next_cell_is_told(box):
    result = await box.run_python("import os; x = 1; os._exit(9)")
    assert (result.outcome, result.exit_code) == ("error", 9)
    after = await box.run_python("x")
    assert after.exception == "NameError"
    assert after.stderr.startswith("[fresh interpreter: ")


async def test_a_crash_is_killed_and_the_box_lives(box):
    result = await box.run_python("import ctypes; ctypes.string_at(0)")
    assert (result.outcome, result.exit_code) == ("killed", -11)
    assert (await box.run_python("1")).stdout == "1\n"


async def test_a_cell_that_forks_answers_once(box):
    await box.run_python("import os; pid = os.fork()")
    assert [(await box.run_python(f"pid > 0, {n}")).stdout for n in range(5)] == [f"(True, {n})\n" for n in range(5)]


async def test_an_exception_that_cannot_be_shown_is_still_an_error(box):
    result = await python(
        box,
        """
        class Hostile(Exception):
            def __str__(self): raise self
            __repr__ = __str__
        raise Hostile
        """,
    )
    assert (result.outcome, result.exception) == ("error", "Hostile")


async def test_endless_recursion_is_an_error(box):
    result = await box.run_python("def f(): f()\nf()")
    assert (result.outcome, result.exception) == ("error", "RecursionError")


async def test_unicode_survives_both_ways(box):
    assert (await box.run_python("'καλός ' + '日本' + chr(0x1F40D)")).stdout == "'καλός 日本🐍'\n"


async def test_binary_output_is_decoded_with_replacement(box):
    result = await box.run_python("import os; os.write(1, bytes([65, 255, 66])); None")
    assert result.stdout == "A\ufffdB"


async def test_the_standard_input_of_a_cell_is_empty(box):
    assert (await box.run_python("input()")).exception == "EOFError"


async def test_output_of_a_background_thread_is_not_the_next_cells(box):
    await python(
        box,
        """
        import os, threading, time
        threading.Thread(target=lambda: (time.sleep(0.1), os.write(1, b"late"))).start()
        """,
    )
    await asyncio.sleep(0.3)
    assert (await box.run_python("'mine'")).stdout == "'mine'\n"


async def test_a_broken_stdout_is_the_cells_own_error(box):
    result = await box.run_python("import sys; sys.stdout.close()\nprint(1)")
    assert result.outcome == "error"
    assert (await box.run_python("import sys\nsys.stderr.write('x')")).outcome in ("ok", "error")


async def test_a_broken_report_costs_the_interpreter_and_not_the_box(box):
    result = await box.run_python("import os; os.write(4, b'forged and far too long' * 20)")
    assert result.outcome == "killed"
    assert (await box.run_python("2")).stdout == "2\n"


async def test_sets_are_ordered_the_same_in_every_box(spec):
    seen = set()
    for _ in range(3):
        async with opened(spec) as box:
            seen.add((await box.run_python("{'kappa', 'alpha', 'omega', 'delta'}")).stdout)
    assert len(seen) == 1


# -- prelude ---------------------------------------------------------------------------------------


async def test_a_prelude_runs_now_and_again_after_a_time_out(box):
    assert (await box.set_prelude("print('once')\ndef show(c): print(ord(c))")).stdout == "once\n"
    assert (await box.run_python("while True: pass", timeout_s=0.2)).outcome == "timeout"
    after = await box.run_python("show('a')")
    assert (after.outcome, after.stdout) == ("ok", "97\n")
    assert after.stderr.startswith("[fresh interpreter: ")


async def test_a_prelude_ends_with_a_reset(box):
    await box.set_prelude("secret = 1")
    await box.reset()
    assert (await box.run_python("secret")).exception == "NameError"
    await box.run_python("while True: pass", timeout_s=0.2)
    assert (await box.run_python("secret")).exception == "NameError"


# -- programs --------------------------------------------------------------------------------------


async def test_a_program_gets_its_arguments_input_and_environment(box):
    result = await box.exec(["/bin/sh", "-c", 'cat; echo "$0 $1 $K"', "a b", "ü"], stdin=b"in\n", env={"K": "v"})
    assert (result.outcome, result.exit_code, result.stdout) == ("ok", 0, "in\na b ü v\n")


async def test_an_exit_code_is_an_error_and_a_signal_is_killed(box):
    assert ((r := await shell(box, "exit 3")).outcome, r.exit_code) == ("error", 3)
    assert ((r := await shell(box, "kill -TERM $$")).outcome, r.exit_code) == ("killed", -15)


async def test_a_missing_program_is_an_error_127(box):
    result = await box.exec(["/no/such/program"])
    assert (result.outcome, result.exit_code) == ("error", 127)
    assert "/no/such/program" in result.stderr


async def test_stdout_and_stderr_are_kept_apart(box):
    result = await shell(box, "echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


async def test_large_input_reaches_a_program_and_may_be_ignored_by_it(box):
    content = os.urandom(3 * 2**20)
    assert (await box.exec(["wc", "-c"], stdin=content)).stdout.strip() == str(len(content))
    assert (await box.exec(["true"], stdin=content)).outcome == "ok"


async def test_programs_run_at_the_same_time(box):
    started = time.monotonic()
    results = await asyncio.gather(*(shell(box, f"sleep 0.5; echo {n}") for n in range(6)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(6)]
    assert time.monotonic() - started < 2.9, "they ran one after the other"


async def test_a_program_that_leaves_a_child_with_its_pipes_still_ends(box):
    result = await shell(box, "sleep 60 & echo left", timeout_s=5)
    assert (result.outcome, result.stdout) == ("ok", "left\n")


async def test_the_environment_is_clean(box, monkeypatch):
    monkeypatch.setenv("PALESTRA_SECRET", "do not leak")
    names = (await box.run_python("import os; sorted(os.environ)")).stdout
    assert "SECRET" not in (await shell(box, "env")).stdout
    assert set(eval(names)) <= {"LC_ALL", "PWD", "PYTHONHASHSEED"}


async def test_locale_home_and_working_folder(box):
    result = await shell(box, "echo $HOME $LANG; pwd; python3 -c 'import sys; print(sys.stdout.encoding)'")
    assert result.stdout == "/work C.UTF-8\n/work\nutf-8\n"


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(60)", "try:\n  while True: pass\nexcept BaseException: pass"]
)
async def test_a_cell_out_of_time_is_stopped(box, code):
    result = await box.run_python(code, timeout_s=0.3)
    assert (result.outcome, result.exit_code) == ("timeout", None)
    assert 0.3 <= result.seconds < 3
    assert (await box.run_python("1")).outcome == "ok"


async def test_a_time_out_kills_grandchildren_that_left_their_session(box):
    result = await python(
        box,
        """
        import subprocess, time
        script = "setsid sh -c 'sleep 0.7; touch /tmp/survived' & sleep 60"
        subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)
        time.sleep(60)
        """,
        timeout_s=0.3,
    )
    assert result.outcome == "timeout"
    await asyncio.sleep(0.8)
    assert (await shell(box, "ls /tmp")).stdout == ""


async def test_a_program_out_of_time_dies_with_its_family_and_spares_the_interpreter(box):
    await box.run_python("kept = 1")
    result = await shell(box, "(setsid sleep 61 &) ; trap '' TERM; echo early; sleep 60", timeout_s=0.3)
    assert (result.outcome, result.stdout, result.exit_code) == ("timeout", "early\n", None)
    assert (await box.run_python("kept")).stdout == "1\n"
    assert "sleep" not in (await shell(box, "cat /proc/[0-9]*/comm")).stdout


async def test_output_beyond_the_limit_is_cut_and_said(box, spec):
    result = await box.run_python(f"print('x' * {2 * spec.output_bytes})\nprint('done', flush=True)")
    assert (result.outcome, result.truncated, len(result.stdout)) == ("ok", True, spec.output_bytes)


async def test_output_at_the_limit_is_whole(box, spec):
    result = await box.run_python(f"import os; os.write(1, b'x' * {spec.output_bytes}); None")
    assert (result.truncated, len(result.stdout)) == (False, spec.output_bytes)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_is_stopped_long_before_it_ends(box, spec, stream):
    result = await box.run_python(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)", timeout_s=60)
    assert (result.outcome, result.truncated) == ("output", True)
    assert len(result.stdout) + len(result.stderr) <= spec.output_bytes
    assert (await box.run_python("1")).stdout == "1\n"


async def test_a_program_that_floods_is_stopped(box):
    assert (await box.exec(["yes"], timeout_s=60)).outcome == "output"


async def test_too_much_memory_is_memory_and_costs_the_interpreter(box, spec):
    result = await box.run_python(f"x = bytearray({2 * spec.memory_mib} * 2**20)")
    assert (result.outcome, result.exception) == ("memory", "MemoryError")
    after = await box.run_python("1")
    assert after.stdout == "1\n"
    assert "out of memory" in after.stderr


async def test_memory_eaten_in_small_pieces_is_memory_too(box):
    assert (await box.run_python("x = []\nwhile True: x.append(' ' * 1000 + str(len(x)))")).outcome == "memory"


async def test_a_full_disk_is_the_guests_error(box, spec):
    result = await box.run_python(
        f"for n in range(4):\n  with open(f'/work/f{{n}}', 'wb') as f: f.write(bytes({spec.disk_mib} * 2**19))"
    )
    assert (result.outcome, result.exception) == ("error", "OSError")
    assert "No space left" in result.stderr


async def test_a_file_larger_than_the_disk_is_refused_before_it_is_written(box, spec):
    with pytest.raises(OSError):
        await box.write_file("big", bytes((spec.disk_mib + 1) * 2**20))
    assert box.alive


async def test_processes_are_counted(box, spec):
    result = await python(
        box,
        f"""
        import subprocess
        try:
            children = [subprocess.Popen(["sleep", "60"]) for _ in range({spec.processes + 8})]
        except BlockingIOError:
            print("refused")
        """,
    )
    assert result.stdout == "refused\n"


async def test_a_fork_bomb_stays_in_its_box(spec):
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    async with opened(spec) as bombed, opened(spec) as other:
        explosion = asyncio.create_task(bombed.run_python(bomb, timeout_s=1))
        for _ in range(5):
            assert (await other.run_python("2 + 2")).stdout == "4\n"
            assert (await shell(other, "echo $((2 + 2))")).stdout == "4\n"
        assert (await explosion).outcome == "timeout"
        assert (await bombed.run_python("'alive'")).stdout == "'alive'\n"
        assert len((await shell(bombed, "ls -d /proc/[0-9]*")).stdout.split()) <= 4


async def test_open_files_are_limited_and_no_core_is_dumped(box):
    result = await box.run_python("import resource as r; [r.getrlimit(n)[1] for n in (r.RLIMIT_NOFILE, r.RLIMIT_CORE)]")
    assert result.stdout == "[256, 0]\n"


# -- reset and close -------------------------------------------------------------------------------


async def test_reset_leaves_no_variable_file_or_process(box):
    await python(
        box,
        """
        import os, subprocess
        x = 1
        os.makedirs("/work/a/b/c"); os.chmod("/work/a/b", 0)
        open("/tmp/t", "w").write("t"); os.symlink("/usr", "/work/link"); os.mkfifo("/tmp/fifo")
        os.chmod("/work", 0o700)
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        """,
    )
    await box.reset()
    seen = await python(
        box,
        """
        import os
        print("x" in globals(), os.listdir("/work"), os.listdir("/tmp"), oct(os.stat("/work").st_mode))
        print(len([p for p in os.listdir("/proc") if p.isdigit()]), os.path.isdir("/usr/bin"))
        """,
    )
    assert seen.stdout == "False [] [] 0o40755\n2 True\n"


async def test_reset_says_nothing_of_the_former_users_interpreter(box):
    await box.run_python("while True: pass", timeout_s=0.2)
    await box.reset()
    assert (await box.run_python("1")).stderr == ""


async def test_reset_ends_programs_under_way(box):
    program = asyncio.create_task(shell(box, "sleep 60"))
    await asyncio.sleep(0.2)
    await box.reset()
    assert (await program).outcome == "killed"


async def test_a_box_that_cannot_be_reset_is_lost(box):
    # Folders nested so deep that no path reaches the last one.
    await box.run_python("import os\nfor _ in range(3000):\n  os.mkdir('dd'); os.chdir('dd')")
    with pytest.raises(SandboxLost, match="reset"):
        await box.reset()
    assert not box.alive


async def test_closing_twice_is_fine_and_every_later_call_is_lost(spec):
    box = await open_box(spec)
    await asyncio.gather(box.close(), box.close())
    await box.close()
    for call in (box.run_python("1"), box.exec(["true"]), box.read_file("x"), box.write_file("x", b""), box.reset()):
        with pytest.raises(SandboxLost):
            await call


async def test_closing_while_code_runs_loses_that_call(spec):
    box = await open_box(spec)
    running = asyncio.create_task(box.run_python("while True: pass"))
    await asyncio.sleep(0.2)
    await box.close()
    with pytest.raises(SandboxLost):
        await running


async def test_close_leaves_no_process_and_no_descriptor(spec):
    await (await open_box(spec)).close()  # what is made once per process (the spawner) is not counted
    gc.collect()  # what earlier tests left is not ours to count
    descriptors = len(os.listdir("/proc/self/fd"))
    box = await open_box(spec)
    await shell(box, "sleep 987654 & setsid sleep 987654 &")
    assert host_processes(b"987654")
    await box.close()
    assert host_processes(b"987654") == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def host_processes(sign: bytes) -> list[str]:
    """Processes of the host whose command line has ``sign``."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if sign in file.read():
                    found.append(pid)
        except OSError:
            continue
    return found


async def test_a_cancelled_program_is_dead_when_the_cancellation_arrives(box):
    running = asyncio.create_task(shell(box, "echo begun > /tmp/begun; sleep 876543"))
    while not host_processes(b"876543"):
        await asyncio.sleep(0.02)
    running.cancel()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert host_processes(b"876543") == []
    assert (await shell(box, "cat /tmp/begun")).stdout == "begun\n"


async def test_a_cancelled_cell_leaves_a_fresh_interpreter(box):
    await box.run_python("x = 1")
    running = asyncio.create_task(box.run_python("while True: pass"))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    after = await box.run_python("x")
    assert after.exception == "NameError"
    assert "was stopped" in after.stderr


async def test_a_cell_that_waited_for_another_is_cancelled_without_harm(box):
    first = asyncio.create_task(box.run_python("import time; time.sleep(0.4); 'first'"))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(box.run_python("'second'"))
    await asyncio.sleep(0.1)
    second.cancel()
    assert (await first).stdout == "'first'\n"
    assert (await box.run_python("'third'")).stdout == "'third'\n"


async def test_opened_closes_although_its_user_is_cancelled_twice(spec):
    boxes = []

    async def user():
        async with opened(spec) as box:
            boxes.append(box)
            await asyncio.sleep(60)

    task = asyncio.create_task(user())
    while not boxes:
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(SandboxLost):
        await boxes[0].run_python("1")


# -- files -----------------------------------------------------------------------------------------


async def test_files_go_in_and_come_out_unchanged(box):
    content = bytes(range(256)) * 1000
    await box.write_file("a/b/ü.bin", content)
    assert await box.read_file("/work/a/b/ü.bin") == content
    assert (await shell(box, "wc -c < a/b/ü.bin")).stdout.strip() == "256000"


async def test_writing_again_replaces_the_whole_file(box):
    await box.write_file("f", b"long content")
    await box.write_file("f", b"short")
    assert await box.read_file("f") == b"short"


async def test_a_module_that_was_written_can_be_imported(box):
    await box.write_file("tool.py", b"answer = 42")
    assert (await box.run_python("import tool; tool.answer")).stdout == "42\n"


async def test_faults_of_a_path_are_the_callers_oserror(box):
    with pytest.raises(FileNotFoundError):
        await box.read_file("missing")
    with pytest.raises(IsADirectoryError):
        await box.read_file("/usr")
    with pytest.raises(OSError, match="Read-only|read-only"):
        await box.write_file("/usr/x", b"")
    assert box.alive


async def test_a_file_over_the_limit_is_refused(box):
    await box.write_file("f", bytes(1001))
    with pytest.raises(OSError, match="large"):
        await box.read_file("f", limit_bytes=1000)
    assert len(await box.read_file("f", limit_bytes=1001)) == 1001


async def test_paths_and_links_do_not_leave_the_box(box, tmp_path):
    (tmp_path / "host").write_text("of the host")
    await shell(box, f"ln -s {tmp_path}/host out; ln -s ../../../../..{tmp_path} up; ln -s /etc/shadow shadow")
    for path in ("out", "up/host", "../../../.." + str(tmp_path / "host"), "shadow"):
        with pytest.raises(FileNotFoundError):
            await box.read_file(path)
    with pytest.raises(OSError):
        await box.write_file("up/x", b"")
    assert [p.name for p in tmp_path.iterdir()] == ["host"]


async def test_a_link_to_proc_shows_nothing_of_the_agent(box):
    await shell(box, "ln -s /proc/self/environ e; ln -s /proc/self/mem m; ln -s /proc/1/fd/3 d; ln -s /proc/1/comm c")
    for path in ("e", "m", "d", "c"):
        with pytest.raises(OSError):
            await box.read_file(path)
        with pytest.raises(OSError):
            await box.write_file(path, b"x")
    assert (await box.run_python("1")).stdout == "1\n"


async def test_a_fifo_or_device_does_not_hold_the_box_up(box):
    await shell(box, "mkfifo pipe; ln -s /dev/zero zero")
    for path in ("pipe", "zero"):
        with pytest.raises(OSError):
            await box.read_file(path)
        with pytest.raises(OSError):
            await box.write_file(path, b"x")


# -- walls -----------------------------------------------------------------------------------------


async def test_boxes_do_not_see_each_other(spec):
    async with opened(spec) as one, opened(spec) as two:
        await shell(one, "echo mine > /tmp/f; echo mine > /work/f; sleep 60 &")
        assert (await shell(two, "ls /tmp /work")).stdout == "/tmp:\n\n/work:\n"
        assert "sleep" not in (await shell(two, "cat /proc/[0-9]*/comm")).stdout


async def test_proc_does_not_show_the_host(box):
    numbers = (await box.run_python("import os; [int(p) for p in os.listdir('/proc') if p.isdigit()]")).stdout
    assert max(eval(numbers)) < 100
    assert (await shell(box, "cat /proc/1/environ")).stdout == ""


async def test_the_file_system_is_read_only_but_for_work_and_tmp(box):
    for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/usr/bin/x"):
        assert await errno_of(box, f"open({path!r}, 'w')") in ("EROFS", "EACCES", "EPERM"), path
    for path in ("/work/x", "/tmp/x", "/dev/shm/x"):
        assert await errno_of(box, f"open({path!r}, 'w')") == "none"


async def test_nothing_of_the_hosts_etc_root_home_or_sys_is_there(box):
    listing = (await shell(box, "ls -A / /etc /dev; ls /root /home /sys /var 2>/dev/null")).stdout.split()
    forbidden = {"root", "home", "sys", "var", "run", "shadow", "hostname", "hosts", "resolv.conf", "kvm", "ptmx"}
    assert not forbidden & set(listing)


async def test_no_capability_no_root_no_new_privileges(box):
    status = (await shell(box, "cat /proc/self/status")).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert fields["Uid"].split() == ["1000"] * 4
    assert await errno_of(box, "os.setuid(0)") in ("EPERM", "EINVAL")


async def test_no_descriptor_of_the_host_or_the_agent_is_open(box):
    secret = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        open_in_cell = (await box.run_python("import os; sorted(int(n) for n in os.listdir('/proc/self/fd'))")).stdout
        open_in_program = (await shell(box, "ls /proc/self/fd")).stdout.split()
    finally:
        os.close(secret)
    assert open_in_cell == "[0, 1, 2, 3, 4, 5]\n"  # 3 and 4 are the cell's own pipes, 5 the listing
    assert open_in_program == ["0", "1", "2", "3"]


async def test_no_network_reaches_out_or_the_hosts_loopback(box):
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connect = "s = socket.create_connection(({!r}, {}), timeout=3)"
    assert await errno_of(box, connect.format("127.0.0.1", port)) == "ECONNREFUSED"
    assert await errno_of(box, connect.format("192.0.2.1", 80)) == "ENETUNREACH"
    datagram = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('198.51.100.1', 53))"
    assert await errno_of(box, datagram) == "ENETUNREACH"
    server.close()
    assert (await shell(box, "cat /proc/net/dev")).stdout.count(":") == 1, "only its own loopback"


async def test_the_hosts_abstract_sockets_are_out_of_reach(box):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0palestra-{os.getpid()}")
        server.listen()
        call = f"socket.socket(socket.AF_UNIX).connect(chr(0) + 'palestra-{os.getpid()}')"
        assert await errno_of(box, call) == "ECONNREFUSED"


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET", "AF_NETLINK", "AF_ALG", "AF_BLUETOOTH"])
async def test_a_socket_family_with_no_business_here_does_not_exist(box, family):
    assert await errno_of(box, f"socket.socket(socket.{family}, socket.SOCK_DGRAM)") == "EAFNOSUPPORT"


@pytest.mark.parametrize(
    ("attempt", "answer"),
    [
        ("call('unshare', 0x10000000)", "EPERM"),
        ("call('unshare', 0x00020000)", "EPERM"),
        ("call('setns', 0, 0)", "EPERM"),
        ("call('mount', b'none', b'/tmp', b'tmpfs', 0, 0)", "EPERM"),
        ("call('umount2', b'/usr', 2)", "EPERM"),
        ("call('chroot', b'/tmp')", "EPERM"),
        ("call('ptrace', 16, 1, 0, 0)", "EPERM"),
        ("call('syscall', 56, 0x10000011, 0, 0, 0, 0)", "EPERM"),  # clone(CLONE_NEWUSER)
        ("call('syscall', 435, 0, 0)", "ENOSYS"),  # clone3
        ("call('syscall', 425, 8, 0)", "ENOSYS"),  # io_uring_setup
        ("call('syscall', 321, 0, 0, 0)", "EPERM"),  # bpf
        ("call('syscall', 323, 0)", "EPERM"),  # userfaultfd
        ("call('syscall', 298, 0, 0, -1, -1, 0)", "EPERM"),  # perf_event_open
        ("call('syscall', 250, 0, -3, 1)", "EPERM"),  # keyctl
        ("call('syscall', 310, 1, 0, 0, 0, 0, 0)", "EPERM"),  # process_vm_readv
        ("call('syscall', 319, b'm', 0)", "ENOSYS"),  # memfd_create
        ("call('syscall', 29, 0, 4096, 0o1600)", "ENOSYS"),  # shmget
        ("os.sched_setaffinity(1, {0})", "EPERM"),
        ("os.setpriority(os.PRIO_PROCESS, 1, 19)", "EPERM"),
        ("import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))", "EPERM"),
        ("open('/proc/1/mem', 'rb')", "EACCES"),
        ("os.listdir('/proc/1/fd')", "EACCES"),
        ("os.readlink('/proc/1/root')", "EACCES"),
        ("import fcntl; fcntl.ioctl(0, 0x5412, b'x')", "EPERM"),  # TIOCSTI
    ],
)
async def test_a_way_out_is_closed(box, attempt, answer):
    assert await errno_of(box, attempt) == answer


async def test_calls_with_foreign_numbers_kill_their_caller(box):
    result = await box.run_python("import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)")  # x32 getpid
    assert (result.outcome, result.exit_code) == ("killed", -31)


async def test_set_user_id_programs_give_nothing(box):
    assert (await shell(box, "su -c id || mount -t tmpfs x /tmp")).outcome == "error"


async def test_guests_can_signal_neither_the_agent_nor_the_host(box):
    result = await python(
        box,
        """
        import os, signal
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            os.kill(os.getppid(), number)
        os.getppid()
        """,
    )
    assert (result.outcome, result.stdout) == ("ok", "1\n")
    assert (await shell(box, "kill -9 -1; sleep 0.1; echo still here")).stdout == "still here\n"
    assert (await box.run_python("1")).stdout == "1\n"


async def test_the_host_name_tells_nothing_of_the_host(box):
    assert (await box.run_python("import os; os.uname().nodename")).stdout == "'box'\n"


# -- time ------------------------------------------------------------------------------------------


async def test_the_clock_runs_and_cannot_be_set(box):
    seen = float((await box.run_python("import time; time.time()")).stdout)
    assert abs(seen - time.time()) < 5
    assert await errno_of(box, "import time; time.clock_settime(time.CLOCK_REALTIME, 0)") == "EPERM"
