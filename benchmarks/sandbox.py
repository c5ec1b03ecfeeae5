"""What a sandbox costs, next to Docker, plain bubblewrap and a bare process: ``./dev bench sandbox [--json FILE]``.

The kinds take turns inside one run, so that a busy machine is busy for all of them; compare only within it.
docs/benchmarks.md says what each number is, and what it is not.
"""

import argparse
import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console

from benchmarks import machine, sandbox_room
from benchmarks.distribution import Distribution
from benchmarks.headline import headline_table, report_file, write_report
from benchmarks.sandbox_alive import alive
from benchmarks.sandbox_docker import Docker, DockerMissing, docker
from benchmarks.sandbox_report import (
    CYCLES,
    GATEWAY,
    OBSERVED,
    PEER,
    STATEMENTS,
    WANTED_ALIVE,
    headlines,
    rates_table,
    ratios,
    times_table,
)
from benchmarks.sandbox_times import limits, milliseconds, rates


def main() -> None:
    options = _options()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts without
    signal.signal(signal.SIGTERM, _end)
    described = machine.description()
    report = measured(options)
    report["machine"] = described | {"load_1min_after": machine.description()["load_1min"]}
    _print(report)
    if options.json:
        write_report(options.json, report.pop("headline"), report)


def _end(*_: object) -> None:
    """Like Ctrl-C, at which asyncio cancels the work: sandboxes and daemon are ended first."""
    signal.raise_signal(signal.SIGINT)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    sandbox_room.raise_descriptor_limit()
    with _peer(options.without_docker) as (peer, docker_note):
        times = asyncio.run(milliseconds(options.rounds, peer))
        per_s = asyncio.run(rates(options.seconds, peer))
    living = asdict(asyncio.run(alive(options.alive, sandbox_room.room(options.alive, sandbox_room.spare()))))
    found = {
        "milliseconds": {kind: Distribution.of(values) for kind, values in times.items()},
        "rates": {kind: Distribution.of(values) for kind, values in per_s.items()},
        "ratios": _ratios(times, per_s),
    }
    return {
        "headline": headlines(found["milliseconds"], found["ratios"], found["rates"], living),
        "benchmark": "sandbox",
        "docker": docker_note,
        "limits": asyncio.run(limits()),
        **found,
        "alive": living,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench sandbox", description="What a sandbox costs.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--rounds", type=int, default=50, help="measurements of each kind (default 50)")
    parser.add_argument(
        "--alive",
        type=int,
        default=WANTED_ALIVE,
        help=f"sandboxes alive at once (default {WANTED_ALIVE}, or what fits)",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each rate is measured (default 5)")
    parser.add_argument("--without-docker", action="store_true", help="leave `docker run` out")
    options = parser.parse_args()
    if min(options.rounds, options.alive) < 1 or options.seconds <= 0:
        parser.error("--rounds and --alive must be at least 1, --seconds more than 0")
    return options


@contextmanager
def _peer(without: bool) -> Iterator[tuple[Docker | None, str]]:
    """Docker, or why it is not measured."""
    with ExitStack() as stack:
        peer, docker_note = None, "not measured: --without-docker"
        if not without:
            try:
                peer = stack.enter_context(docker())
                docker_note = peer.description
            except DockerMissing as missing:
                docker_note = f"not measured: {missing}"
        yield peer, docker_note


def _ratios(times: dict[str, list[float]], per_s: dict[str, list[float]]) -> dict[str, Distribution]:
    """Turn by turn; of what was measured."""
    pairs = [(times, PEER, kind) for kind in STATEMENTS if kind != PEER]
    pairs += [(per_s, GATEWAY, kind) for kind in per_s if kind.endswith("Gbit/s") and kind != GATEWAY]
    pairs += [(times, f"observed {what}", f"watched {what}") for what in OBSERVED]
    pairs.append((per_s, CYCLES, f"{PEER}/s"))
    return {
        f"{above} / {below}": ratios(values[above], values[below])
        for values, above, below in pairs
        if above in values and below in values
    }


def _print(report: dict[str, Any]) -> None:
    console, living = Console(), report["alive"]
    console.print(times_table(report["milliseconds"], report["ratios"]))
    console.print(rates_table(report["rates"], report["ratios"]))
    console.print(headline_table(report["headline"]))
    unseen = f" ({living['processes_unseen']} not seen)" if living["processes_unseen"] else ""
    print(
        f"Docker: {report['docker']}\n"
        f"{living['sandboxes']} sandboxes alive, {living['share_answered']:.1%} answered; "
        f"opened {living['opened_per_s']:.0f}/s\n"
        f"Each sandbox: {living['mib_per_sandbox']:.1f} MiB (PSS){unseen}, "
        f"{living['processes_per_sandbox']:.1f} processes, "
        f"{living['descriptors_per_sandbox']:.1f} descriptors; available memory fell by "
        f"{living['available_mib_per_sandbox']:.1f} MiB each"
    )
    if living["sandboxes"] < living["asked_for"]:
        print(f"NOT {living['asked_for']} sandboxes: {living['bound']}")
    for failure, count in living["failures"].items():
        print(f"{count} times: {failure}")
    print(f"Limits in force: {report['limits']}\nMachine: {report['machine']}")


if __name__ == "__main__":
    main()
