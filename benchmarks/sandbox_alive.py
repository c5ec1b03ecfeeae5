"""Many sandboxes alive at once: does each of them answer, and what do they take?"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.sandbox_room import Room, available_bytes, kept_free_bytes
from sandboxes.interface import ExecResult, Sandbox, SandboxLost, SandboxUnavailable
from sandboxes.opened import open_sandbox
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

AT_ONCE = 8
ANSWER_S = 30.0
"""One that has not answered by then does not count; a thousand interpreters on a few cores take their time."""
SPEC = SandboxSpec(timeout_s=ANSWER_S)
PROGRAM = ["/usr/bin/python3", "-S", "-c"]


@dataclass(frozen=True)
class Alive:
    sandboxes: int
    """Alive when all had been asked."""
    asked_for: int
    bound: str | None
    """Why there are fewer than were asked for."""
    share_answered: float
    """The share of the sandboxes that this machine was to hold: those that ran a program, and answered, while all were
    alive."""
    failures: dict[str, int]
    """Why the others did not, and how many of them."""
    opened_per_s: float
    """One cell in each included."""
    mib_per_sandbox: float
    """Proportional set size of all processes of a sandbox: pages that are shared are divided among their users."""
    available_mib_per_sandbox: float
    """By how much the machine's available memory fell: the kernel's part too, and whatever others did meanwhile."""
    processes_per_sandbox: float
    processes_unseen: int
    """Those whose memory the kernel does not show us, and which are not in ``mib_per_sandbox``."""
    descriptors_per_sandbox: float
    """They are counted in this process."""


@dataclass
class _Sandboxes:
    opened: list[Sandbox] = field(default_factory=list)
    stopped_because: str | None = None
    failures: Counter[str] = field(default_factory=Counter)


async def alive(asked_for: int, room: Room, spec: SandboxSpec = SPEC) -> Alive:
    """As many sandboxes as ``room`` has, all closed when this ends, however it does."""
    others, descriptors, available = _descendants(os.getpid()), _descriptors(), available_bytes()
    sandboxes = _Sandboxes()
    try:
        started = time.perf_counter()
        await _side_by_side(AT_ONCE, (partial(_open, sandboxes, spec) for _ in range(room.sandboxes)))
        took_s = time.perf_counter() - started
        answers: list[int] = []
        await _side_by_side(
            AT_ONCE, (partial(_ask, sandboxes, sandbox, n, answers) for n, sandbox in enumerate(sandboxes.opened))
        )
        living = sum(sandbox.alive for sandbox in sandboxes.opened)
        pids = _descendants(os.getpid()) - others
        memory_kib = [_pss_kib(pid) for pid in pids]
        return Alive(
            sandboxes=living,
            asked_for=asked_for,
            bound=sandboxes.stopped_because or room.bound,
            share_answered=len(answers) / room.sandboxes if room.sandboxes else 0.0,
            failures=dict(sandboxes.failures),
            opened_per_s=living / took_s,
            mib_per_sandbox=sum(kib or 0 for kib in memory_kib) / 1024 / max(1, living),
            available_mib_per_sandbox=(available - available_bytes()) / 2**20 / max(1, living),
            processes_per_sandbox=len(pids) / max(1, living),
            processes_unseen=memory_kib.count(None),
            descriptors_per_sandbox=(_descriptors() - descriptors) / max(1, living),
        )
    finally:
        await completed(_close(sandboxes.opened))


async def _side_by_side(at_once: int, work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run the jobs, ``at_once`` of them at a time."""
    waiting = iter(work)

    async def worker() -> None:
        for job in waiting:
            await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())


async def _open(sandboxes: _Sandboxes, spec: SandboxSpec) -> None:
    """With its interpreter started: a sandbox that was used.  The first that cannot be made is the last."""
    if sandboxes.stopped_because is not None:
        return
    if available_bytes() < kept_free_bytes():
        sandboxes.stopped_because = f"memory: less than {kept_free_bytes() / 2**20:.0f} MiB left for everybody else"
        return
    try:
        sandbox = await open_sandbox(spec)
    except (SandboxUnavailable, OSError) as error:
        sandboxes.stopped_because = f"sandbox {len(sandboxes.opened) + 1} could not be made: {error}"
        return
    sandboxes.opened.append(sandbox)
    await _answered(sandboxes, sandbox.run_python("print(6 * 7)"), "42\n")


async def _ask(sandboxes: _Sandboxes, sandbox: Sandbox, number: int, answers: list[int]) -> None:
    if await _answered(sandboxes, sandbox.exec([*PROGRAM, f"print({number})"]), f"{number}\n"):
        answers.append(number)


async def _answered(sandboxes: _Sandboxes, call: Awaitable[ExecResult], wanted: str) -> bool:
    try:
        result = await call
    except SandboxLost as loss:
        sandboxes.failures[f"lost: {loss}"] += 1
        return False
    if result.outcome != "ok" or result.stdout != wanted:
        sandboxes.failures[f"{result.outcome}: {result.stderr.strip()[-200:]}"] += 1
        return False
    return True


async def _close(sandboxes: list[Sandbox]) -> None:
    """Every one, however the close of another ends; then raise what went wrong first."""
    failures: list[Exception] = []

    async def close(sandbox: Sandbox) -> None:
        try:
            await sandbox.close()
        except Exception as error:  # the others are to be closed first
            failures.append(error)

    await _side_by_side(AT_ONCE, (partial(close, sandbox) for sandbox in sandboxes))
    if failures:
        raise failures[0]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _descendants(ancestor: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(parent, []).append(int(pid))
    found, pending = set(), [ancestor]
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending += below
    return found


def _pss_kib(pid: int) -> int | None:
    """None for a process that the kernel does not let us look into: as an ordinary user, the undumpable agent."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), None)
