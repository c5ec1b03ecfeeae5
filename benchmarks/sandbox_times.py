"""How long one statement takes in each kind of sandbox and next to none, and how many life cycles fit into a second."""

import asyncio
import itertools
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from benchmarks.sandbox_docker import Docker
from benchmarks.sandbox_gateway import transfers
from benchmarks.sandbox_report import CYCLES, PEER
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.interface import Sandbox
from sandboxes.opened import open_sandbox, opened
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

CODE = "print(6 * 7)"
PYTHON = ["/usr/bin/python3", "-S", "-c", CODE]
SPEC = SandboxSpec()
USED_AGAIN = SandboxSpec(reuse="reset")
WATCHED = SandboxSpec(network="watched")
PLAIN_BWRAP = [
    "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
    "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev",
    "--tmpfs", "/tmp",
]  # fmt: skip
WRITTEN = 20
WRITES = f"for number in range({WRITTEN}): open(f'file-{{number}}', 'w').close()"
CYCLERS = 4
RATE_TURNS = 5
WARM_UP = 2
"""Turns that nobody counts."""
PROCESS_S = 120.0

Timed = Callable[[], Awaitable[dict[str, float]]]
"""Milliseconds by kind."""


async def milliseconds(turns: int, docker: Docker | None) -> dict[str, list[float]]:
    """Every kind once in each turn."""
    async with (
        Pool(SPEC, 2) as pool,
        Pool(USED_AGAIN, 2) as pool_of_used,
        opened(SPEC) as session,
        opened(WATCHED) as watched,
        opened(WATCHED, on_action=_ignored) as observed,
    ):
        await pool.warm()
        await pool_of_used.warm()
        timed: list[Timed] = [partial(_process, "bare process", PYTHON)]
        timed.append(partial(_process, "plain bwrap", [*PLAIN_BWRAP, *PYTHON]))
        if docker:
            timed.append(partial(_process, PEER, [*docker.command, *PYTHON], docker.environment))
        timed += [_cold, _watched, partial(_pooled, "pooled", pool), partial(_pooled, "pooled, reset", pool_of_used)]
        timed += [partial(_session, session), _freeze]
        both = {"watched": watched, "observed": observed}
        timed.append(partial(_observed, itertools.cycle((both, dict(reversed(both.items()))))))
        found: dict[str, list[float]] = {}
        for turn in range(WARM_UP + turns):
            for kind in timed:
                for name, took in (await kind()).items():
                    found.setdefault(name, []).extend([took] if turn >= WARM_UP else [])
    return found


async def rates(seconds: float, docker: Docker | None) -> dict[str, list[float]]:
    """Life cycles and transfers, each kind for ``seconds`` in all, in turns."""
    each_s = seconds / RATE_TURNS
    async with AsyncExitStack() as stack:
        kinds: dict[str, Callable[[], Awaitable[float]]] = {CYCLES: lambda: _per_s(_cycle, each_s)}
        if docker:
            kinds[f"{PEER}/s"] = lambda: _per_s(partial(_in_docker, docker), each_s)
        kinds |= await stack.enter_async_context(transfers(each_s))
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(RATE_TURNS):
            for kind, rate in kinds.items():
                found[kind].append(await rate())
    return found


async def limits() -> str:
    async with opened(SPEC) as sandbox:
        return (await sandbox.inspect()).limits


async def _process(kind: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, float]:
    started = time.perf_counter()
    # Nothing else is to run meanwhile.
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=PROCESS_S)  # noqa: ASYNC221
    took = _since(started)
    if done.returncode or done.stdout != b"42\n":
        raise RuntimeError(f"{kind} does not compute: {done}")
    return {kind: took}


async def _cold() -> dict[str, float]:
    """From nothing to the first output; the life cycle is over when the sandbox is closed."""
    started = time.perf_counter()
    sandbox = await open_sandbox(SPEC)
    try:
        await _cell(sandbox)
        first = _since(started)
    finally:
        await sandbox.close()
    return {"cold sandbox": first, "life cycle": _since(started)}


async def _watched() -> dict[str, float]:
    started = time.perf_counter()
    async with opened(WATCHED) as sandbox:
        await _cell(sandbox)
        return {"cold watched": _since(started)}


async def _pooled(kind: str, pool: Pool) -> dict[str, float]:
    """Acquire and one cell; then, outside that clock, until the pool is ready for the next user."""
    started = time.perf_counter()
    async with pool.acquire() as sandbox:
        await _cell(sandbox)
        took = _since(started)
    started = time.perf_counter()
    while pool.stats().cleaning:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return {kind: took, f"{kind}: next one": _since(started)}


async def _session(sandbox: Sandbox) -> dict[str, float]:
    """What one may ask of a sandbox again and again."""
    await _cell(sandbox)  # whatever the first one costs after a reset
    found = {"cell in session": await _cell(sandbox)}
    started = time.perf_counter()
    done = await sandbox.exec(PYTHON)
    found["program in session"] = _since(started)
    if done.stdout != "42\n":
        raise RuntimeError(f"a sandbox that does not compute: {done}")
    started = time.perf_counter()
    snapshot = await sandbox.snapshot()
    found["snapshot"] = _since(started)
    started = time.perf_counter()
    await sandbox.restore(snapshot)
    found["restore"] = _since(started)
    started = time.perf_counter()
    await sandbox.reset()
    return found | {"reset": _since(started)}


async def _observed(orders: Iterator[Mapping[str, Sandbox]]) -> dict[str, float]:
    """The same in a watched sandbox and in one whose processes are observed as well; who is first takes turns."""
    found: dict[str, float] = {}
    for kind, sandbox in next(orders).items():
        found[f"{kind} cell"] = await _cell(sandbox)
        for what, argv in (("exec", ["/bin/true"]), ("program", PYTHON)):
            started = time.perf_counter()
            await sandbox.exec(argv)
            found[f"{kind} {what}"] = _since(started)
        started = time.perf_counter()
        await sandbox.run_python(WRITES)
        found[f"{kind} {WRITTEN} files written"] = _since(started)
    return dict(sorted(found.items()))


def _ignored(_: ObservedAction) -> None:
    """What an action costs beyond this is the detectors'."""


async def _cell(sandbox: Sandbox) -> float:
    started = time.perf_counter()
    result = await sandbox.run_python(CODE)
    took = _since(started)
    if result.stdout != "42\n":
        raise RuntimeError(f"a sandbox that does not compute: {result}")
    return took


async def _freeze() -> dict[str, float]:
    """Freeze a busy sandbox: the time runs from the call until nobody in it runs any more."""
    async with opened(SPEC) as sandbox:
        spinning = asyncio.create_task(sandbox.run_python("while True: pass"))
        await asyncio.sleep(0.01)
        started = time.perf_counter()
        await sandbox.freeze("measured")
        took = _since(started)
        await asyncio.gather(spinning, return_exceptions=True)
    return {"freeze": took}


async def _per_s(work: Callable[[], Awaitable[None]], seconds: float) -> float:
    """``CYCLERS`` at a time; the last ones are waited for, and counted."""
    started, done = time.perf_counter(), 0

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - started < seconds:
            await work()
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CYCLERS):
            group.create_task(worker())
    return done / (time.perf_counter() - started)


async def _cycle() -> None:
    async with opened(SPEC) as sandbox:
        await _cell(sandbox)


async def _in_docker(docker: Docker) -> None:
    run = await asyncio.create_subprocess_exec(
        *docker.command, *PYTHON, env=docker.environment, stdout=subprocess.DEVNULL
    )
    if await run.wait():
        raise RuntimeError(f"docker run failed ({run.returncode})")


def _since(started: float) -> float:
    return 1000 * (time.perf_counter() - started)
