"""What every backend promises of a sandbox with a terminal."""

from sandboxes.opened import opened
from tests.sandboxes.asking import shell

PTY = """\
import os, pty
pid, master = pty.fork()
if pid == 0:
    os.execvp("python3", ["python3", "-I", "-c", "import os; print(os.ttyname(0), os.isatty(1))"])
out = b""
try:
    while chunk := os.read(master, 1000):
        out += chunk
except OSError:
    pass
print(out.decode().split())
"""


async def test_a_terminal_of_its_own_can_be_made(make_spec):
    async with opened(make_spec(terminal=True, processes=32)) as sandbox:
        result = await sandbox.exec(["python3", "-I", "-c", PTY])
        assert result.stdout == "['/dev/pts/0', 'True']\n", result.stderr


async def test_two_sandboxes_do_not_see_each_others_terminals(make_spec):
    spec = make_spec(terminal=True, processes=32)
    async with opened(spec) as one, opened(spec) as two:
        hold = (
            "python3 -I -c 'import os, time; m = os.openpty(); print(os.ttyname(m[1]), flush=True); time.sleep(60)' &"
        )
        await shell(one, hold + " sleep 1")
        assert (await shell(two, "ls /dev/pts")).stdout == "ptmx\n"


async def test_without_it_there_is_no_terminal(sandbox):
    result = await sandbox.exec(["python3", "-I", "-c", "import os; os.openpty()"])
    assert result.outcome == "error"


async def test_the_folders_of_a_task_can_be_written_and_are_empty_after_a_reset(make_spec):
    async with opened(make_spec(terminal=True, processes=32)) as sandbox:
        make = "for p in tests solution logs; do mkdir -p $(readlink -m /$p) && echo $p > /$p/file; done"
        assert (await shell(sandbox, make)).outcome == "ok"
        for place in ("tests", "solution", "logs"):
            assert await sandbox.read_file(f"/{place}/file") == f"{place}\n".encode()
            await sandbox.write_file(f"/{place}/other", b"x")
        await sandbox.reset()
        assert (await shell(sandbox, "cat /tests/* /solution/* /logs/* 2>/dev/null")).stdout == ""


async def test_a_snapshot_keeps_the_folders_of_a_task(make_spec):
    async with opened(make_spec(terminal=True, processes=32)) as sandbox:
        await shell(sandbox, "mkdir -p $(readlink -m /logs); echo before > /logs/file")
        snapshot = await sandbox.snapshot()
        await shell(sandbox, "echo after > /logs/file")
        await sandbox.restore(snapshot)
        assert await sandbox.read_file("/logs/file") == b"before\n"
