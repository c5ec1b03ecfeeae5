"""Episodes in worlds with sandboxes: ``./dev bench rollouts [--json FILE] [--rounds 3] [--at-once 64]``.

An episode is one of the project's terminal tasks, whose reference solution works in a sandbox of its own, and whose
tests run in another one, as a policy's do; 64 of them run at once.  Told are episodes per second and memory per
episode, on namespaces and, with ``--docker-image``, in containers; and what an environment in a process of its own
costs per call, beside the same code in this process; and where verifiers is installed, what its tasks cost when they
are played as episodes here, beside their being scored by verifiers alone.
"""

import argparse
import asyncio
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import environment_process, machine, verifiers_tasks
from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, figure, headline_table, report_file, write_report
from devtools.measure import MIB, descendants, proportional_bytes
from engine.environments.terminal.checking import Due, Trial, made
from engine.environments.terminal.own.making import write_tasks
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.task_set import read_tasks
from engine.spec.environment import Terminal

AT_ONCE = 64
EPISODES = 128
"""The episodes of a round."""
LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Round:
    """One round on one backend."""

    episodes_per_s: float
    memory_mib: float | None
    """Proportional memory above what there was before, at its highest, for each episode at once; None for containers,
    whose processes are their daemon's."""
    episode_s: Distribution
    unsolved: int
    """Episodes whose solution was not paid: 0, or the figures say nothing."""


def main() -> int:
    options = _options()
    console = Console(width=max(120, Console().width))
    rounds: dict[str, list[Round]] = {}
    with TemporaryDirectory(prefix="palestra-bench-") as folder:
        write_tasks(Path(folder, "tasks"), seed=0)
        tasks = read_tasks(Path(folder, "tasks")).tasks
        for backend, settings in backends(options.docker_image).items():
            for number in range(options.rounds):
                measured = asyncio.run(played(settings, tasks, at_once=options.at_once, episodes=options.episodes))
                console.print(f"{backend}, round {number + 1}: {measured}")
                rounds.setdefault(backend, []).append(measured)
    process = environment_process.measured()
    beside = verifiers_tasks.measured(options.verifiers) if options.verifiers.exists() else None
    rows = headlines(rounds, process, at_once=options.at_once) + beside_verifiers(beside)
    console.print(headline_table(rows))
    if options.json:
        details = {"machine": machine.description(), "rounds": rounds, "environment process": asdict(process)}
        details["verifiers"] = None if beside is None else asdict(beside)
        write_report(options.json, rows, details)
    return 1 if any(measured.unsolved for of_backend in rounds.values() for measured in of_backend) else 0


def backends(docker_image: str | None) -> dict[str, Terminal]:
    """By name, with sandboxes as a run's spec has them by default."""
    usual = Terminal(tasks=".")
    found = {"namespaces": usual}
    if docker_image is not None:
        container = usual.sandbox.model_copy(update={"backend": "docker", "image": docker_image})
        found["containers"] = Terminal.model_validate({"tasks": ".", "sandbox": container.model_dump()})
    return found


async def played(settings: Terminal, tasks: Sequence[TerminalTask], *, at_once: int, episodes: int) -> Round:
    """One round: so many episodes, the tasks one after the other and again from the first."""
    due = [Due(tasks[number % len(tasks)], "oracle", number // len(tasks)) for number in range(episodes)]
    trials: list[Trial] = []
    with memory_above() as memory:
        began = time.monotonic()
        await made(settings, due, jobs=at_once, on_trial=lambda _, trial: trials.append(trial))
        seconds = time.monotonic() - began
    return Round(
        episodes_per_s=episodes / seconds,
        memory_mib=memory.peak_mib / min(at_once, episodes) if settings.sandbox.backend == "namespaces" else None,
        episode_s=Distribution.of([trial.seconds for trial in trials]),
        unsolved=sum(trial.reward is None or trial.reward < 1 for trial in trials),
    )


class _Memory:
    """What this process and all below it have beyond what they had at first, at its highest."""

    def __init__(self) -> None:
        self._before, self.peak_mib = _now_mib(), 0.0

    def look(self) -> None:
        self.peak_mib = max(self.peak_mib, _now_mib() - self._before)


@contextmanager
def memory_above() -> Iterator[_Memory]:
    """Looked at every half second until the end of the block."""
    memory, over = _Memory(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_EVERY_S):
            memory.look()

    watching = threading.Thread(target=watch, name="memory")
    watching.start()
    try:
        yield memory
    finally:
        over.set()
        watching.join()


def _now_mib() -> float:
    return sum(proportional_bytes(pid) for pid in descendants()) / MIB


def headlines(
    rounds: dict[str, list[Round]], process: environment_process.EnvironmentProcessCost, *, at_once: int
) -> list[Headline]:
    rows = []
    for backend in ("namespaces", "containers"):
        measured = rounds.get(backend)
        of_backend = f"{backend}, {at_once} at once"
        speeds = None if measured is None else Distribution.of([one.episodes_per_s for one in measured])
        held = [played.memory_mib for played in measured or () if played.memory_mib is not None]
        memory = Distribution.of(held) if held else None
        rows += [figure(f"episodes per second: {of_backend}", speeds), figure(f"MiB per episode: {of_backend}", memory)]
    return [
        *rows,
        figure("ms per call of an environment in a process of its own", process.call_ms),
        figure("ms per call of the same code in this process", process.own_call_ms),
        figure("calls per second of 64 episodes in one such process", process.calls_per_s_of_64),
        figure("MiB of such a process", process.memory_mib),
    ]


def beside_verifiers(cost: verifiers_tasks.VerifiersCost | None) -> list[Headline]:
    """Rewards that differ leave nothing to compare."""
    fits = cost is not None and cost.rewards_are_equal
    return [
        figure("ms per episode of a task of verifiers, played here", cost.own_ms if cost and fits else None),
        figure("ms per score of the same task by verifiers alone", cost.verifiers_ms if cost and fits else None),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench rollouts", description="Episodes in sandboxes, many at once.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--rounds", type=int, default=3, help="of each backend (default 3)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"episodes (default {AT_ONCE})")
    parser.add_argument("--episodes", type=int, default=EPISODES, help=f"of a round (default {EPISODES})")
    parser.add_argument(
        "--docker-image", metavar="NAME:N", help="also in containers of this image of the registry (docs/images.md)"
    )
    home = Path(os.environ.get("PALESTRA_HOME", ".palestra"))
    peer = home / "protocols" / "verifiers" / "bin" / "python"
    parser.add_argument(
        "--verifiers",
        type=Path,
        default=peer,
        metavar="PYTHON",
        help="an interpreter that has it",
    )
    options = parser.parse_args()
    if min(options.rounds, options.at_once, options.episodes) < 1:
        parser.error("--rounds, --at-once and --episodes must be at least 1")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
