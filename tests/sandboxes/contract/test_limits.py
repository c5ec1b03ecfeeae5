"""What every backend promises of time, output, memory, disk and processes."""

import asyncio

import pytest

from sandboxes.opened import opened
from tests.sandboxes.asking import python, shell


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(60)", "try:\n  while True: pass\nexcept BaseException: pass"]
)
async def test_a_cell_out_of_time_is_stopped(sandbox, code):
    result = await sandbox.run_python(code, timeout_s=0.3)
    assert (result.outcome, result.exit_code) == ("timeout", None)
    assert 0.3 <= result.seconds < 3
    assert (await sandbox.run_python("1")).outcome == "ok"


async def test_a_time_out_kills_grandchildren_that_left_their_session(sandbox):
    result = await python(
        sandbox,
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
    assert (await shell(sandbox, "ls /tmp")).stdout == ""


async def test_a_program_out_of_time_dies_with_its_family_and_spares_the_interpreter(sandbox):
    await sandbox.run_python("kept = 1")
    result = await shell(sandbox, "(setsid sleep 61 &) ; trap '' TERM; echo early; sleep 60", timeout_s=1.5)
    assert (result.outcome, result.stdout, result.exit_code) == ("timeout", "early\n", None)
    assert (await sandbox.run_python("kept")).stdout == "1\n"
    assert "sleep" not in (await shell(sandbox, "cat /proc/[0-9]*/comm")).stdout


async def test_output_beyond_the_limit_is_cut_and_said(sandbox, spec):
    result = await sandbox.run_python(f"print('x' * {2 * spec.output_bytes})\nprint('done', flush=True)")
    assert (result.outcome, result.truncated, len(result.stdout)) == ("ok", True, spec.output_bytes)


async def test_output_at_the_limit_is_whole(sandbox, spec):
    result = await sandbox.run_python(f"import os; os.write(1, b'x' * {spec.output_bytes}); None")
    assert (result.truncated, len(result.stdout)) == (False, spec.output_bytes)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_is_stopped_long_before_it_ends(sandbox, spec, stream):
    result = await sandbox.run_python(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)", timeout_s=60)
    assert (result.outcome, result.truncated) == ("output", True)
    assert len(result.stdout) + len(result.stderr) <= spec.output_bytes
    assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_a_program_that_floods_is_stopped(sandbox):
    assert (await sandbox.exec(["yes"], timeout_s=60)).outcome == "output"


async def test_too_much_memory_is_memory_and_costs_the_interpreter(sandbox, spec):
    result = await sandbox.run_python(f"x = bytearray({2 * spec.memory_mib} * 2**20)")
    assert (result.outcome, result.exception) == ("memory", "MemoryError")
    after = await sandbox.run_python("1")
    assert after.stdout == "1\n"
    assert "out of memory" in after.stderr


async def test_memory_eaten_in_small_pieces_is_memory_too(sandbox):
    assert (await sandbox.run_python("x = []\nwhile True: x.append(' ' * 1000 + str(len(x)))")).outcome == "memory"


async def test_a_full_disk_is_the_guests_error(sandbox, spec):
    result = await sandbox.run_python(
        f"for n in range(4):\n  with open(f'/work/f{{n}}', 'wb') as f: f.write(bytes({spec.disk_mib} * 2**19))"
    )
    assert (result.outcome, result.exception) == ("error", "OSError")
    assert "No space left" in result.stderr


@pytest.mark.parametrize("times", [2, 8])
async def test_a_file_larger_than_the_disk_is_refused_before_it_is_written(sandbox, spec, times):
    with pytest.raises(OSError):
        await sandbox.write_file("big", bytes(times * spec.disk_mib * 2**20))
    assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_processes_are_counted(sandbox, spec):
    result = await python(
        sandbox,
        f"""
        import subprocess
        try:
            children = [subprocess.Popen(["sleep", "60"]) for _ in range({spec.processes + 8})]
        except BlockingIOError:
            print("refused")
        """,
    )
    assert result.stdout == "refused\n"


async def test_a_fork_bomb_stays_in_its_sandbox(spec):
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    async with opened(spec) as bombed, opened(spec) as other:
        explosion = asyncio.create_task(bombed.run_python(bomb, timeout_s=1))
        for _ in range(5):
            assert (await other.run_python("2 + 2")).stdout == "4\n"
            assert (await shell(other, "echo $((2 + 2))")).stdout == "4\n"
        assert (await explosion).outcome in ("timeout", "killed")  # killed: refused forks filled its memory
        assert (await bombed.run_python("'alive'")).stdout == "'alive'\n"
        assert len((await shell(bombed, "ls -d /proc/[0-9]*")).stdout.split()) <= 4


async def test_open_files_are_limited_and_no_core_is_dumped(sandbox):
    result = await sandbox.run_python(
        "import resource as r; [r.getrlimit(n)[1] for n in (r.RLIMIT_NOFILE, r.RLIMIT_CORE)]"
    )
    assert result.stdout == "[256, 0]\n"
