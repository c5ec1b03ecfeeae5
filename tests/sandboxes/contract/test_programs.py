"""What every backend promises of programs, their input, output and environment."""

import asyncio
import math
import os

import pytest

from tests.sandboxes.asking import python, shell


async def test_a_program_gets_its_arguments_input_and_environment(sandbox):
    result = await sandbox.exec(["/bin/sh", "-c", 'cat; echo "$0 $1 $K"', "a b", "ü"], stdin=b"in\n", env={"K": "v"})
    assert (result.outcome, result.exit_code, result.stdout) == ("ok", 0, "in\na b ü v\n")


async def test_an_exit_code_is_an_error_and_a_signal_is_killed(sandbox):
    assert ((r := await shell(sandbox, "exit 3")).outcome, r.exit_code) == ("error", 3)
    assert ((r := await shell(sandbox, "kill -TERM $$")).outcome, r.exit_code) == ("killed", -15)


async def test_a_missing_program_is_an_error_127(sandbox):
    result = await sandbox.exec(["/no/such/program"])
    assert (result.outcome, result.exit_code) == ("error", 127)
    assert "/no/such/program" in result.stderr


async def test_stdout_and_stderr_are_kept_apart(sandbox):
    result = await shell(sandbox, "echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


async def test_large_input_reaches_a_program_and_may_be_ignored_by_it(sandbox):
    content = os.urandom(3 * 2**20)
    assert (await sandbox.exec(["wc", "-c"], stdin=content)).stdout.strip() == str(len(content))
    assert (await sandbox.exec(["true"], stdin=content)).outcome == "ok"


async def test_programs_run_at_the_same_time(sandbox):
    """Each waits for all: one after the other they would wait in vain."""
    script = ": > /work/{}; while set -- /work/*; [ $# -lt 6 ]; do sleep 0.05; done; echo {}"
    results = await asyncio.gather(*(shell(sandbox, script.format(n, n), timeout_s=60) for n in range(6)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(6)]


async def test_a_program_that_leaves_a_child_with_its_pipes_still_ends(sandbox):
    result = await shell(sandbox, "sleep 60 & echo left", timeout_s=5)
    assert (result.outcome, result.stdout) == ("ok", "left\n")


async def test_the_environment_is_clean(sandbox, monkeypatch):
    monkeypatch.setenv("PALESTRA_SECRET", "do not leak")
    names = (await sandbox.run_python("import os; sorted(os.environ)")).stdout
    assert "SECRET" not in (await shell(sandbox, "env")).stdout
    assert set(eval(names)) <= {"LC_ALL", "PWD", "PYTHONHASHSEED"}


async def test_locale_home_and_working_folder(sandbox):
    result = await shell(sandbox, "echo $HOME $LANG; pwd; python3 -c 'import sys; print(sys.stdout.encoding)'")
    assert result.stdout == "/work C.UTF-8\n/work\nutf-8\n"


async def test_bytes_of_every_value_go_through_a_program(sandbox):
    content = bytes(range(256)) * 4096
    result = await sandbox.exec(["/bin/sh", "-c", "cat > copy; od -An -tx1 -N4 copy; cmp copy - < copy"], stdin=content)
    assert (result.outcome, result.stdout) == ("ok", " 00 01 02 03\n")
    assert await sandbox.read_file("copy", limit_bytes=len(content)) == content
    assert (await shell(sandbox, r"printf 'A\377B\000C'")).stdout == "A\ufffdB\0C"


@pytest.mark.parametrize("code", [0, 1, 2, 125, 126, 127, 128, 255])
async def test_every_exit_code_is_reported(sandbox, code):
    result = await shell(sandbox, f"exit {code}")
    assert (result.exit_code, result.outcome) == (code, "ok" if code == 0 else "error")


@pytest.mark.parametrize("signal", [1, 2, 9, 11, 15])
async def test_every_signal_is_reported(sandbox, signal):
    assert ((r := await shell(sandbox, f"kill -{signal} $$")).outcome, r.exit_code) == ("killed", -signal)


async def test_an_environment_may_replace_and_add_but_not_stay(sandbox):
    env = {"HOME": "/tmp", "EMPTY": "", "NAME": "日本", "LINES": "a\nb"}
    script = 'echo "$HOME|$EMPTY|$LINES"; env | grep -c "日本"'
    assert (await sandbox.exec(["/bin/sh", "-c", script], env=env)).stdout == "/tmp||a\nb\n1\n"
    assert (await shell(sandbox, 'echo "$HOME|$EMPTY|$LINES"')).stdout == "/work||\n"


@pytest.mark.parametrize(
    ("argv", "env"), [([""], {}), (["true\0"], {}), (["true"], {"A=B": "c"}), (["true"], {"A": "\0"})]
)
async def test_what_cannot_be_started_is_an_error_of_the_program(sandbox, argv, env):
    result = await sandbox.exec(argv, env=env)
    assert (result.outcome, result.exit_code) == ("error", 126)
    assert (await sandbox.exec(["true"])).outcome == "ok"


async def test_a_program_without_a_name_is_the_callers_mistake(sandbox):
    with pytest.raises(ValueError, match="program"):
        await sandbox.exec([])


EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
HEADLESS = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
ctypes.CDLL(None).syscall({EXIT}, 0)
"""
"""Its main thread ends, by which the kernel shows all of it as a zombie; another thread of it lives on."""


async def test_a_program_whose_main_thread_has_ended_ends_at_its_time(sandbox):
    result = await sandbox.exec(["/usr/bin/python3", "-S", "-c", HEADLESS], timeout_s=1)
    assert (result.outcome, result.exit_code) == ("timeout", None)
    assert (await python(sandbox, "print(1)")).stdout == "1\n"


async def test_a_time_out_ends_an_orphan_whose_main_thread_has_ended(sandbox):
    argv = ["/usr/bin/python3", "-S", "-c", HEADLESS]
    left = f"import subprocess; subprocess.Popen({argv}, start_new_session=True)"
    assert (await sandbox.exec([*argv[:3], left])).outcome == "ok"
    assert (await shell(sandbox, "sleep 60", timeout_s=0.5)).outcome == "timeout"
    seen = await python(sandbox, "import os; print(len([name for name in os.listdir('/proc') if name.isdigit()]))")
    assert seen.stdout == "2\n"


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, -math.inf, -1, 0, 1e300, 10**400])
async def test_what_is_no_time_is_the_callers_mistake_and_costs_no_sandbox(sandbox, timeout_s):
    for call in (sandbox.exec(["true"], timeout_s=timeout_s), sandbox.run_python("1", timeout_s=timeout_s),
                 sandbox.set_prelude("1", timeout_s=timeout_s)):  # fmt: skip
        with pytest.raises(ValueError, match=r"timeout_s = .*more than 0"):
            await call
    assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_code_and_input_beyond_what_a_sandbox_takes_are_refused_before_they_are_sent(sandbox, monkeypatch):
    monkeypatch.setattr("sandboxes.bounds.MOST_SENT_BYTES", 1000)
    for call in (
        sandbox.exec(["true"], stdin=bytes(1001)),
        sandbox.run_python("#" * 1001),
        sandbox.set_prelude("#" * 1001),
    ):
        with pytest.raises(ValueError, match="1001 bytes"):
            await call
    assert (await sandbox.exec(["wc", "-c"], stdin=bytes(1000))).stdout == "1000\n"


async def test_an_unread_stdin_and_a_closed_stdout_are_no_fault(sandbox):
    assert (await sandbox.exec(["/bin/sh", "-c", "exec 0<&- 1>&- 2>&-; exit 3"], stdin=bytes(2**20))).exit_code == 3


async def test_a_label_may_be_anything_at_any_time(sandbox):
    for text in ("turn 1", None, "", "x" * 10_000, "\0\n\x1b[2J", "日本"):
        sandbox.label(text)
        assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_programs_and_cells_share_files_and_nothing_else(sandbox):
    await sandbox.run_python(
        "import os; os.environ['LEAK'] = '1'; os.chdir('/tmp'); open('/work/f', 'w').write('shared')"
    )
    assert (await shell(sandbox, 'cat f; pwd; echo "[$LEAK]"')).stdout == "shared/work\n[]\n"
