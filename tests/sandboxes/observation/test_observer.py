"""The observer is one process beside its worker, and nothing gets through when it ends."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.interface import Sandbox, SandboxLost
from sandboxes.observation import kernel
from sandboxes.observation.guests import Running
from sandboxes.observation.observer import observer
from sandboxes.observation.reading import Started, begun
from sandboxes.opened import opened
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(network="watched", timeout_s=60.0)
ROOT = Path(__file__).parents[3]


async def test_a_dead_observer_loses_its_sandboxes_and_the_next_one_gets_another(observing):
    async with observing() as seen, observing() as other:
        dead = observer().process
        assert (await seen.cell("print(1)")).stdout == "1\n"
        running = asyncio.create_task(seen.sandbox.exec(["sleep", "1000"]))
        dead.kill()
        with pytest.raises(SandboxLost):
            await running
        for lost in (seen.sandbox, other.sandbox):
            with pytest.raises(SandboxLost):
                await lost_in_the_end(lost)
        async with observing() as fresh:
            await fresh.shell("true")
            assert len(fresh.programs()) == 1
            assert observer().process.pid != dead.pid


async def lost_in_the_end(sandbox: Sandbox) -> None:
    for _ in range(1000):  # until the observer's end is noticed
        await sandbox.run_python("1")
        await asyncio.sleep(0.01)


async def test_its_priority_counts_among_all_sessions_and_not_only_in_its_own(observing):
    """As root it comes before others: what it has of a busy processor is shared among sessions first."""
    async with observing():
        own = observer().process.pid
        priority, session = os.getpriority(os.PRIO_PROCESS, own), Path(f"/proc/{own}/autogroup")
        assert priority == (kernel.NICE if os.geteuid() == 0 else 0)
        if session.exists():  # else the kernel does not share processors among sessions
            assert int(session.read_text().split()[-1]) == (kernel.SESSION_NICE if priority else 0)


async def test_nothing_is_started_opened_or_permitted_where_nobody_answers(observing):
    """The observer stands still and then ends while a program waits for its answer: the kernel refuses."""
    async with observing() as seen:
        await seen.sandbox.run_python("import os, ctypes, threading")
        held = seen.sandbox._lose  # the worker would end the sandbox at once, and nobody could look
        seen.sandbox._watched._observation._on_loss = lambda _: None
        process = observer().process
        process.kill()
        process.wait()
        result = await seen.sandbox.run_python("""
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in [("open", (b"/work/x", 65, 384)), ("execv", (b"/bin/true", None)), ("unshare", (0x10000000,))]:
    print(name, getattr(libc, name)(*arguments), ctypes.get_errno())
""")
        assert result.stdout == "open -1 38\nexecv -1 38\nunshare -1 38\n", result
        held("the test is over")


def descriptors() -> set[tuple[str, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            continue  # the listing's own
    return found


def of_observer() -> int:
    return len(os.listdir(f"/proc/{observer().process.pid}/fd"))


async def test_no_descriptor_stays_of_a_sandbox_that_was_closed():
    async def use() -> None:
        async with opened(SPEC, on_action=lambda _: None) as sandbox:
            await sandbox.exec(["true"])
            await sandbox.reset()

    await use()
    before = descriptors()
    deadline = time.monotonic() + 30
    await asyncio.sleep(0.1)
    theirs = of_observer()
    for _ in range(3):
        await use()
    assert descriptors() == before
    while of_observer() > theirs and time.monotonic() < deadline:  # noqa: ASYNC110  it learns of the end a moment later
        await asyncio.sleep(0.01)
    assert of_observer() <= theirs


ENDS = """
import asyncio, os, sys
from sandboxes.observation import kernel
from sandboxes.observation.observer import observer
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
async def main():
    async with opened(SandboxSpec(network="watched"), on_action=lambda _: None) as sandbox:
        print(observer().process.pid, flush=True)
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), 9)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["killed", "by itself"])
def test_it_ends_with_its_worker(how):
    run = subprocess.run([sys.executable, "-c", ENDS, how], capture_output=True, text=True, cwd=ROOT, timeout=120)
    process = Path("/proc") / run.stdout.strip()
    assert run.stdout.strip().isdigit(), run
    deadline = time.monotonic() + 60
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not process.exists()


async def test_an_environment_that_is_observed_looks_like_one_that_is_not(observing):
    look = """
import os
print(sorted(os.environ.items()), os.getcwd(), sorted(os.listdir("/proc/self/fd")), os.getpid(), os.getppid())
print(sorted(os.listdir("/")), sorted(os.listdir("/dev")), sorted(os.listdir("/tmp")))
"""
    program = ["/bin/sh", "-c", "env; pwd; ls /proc/self/fd; umask"]
    async with observing() as seen, opened(SPEC) as plain:
        for ask in (lambda sandbox: sandbox.run_python(look), lambda sandbox: sandbox.exec(program)):
            assert (await ask(seen.sandbox)).stdout == (await ask(plain)).stdout


async def test_a_pool_tells_users_apart_and_freezing_keeps_what_was_reported():
    actions: list[ObservedAction] = []
    async with Pool(SPEC, 1, on_action=actions.append) as pool:
        names = []
        for _ in range(2):
            async with pool.acquire() as sandbox:
                names.append(sandbox.name)
                await sandbox.exec(["true"])
                await sandbox.settled()
        async with pool.acquire() as sandbox:
            names.append(sandbox.name)
            spinning = asyncio.create_task(sandbox.exec(["/bin/sh", "-c", "while :; do /bin/true; done"]))
            while len(actions) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await sandbox.freeze("the test")
            await asyncio.gather(spinning, return_exceptions=True)
    assert list(dict.fromkeys(action.sandbox for action in actions)) == names


async def test_snapshots_come_back_observed(observing):
    async with observing(snapshots=True) as seen:
        await seen.cell("x = 6")
        snapshot = await seen.sandbox.snapshot()
        await seen.cell("x = 7")
        await seen.sandbox.restore(snapshot)
        result = await seen.cell("import os; os.system('exec /usr/bin/id >&2'); print(x)")
        assert result.stdout == "6\n"
    assert seen.programs()[-1].program == "/usr/bin/id"


ORDINARY = """
import asyncio, os
from sandboxes.backends.namespaces import sandbox, probe
from sandboxes.egress.gateway import opening
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

asyncio.run(probe.agent_code())
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)

async def main():
    got = []
    async with opened(SandboxSpec(network="watched"), on_action=got.append) as sandbox:
        await sandbox.exec(["/bin/sh", "-c", "exec touch file"])
        await sandbox.settled()
    print([(action.program, action.argv, action.path) for action in got])

asyncio.run(main())
"""


def test_an_ordinary_user_can_observe_sandboxes():
    with tempfile.TemporaryDirectory() as folder:
        # The user must be able to read what the observer is made of, and this checkout may be root's alone.
        os.chmod(folder, 0o755)
        shutil.copytree(ROOT / "sandboxes", Path(folder) / "sandboxes")
        command = [sys.executable, "-c", ORDINARY]
        run = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, timeout=120, env={"PYTHONPATH": folder}
        )
    reported = [("/usr/bin/dash", ("/bin/sh", "-c", "exec touch file"), ""), ("/usr/bin/touch", ("touch", "file"), ""),
            ("/usr/bin/touch", (), "/work/file")]  # fmt: skip
    assert (run.returncode, run.stdout) == (0, f"{reported}\n"), run.stderr


OBSERVED = """
import os, select, socket, sys
from sandboxes.observation.reading import Reply
from sandboxes.observation.server import Observed, Server
nobody, asks = os.pipe()
ours, theirs = socket.socketpair()
sandbox = Observed(nobody, theirs, os.getpid(), 16)

def until_running(process, command):
    # Empty until the kernel has made it.
    while command not in open(f"/proc/{process.pid}/cmdline", "rb").read().split(b"\\0"):
        assert process.poll() is None
"""


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OBSERVED + program],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )


def test_a_drain_when_nobody_asks_waits_for_nobody():
    assert ran("print(sandbox.answer_all())").stdout == "None\n"


def test_who_asks_is_answered_before_a_drain_of_the_same_round():
    """A drain answers all who ask: to take a question then, of which the epoll has told before, would wait."""
    program = """
control, worker = socket.socketpair()
server = Server(control, os.pidfd_open(os.getpid()))
server._reports[theirs.fileno()] = server._listeners[nobody] = sandbox
for fd in (theirs.fileno(), nobody):
    server._epoll.register(fd, select.EPOLLIN)
sandbox.answer = lambda: print("answer", os.read(nobody, 1))
sandbox.drain = lambda number: sys.exit("drain")
ours.send(bytes(4))
os.write(asks, b"?")
server.run()
"""
    run = ran(program)
    assert (run.stdout, run.stderr) == ("answer b'?'\n", "drain\n")


def test_what_was_read_and_cannot_be_told_loses_its_sandbox_and_no_other():
    program = """
sandbox._keep(Reply(action=lambda: 1 / 0), 1)
sandbox.drain(1)
print(ours.recv(1024))
"""
    assert ran(program).stdout == "b''\n"


def test_what_was_started_and_not_found_is_looked_at_again_and_before_the_next_one():
    program = """
import json, subprocess
from sandboxes.observation.guests import Guest, Running
with subprocess.Popen(["sleep", "1000"]) as sleeping:
    until_running(sleeping, b"1000")
    guest = Guest(sleeping.pid, 0, 0)
    for command in (b"shell", b"hidden"):
        runs = Running(command + b"\\0-x\\0", "/usr/bin/" + command.decode())
        sandbox._keep(Reply(starts=(guest, runs)), guest.thread)
    sandbox.drain(1)
    sleeping.kill()
print([(action["program"], *action["argv"]) for action in json.loads(ours.recv(4096)[4:])["actions"]])
"""
    assert ran(program).stdout == "[('/usr/bin/hidden', 'hidden', '-x'), ('/usr/bin/sleep', 'sleep', '1000')]\n"


LATE = """
import json, subprocess, time
from sandboxes.observation import server
from sandboxes.observation.guests import Guest

def looks():
    while sandbox.due_s is not None:
        time.sleep(max(0.0, sandbox.due_s - time.monotonic()))
        sandbox.report()
        yield

def asked_for(*argv):
    late = subprocess.Popen(["/bin/sh", "-c", "read line; exec sleep 1000"], stdin=subprocess.PIPE)
    until_running(late, b"/bin/sh")
    guest = Guest(late.pid, 0, 0)
    action = {"kind": "program", "program": "/usr/bin/sleep", "argv": list(argv), "at": 0.0,
        "pid": late.pid, "parent": 1, "cut": []}
    sandbox._keep(Reply(action=lambda: action, starts=(guest, guest.runs())), guest.thread)
    return late
"""


@pytest.mark.parametrize("asked", ["2000", "1000"])
def test_a_program_that_begins_late_is_compared_with_what_was_asked_for(asked):
    program = f"""
server.LOOKED_FOR_S = 60.0
with asked_for("sleep", "{asked}") as late:
    for number, _ in enumerate(looks()):
        if number == 2:
            late.stdin.write(b"\\n")
            late.stdin.flush()
    late.kill()
received = ours.recv(4096)
while received:
    length = int.from_bytes(received[:4], "big")
    print(*[action["argv"] for action in json.loads(received[4 : 4 + length])["actions"]])
    received = received[4 + length :]
"""
    run = ran(LATE + program)
    corrected = ["['sleep', '1000']"] if asked == "2000" else []
    assert (run.stdout.splitlines(), run.stderr) == ([f"['sleep', '{asked}']", *corrected], "")


def test_a_late_program_is_looked_for_ever_more_rarely_and_not_for_ever():
    program = """
server.LOOKED_FOR_S = 0.1
with asked_for("sleep", "1000") as late:
    print(sum(1 for _ in looks()))
    late.kill()
"""
    # After 3, 6, 12, 24 and 48 ms, and what is left of 100.
    run = ran(LATE + program)
    assert (run.stdout, run.stderr) == ("6\n", "")


def test_an_empty_command_line_is_a_program_that_has_not_begun():
    """The kernel makes it late in ``execve``, when the former one is gone."""
    started = Started(Mock(), Running(b"sh\0", "/usr/bin/sh"), {"argv": ["sleep", "1"], "cut": []})
    assert not begun(started, Running(b"", "/usr/bin/sleep"))
    assert begun(started, Running(b"sleep\0001\0", "/usr/bin/sleep"))


def test_a_late_program_of_one_sandbox_holds_up_no_report_of_another():
    program = """
others, reports = socket.socketpair()
other = Observed(os.pipe()[0], reports, os.getpid(), 16)
control, worker = socket.socketpair()
server = Server(control, os.pidfd_open(os.getpid()))
sandbox._expect_report(time.monotonic() + 1000)
other._keep(Reply(action=lambda: {"kind": "program", "program": "/bin/x", "at": 0.0, "pid": 1, "parent": 1}), 1)
for observed in (sandbox, other):
    server._watch(observed)
time.sleep(server._patience_s())
server._report()
print(json.loads(others.recv(4096)[4:])["actions"][0]["program"])
"""
    run = ran(LATE + program)
    assert (run.stdout, run.stderr) == ("/bin/x\n", "")


async def test_a_program_is_started_by_the_agent_without_a_question_but_its_own(observing):
    """Each costs a switch to the observer and back; a file that the agent opened to write would be reported."""
    async with observing() as seen:
        await seen.sandbox.exec(["/bin/true"])
        result = await seen.sandbox.exec(["cat", "/proc/self/oom_score_adj", "/proc/1/oom_score_adj"])
        await seen.sandbox.settled()
    own = Path("/proc/self/oom_score_adj").read_text().strip()
    assert result.stdout.split() == ["1000", own]
    assert [action.path for action in seen.actions if action.operation not in (None, "read")] == []
    assert [action.program for action in seen.programs()] == ["/usr/bin/true", "/usr/bin/cat"]
