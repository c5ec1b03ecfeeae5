"""Programs that turn against whoever judges them: the watch, the agent, the tests, the next user."""

import asyncio

import pytest

from sandboxes.interface import SandboxFrozen, SandboxLost
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.sandboxes.watched_scene import NOWHERE, scene

TESTS = b"import solution\nassert solution.answer() == 42, 'wrong'\nprint('passed')\n"
GUARDIANS = """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    for fd in (0, 1, 2): os.close(fd)
    while True:
        for path in ("/work/hidden_test.py", "/tmp/hidden_test.py"):
            if os.path.exists(path):
                write("/work/new", "print('passed')"); os.replace("/work/new", path)
write("/work/solution.py", "def answer(): return 41")
write("/work/sitecustomize.py", "print('passed'); import os; os._exit(0)")
write("/work/usercustomize.py", "print('passed'); import os; os._exit(0)")
write("/work/os.py", "print('passed'); raise SystemExit")
"""


async def judged(sandbox) -> str:
    """As a careful judge does it: after a reset, in isolation, with nothing but the answer taken over."""
    solution = await sandbox.read_file("solution.py")
    await sandbox.reset()
    await sandbox.write_file("solution.py", solution)
    await sandbox.write_file("hidden_test.py", TESTS)
    judge = "import sys; sys.path.insert(0, '/work'); exec(open('/work/hidden_test.py').read())"
    return (await sandbox.exec(["/usr/bin/python3", "-I", "-S", "-c", judge])).stdout


async def test_hidden_tests_are_not_edited_by_what_was_left_behind(arena):
    await arena.attack(GUARDIANS)
    assert await judged(arena.sandbox) == ""
    await arena.sandbox.write_file("solution.py", b"def answer(): return 42")
    assert await judged(arena.sandbox) == "passed\n"


async def test_what_waits_for_hidden_tests_does_not_survive_a_restore(arena):
    kept = await arena.sandbox.snapshot()
    await arena.attack(GUARDIANS)
    await arena.sandbox.restore(kept)
    await arena.sandbox.write_file("hidden_test.py", TESTS)
    await asyncio.sleep(0.3)
    assert await arena.sandbox.read_file("hidden_test.py") == TESTS
    assert len((await arena.sandbox.inspect()).processes) <= 3


async def test_a_prelude_is_run_again_as_the_host_wrote_it(arena):
    await arena.sandbox.set_prelude("def check(x): return x == 42")
    await arena.sandbox.run_python("def check(x): return True\nimport builtins; builtins.check = check")
    assert (await arena.sandbox.run_python("while True: pass", timeout_s=0.3)).outcome == "timeout"
    assert (await arena.sandbox.run_python("check(41)")).stdout == "False\n"


async def test_nobody_speaks_to_the_host_but_the_agent(arena):
    """Every descriptor that a guest has or finds is written to; at most its own interpreter suffers."""
    forged = """
forged = b"\\0\\0\\0\\x05\\0\\0\\0\\1\\2" * 100
for pid in ("self", "1", str(os.getppid())):
    for fd in range(3, 256):
        try: os.write(os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK), forged)
        except OSError: pass
        try: os.write(fd, forged)
        except OSError: pass
"""
    await arena.attack(forged)
    await arena.sandbox.run_python("import os\n" + forged)
    assert (await arena.sandbox.run_python("'alive'")).stdout == "'alive'\n"


@pytest.mark.parametrize(
    "program",
    [
        "[os.kill(1, n) for n in range(1, 65) if n not in (32, 33)]",
        "os.kill(-1, signal.SIGSTOP)",
        "os.kill(-1, signal.SIGKILL)",
        "for n in os.listdir('/proc'): n.isdigit() and n != str(os.getpid()) and os.kill(int(n), signal.SIGKILL)",
        "[os.fork() for _ in range(3)]\nwhile True: os.kill(1, signal.SIGCHLD)",
    ],
)
async def test_an_agent_that_is_attacked_serves_or_is_lost_and_nothing_else(arena, program):
    await arena.attack(program, timeout_s=1)
    try:
        await arena.sandbox.reset()
    except SandboxLost:
        return
    assert (await arena.sandbox.run_python("6 * 7")).stdout == "42\n"


async def test_a_watched_sandbox_is_not_made_blind():
    """Rules, names, interpreter start files, preloads: whatever is changed, the next attempt is recorded."""
    async with scene() as staged:
        result = await staged.attack("""
            import subprocess
            def run(*argv): return subprocess.run(argv, capture_output=True, timeout=5).returncode == 0
            for argv in (["nft", "flush", "ruleset"], ["/usr/sbin/nft", "flush", "ruleset"], ["iptables", "-F"],
                         ["ip", "link", "set", "lo", "down"], ["ip", "route", "add", "default", "dev", "lo"],
                         ["sysctl", "-w", "net.ipv4.ip_forward=1"], ["mount", "-t", "tmpfs", "x", "/etc"]):
                try: print(argv[0], run(*argv))
                except OSError: pass
            for path in ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ld.so.preload"):
                try:
                    open(path, "w"); print("wrote", path)
                except OSError: pass
                try:
                    os.rename(path, "/tmp/x"); print("moved", path)
                except OSError: pass
            attempt(tcp, "203.0.113.5", 22)
        """)
    assert "True" not in result.stdout
    assert "wrote" not in result.stdout
    assert "moved" not in result.stdout
    assert staged.attempts[-1].attempt.target == "tcp 203.0.113.5:22"
    assert not any(record.decision.allowed for record in staged.attempts)


async def test_fifty_attackers_in_turn_leave_a_healthy_pool():
    """Each does one of the worst things; every other one is frozen for it."""
    worst = [
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "x = []\nwhile True: x.append(b'x' * 2**20)",
        "import os\nfor n in range(20000): open(f'/tmp/{n}', 'w').close()",
        "import os\nos.kill(-1, 9)",
        "while True: print('x' * 65536)",
    ]
    spec = SandboxSpec(network="watched", timeout_s=0.5)
    async with Pool(spec, 3, upstream=NOWHERE) as pool:

        async def attacker(number: int) -> None:
            async with pool.acquire(f"user {number % 7}") as sandbox:
                attack = asyncio.create_task(sandbox.run_python(worst[number % len(worst)]))
                if number % 2:
                    await asyncio.sleep(0.1)
                    await sandbox.freeze("it attacks")
                await attack

        ends = await asyncio.gather(*(attacker(number) for number in range(50)), return_exceptions=True)
        assert {type(end) for end in ends} <= {type(None), SandboxFrozen, SandboxLost}, ends
        while pool.stats().cleaning:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert pool.stats().frozen >= 20
        assert pool.stats().busy == 0
        async with pool.acquire() as one, pool.acquire() as other, pool.acquire() as third:
            for sandbox in (one, other, third):
                assert (await sandbox.run_python("6 * 7", timeout_s=5)).stdout == "42\n"
