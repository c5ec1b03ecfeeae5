"""By how much a flood in one sandbox slows another's cells: ``./dev bench sandbox_neighbours [--json FILE]``.

Both sandboxes are watched, and served by this process's event loop.  Each round times one-statement cells of
the neighbour first beside a sandbox that sleeps, then beside one that floods; the ratio is that of the medians.
A program that only computes is the control: so much costs the processor alone.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.distribution import Distribution
from benchmarks.headline import report_file
from sandboxes.interface import Sandbox
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

MOST_RATIO = 5.0
CONTROL = "nothing, by a program that only computes"
WARM_UP_S = 0.5
LONGEST_S = 600.0
PROLOGUE = """
import socket
question = b"\\0\\7\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3net\\0\\0\\1\\0\\1"
def send(made, say, to):
    try: made.sendto(say, to)
    except OSError: pass
def connect(to):
    made = socket.socket(); made.setblocking(False); made.connect_ex(to); made.close()
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
"""
FLOODS = {
    CONTROL: "while True: pass",
    "questions (DNS)": 'while True: send(datagram, question, ("203.0.113.53", 53))',
    "connections": 'while True: connect(("203.0.113.5", 443))',
    "connections to many places": 'n = 0\nwhile True: n += 1; connect(("203.0.113.%d" % (n % 250), 1 + n % 65000))',
    "the gateway's own port": 'while True: connect(("127.0.0.1", 1))',
    "datagrams": 'while True: send(datagram, b"x", ("203.0.113.5", 9))',
    "refused sockets": "while True:\n  try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\n  except OSError: pass",
}


def main() -> None:
    options = _options()
    described = machine.description()
    ratios = asyncio.run(measured(options.rounds, options.cells))
    report: dict[str, Any] = {"headline": headline(ratios), "ratios": {k: asdict(v) for k, v in ratios.items()}}
    report["machine"] = described | {"load_1min_after": machine.description()["load_1min"]}
    _print(ratios)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


def headline(ratios: dict[str, Distribution]) -> list[dict[str, Any]]:
    return [
        {
            "what": f"a neighbour's cell beside a flood of {name}, times as long as beside a quiet sandbox",
            "value": round(ratio.median, 2),
            "spread": [round(ratio.min, 2), round(ratio.max, 2)],
            "target": None if name == CONTROL else f"<= {MOST_RATIO:g}",
            "met": None if name == CONTROL else ratio.median <= MOST_RATIO,
        }
        for name, ratio in ratios.items()
    ]


async def measured(rounds: int, cells: int) -> dict[str, Distribution]:
    """The ratio of each kind, over the rounds."""
    found: dict[str, list[float]] = {name: [] for name in FLOODS}
    for _ in range(rounds):
        for name, program in FLOODS.items():
            found[name].append(await _ratio(PROLOGUE + program, cells))
    return {name: Distribution.of(ratios) for name, ratios in found.items()}


async def _ratio(program: str, cells: int) -> float:
    spec = SandboxSpec(network="watched", timeout_s=LONGEST_S)
    async with opened(spec) as neighbour, opened(spec) as flooding:
        quiet = await _median_s(neighbour, cells)
        running = asyncio.create_task(_flood(flooding, program))
        await asyncio.sleep(WARM_UP_S)
        try:
            return await _median_s(neighbour, cells) / quiet
        finally:
            running.cancel()
            await asyncio.wait([running])


async def _median_s(sandbox: Sandbox, cells: int) -> float:
    return Distribution.of([await _timed(sandbox.run_python("2 + 2")) for _ in range(cells)]).median


async def _timed(cell: Awaitable[object]) -> float:
    started = time.perf_counter()
    await cell
    return time.perf_counter() - started


async def _flood(sandbox: Sandbox, program: str) -> None:
    await sandbox.exec(["/usr/bin/python3", "-S", "-c", program], timeout_s=LONGEST_S)


def _print(ratios: dict[str, Distribution]) -> None:
    table = Table("flood", "times as slow, median (least to most)", "target")
    for name, ratio in ratios.items():
        table.add_row(name, str(ratio), "" if name == CONTROL else f"<= {MOST_RATIO:g}")
    Console().print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", type=int, default=300, help="of the neighbour, in each half of a round")
    parser.add_argument("--json", type=report_file)
    return parser.parse_args()


if __name__ == "__main__":
    main()
