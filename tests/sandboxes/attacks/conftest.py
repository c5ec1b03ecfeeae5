"""Where attacks are staged: sandboxes of each network, guarded before, and looked for afterwards.

No attack starts where there is any way out but the sandbox's own loopback (``watched_scene.guard``), and after each
one not a single process of its sandboxes may be alive.
"""

import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxes.interface import ExecResult, Sandbox
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import opened_after_another
from tests.sandboxes.watched_scene import NOWHERE, refuse_other_ways_out

PROLOGUE = """
import ctypes, errno, os, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
def call(name, *arguments):
    got = getattr(libc, name)(*arguments)
    if got < 0: raise OSError(ctypes.get_errno(), name)
    return got
def system(numbers, *arguments):
    return call("syscall", numbers[NUMBERS] if isinstance(numbers, tuple) else numbers, *arguments)
def write(path, text):
    with open(path, "w") as file: file.write(text)
def read(path):
    with open(path, "rb") as file: return file.read(4096)
def report(tried):
    # Names of what worked: nothing should.
    worked = []
    for name, action in tried.items():
        try: action()
        except (OSError, ValueError, subprocess.SubprocessError): continue
        worked.append(name)
    print("worked:", sorted(worked))
"""


@dataclass(frozen=True)
class Arena:
    """One sandbox, and how a program of an attacker runs in it."""

    sandbox: Sandbox

    async def attack(self, program: str, **options: float) -> ExecResult:
        await refuse_other_ways_out(self.sandbox)
        return await self.assault(program, **options)

    async def assault(self, program: str, **options: float) -> ExecResult:
        """For a sandbox that was guarded and may be too damaged by now to be asked again."""
        code = PROLOGUE + textwrap.dedent(program)
        return await self.sandbox.exec(["/usr/bin/python3", "-S", "-c", code], **options)


MakeArena = Callable[..., Awaitable[Arena]]


@pytest.fixture(params=["none", "zygote", pytest.param("watched", marks=pytest.mark.soak), "observed"])
async def make_arena(request) -> AsyncIterator[MakeArena]:
    """Makes arenas of fields of ``SandboxSpec``; ends them, and looks whether anybody has survived.

    What is observed is watched, too.
    """
    sandboxes: list[Sandbox] = []
    async with AsyncExitStack() as stack:

        async def make(**fields: object) -> Arena:
            network = "none" if request.param in ("none", "zygote") else "watched"
            spec = SandboxSpec(**({"network": network, "timeout_s": 20} | fields))
            on_action = (lambda _: None) if request.param == "observed" else None
            first = request.param != "zygote"
            opening = opened(spec, upstream=NOWHERE, on_action=on_action) if first else opened_after_another(spec)
            sandbox = await stack.enter_async_context(opening)
            await refuse_other_ways_out(sandbox)
            sandboxes.append(sandbox)
            return Arena(sandbox)

        yield make
        alive = {sandbox: await _processes(sandbox) for sandbox in sandboxes if sandbox.alive}
    survivors = [pid for found in alive.values() for pid, started in found if started and _started(pid) == started]
    assert survivors == []


@pytest.fixture
async def arena(make_arena) -> Arena:
    return await make_arena()


async def _processes(sandbox: Sandbox) -> list[tuple[int, str]]:
    return [(process.pid, _started(process.pid)) for process in (await sandbox.inspect()).processes]


def _started(pid: int) -> str:
    """When it started; empty once it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
