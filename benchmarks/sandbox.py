"""What a sandbox costs, next to a bare process and plain bubblewrap: ``./dev bench sandbox [--json FILE]``.

The kinds take turns inside each round, so that a busy machine is busy for all of them; compare
only within one table.  Every kind runs the same code, ``print(6 * 7)``, on the same interpreter.
"""

import argparse
import asyncio
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.measurement import Spread
from sandboxes.interface import Sandbox
from sandboxes.opened import open_box, opened
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

CODE = "print(6 * 7)"
PYTHON = ["/usr/bin/python3", "-S", "-c", CODE]
SPEC = SandboxSpec()
PLAIN_BWRAP = [
    "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
    "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev",
    "--tmpfs", "/tmp",
]  # fmt: skip
CYCLERS = 4
TARGETS = {"cold box": 25.0, "pooled": 1.0}
"""Medians in milliseconds."""

Timed = Callable[[], Awaitable[float]]


def main() -> None:
    options = _options()
    described = machine.description()
    measured = asyncio.run(_measured(options.rounds, options.alive, options.seconds))
    described["load_1min_after"] = machine.description()["load_1min"]
    Console().print(_table(measured["milliseconds"]))
    print(
        f"life cycles (open, one cell, close), {CYCLERS} at a time: {measured['cycles_per_s']:.0f}/s\n"
        f"{measured['alive']} boxes alive: {measured['mib_per_box']:.1f} MiB (PSS) and "
        f"{measured['descriptors_per_box']:.0f} descriptors each\n"
        f"Limits in force: {measured['limits']}\nMachine: {described}"
    )
    if options.json:
        spreads = {name: asdict(Spread.of(values)) for name, values in measured.pop("milliseconds").items()}
        report = {
            "benchmark": "sandbox",
            "machine": described,
            "targets_ms": TARGETS,
            "milliseconds": spreads,
            **measured,
        }
        options.json.write_text(json.dumps(report, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench sandbox", description="What a sandbox costs.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--rounds", type=int, default=50, help="measurements of each kind (default 50)")
    parser.add_argument("--alive", type=int, default=64, help="boxes for the memory measurement (default 64)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long life cycles are counted (default 5)")
    options = parser.parse_args()
    if min(options.rounds, options.alive) < 1 or options.seconds <= 0:
        parser.error("--rounds and --alive must be at least 1, --seconds more than 0")
    return options


async def _measured(rounds: int, alive: int, seconds: float) -> dict:
    milliseconds = await _latencies(rounds)
    return {
        "limits": await _limits(),
        "milliseconds": milliseconds,
        "cycles_per_s": await _cycles(seconds),
        **await _footprint(alive),
    }


async def _latencies(rounds: int) -> dict[str, list[float]]:
    async with Pool(SPEC, 2) as pool:
        await pool.warm()
        session = await open_box(SPEC)
        kinds: dict[str, Timed] = {
            "bare process": lambda: _process(PYTHON),
            "plain bwrap": lambda: _process([*PLAIN_BWRAP, *PYTHON]),
            "cold box": _cold,
            "pooled": lambda: _pooled(pool),
            "cell in a session": lambda: _cell(session),
            "program in a session": lambda: _program(session),
            "reset": lambda: _reset(session),
            "freeze": _freeze,
        }
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(rounds + 2):
            for kind, timed in kinds.items():
                took_s = await timed()
                if turn >= 2:  # two rounds to warm up
                    found[kind].append(1000 * took_s)
        await session.close()
    return found


async def _process(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.PIPE)  # noqa: ASYNC221  nothing else is to run meanwhile
    return time.perf_counter() - started


async def _cold() -> float:
    """From nothing to the first output; the close is not counted here, but in the life cycles."""
    started = time.perf_counter()
    box = await open_box(SPEC)
    await _cell(box)
    took_s = time.perf_counter() - started
    await box.close()
    return took_s


async def _pooled(pool: Pool) -> float:
    """Acquire and one cell; the reset happens after the user has gone, and is waited for outside the clock."""
    started = time.perf_counter()
    async with pool.acquire() as box:
        await _cell(box)
        took_s = time.perf_counter() - started
    while pool.stats().cleaning:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return took_s


async def _cell(box: Sandbox) -> float:
    started = time.perf_counter()
    result = await box.run_python(CODE)
    took_s = time.perf_counter() - started
    if result.stdout != "42\n":
        raise RuntimeError(f"a box that does not compute: {result}")
    return took_s


async def _program(box: Sandbox) -> float:
    started = time.perf_counter()
    await box.exec(PYTHON)
    return time.perf_counter() - started


async def _reset(box: Sandbox) -> float:
    started = time.perf_counter()
    await box.reset()
    return time.perf_counter() - started


async def _freeze() -> float:
    """Of a busy box: from the call until nobody in it runs any more."""
    async with opened(SPEC) as box:
        spinning = asyncio.create_task(box.run_python("while True: pass"))
        await asyncio.sleep(0.01)
        started = time.perf_counter()
        await box.freeze("measured")
        took_s = time.perf_counter() - started
        await asyncio.gather(spinning, return_exceptions=True)
    return took_s


async def _limits() -> str:
    async with opened(SPEC) as box:
        return (await box.inspect()).limits


async def _cycles(seconds: float) -> float:
    started, done = time.perf_counter(), 0

    async def cycle() -> None:
        nonlocal done
        while time.perf_counter() - started < seconds:
            box = await open_box(SPEC)
            await _cell(box)
            await box.close()
            done += 1

    await asyncio.gather(*(cycle() for _ in range(CYCLERS)))
    return done / (time.perf_counter() - started)


async def _footprint(alive: int) -> dict[str, float]:
    """Memory of all processes of a box (bubblewrap, agent, interpreter), shared pages divided among their users."""
    descriptors = len(os.listdir("/proc/self/fd"))
    async with Pool(SPEC, alive) as pool:
        await pool.warm()
        used = len(os.listdir("/proc/self/fd")) - descriptors
        return {
            "alive": alive,
            "mib_per_box": sum(_pss_kib(pid) for pid in _descendants(os.getpid())) / 1024 / alive,
            "descriptors_per_box": used / alive,
        }


def _descendants(ancestor: int) -> set[int]:
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(pid)] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    found, seen = {ancestor}, 0
    while len(found) > seen:
        seen = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {ancestor}


def _pss_kib(pid: int) -> int:
    """0 for a process that the kernel does not let us look into: as an ordinary user, the undumpable agent."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _table(milliseconds: dict[str, list[float]]) -> Table:
    table = Table(title="one Python statement, milliseconds")
    for column in ("kind", "median", "best", "90 %", "worst", "target (median)"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for kind, values in milliseconds.items():
        ranked = sorted(values)
        cells = (ranked[len(ranked) // 2], ranked[0], ranked[int(len(ranked) * 0.9)], ranked[-1])
        target = f"{TARGETS[kind]:g}" if kind in TARGETS else ""
        table.add_row(kind, *(f"{value:.2f}" for value in cells), target)
    return table


if __name__ == "__main__":
    main()
