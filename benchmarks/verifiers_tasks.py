"""The same tasks with the same replies: scored by verifiers in its own interpreter, and played as an environment here.

    python -m benchmarks.verifiers_tasks PYTHON

PYTHON is the interpreter of a virtual environment with verifiers v1 (``./dev test protocols`` makes one).  Both arms
score each task with the taskset's own rewards; ours asks the process that holds it to ``reset``, ``act`` and ``score``.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.environments.contract import Environment
from engine.environments.registry import environment_for
from engine.spec.foreign_environments import ProcessLimits, VerifiersTaskset
from engine.spec.message import AssistantMessage
from engine.spec.run import Dataset

TASKS, ROUNDS = 500, 5
ROOT = Path(__file__).parents[1]
NAME = "palestra_measured_taskset"
TASKSET = f"""
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Task(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

class Config(vf.TasksetConfig):
    num_tasks: int = {TASKS}

class Adding(vf.Taskset[Task, Config]):
    def load(self):
        numbers = range(self.config.num_tasks)
        return [Task(Data(prompt=f"{{n}}+{{n}}=?", answer=str(2 * n)), self.config.task) for n in numbers]
"""
PEER = f"""
import asyncio, json, sys, time
from palestra_env.adapters.verifiers_tasksets import trace_of
from {NAME} import Adding, Config
tasks = list(Adding(Config()))

async def scored():
    total = 0.0
    for task in tasks:
        trace = trace_of(task, "4")
        await task.score(trace)
        total += trace.reward
    return total

for line in sys.stdin:
    began = time.monotonic()
    total = asyncio.run(scored())
    print(json.dumps([(time.monotonic() - began) / len(tasks), total]), flush=True)
"""


@dataclass(frozen=True)
class VerifiersCost:
    """Medians of the rounds, in which the arms took turns."""

    own_ms: float
    """An episode here."""
    verifiers_ms: float
    """A score there."""
    rewards_are_equal: bool


def measured(python: Path) -> VerifiersCost:
    """Takes some seconds."""
    python = python.absolute()
    with _installed(python):
        described = VerifiersTaskset(
            taskset=f"{NAME}:Adding", python=str(python), heldout_share=0,
            process=ProcessLimits(memory_mib=8192, processes=512, start_timeout_s=240),
        )  # fmt: skip
        environment = environment_for(described, Dataset())
        environment_tasks = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        command = [str(python), "-c", PEER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, env=environment_tasks, **pipes) as peer:  # type: ignore[call-overload]
            rounds = []
            for _ in range(ROUNDS):
                began = time.monotonic()
                total = asyncio.run(_played(environment))
                own = (time.monotonic() - began) / TASKS
                peer.stdin.write("\n")
                peer.stdin.flush()
                theirs, their_total = json.loads(peer.stdout.readline())
                rounds.append((own, theirs, total == their_total))
            peer.stdin.close()
    return VerifiersCost(
        own_ms=statistics.median(own for own, _, _ in rounds) * 1000,
        verifiers_ms=statistics.median(theirs for _, theirs, _ in rounds) * 1000,
        rewards_are_equal=all(equal for _, _, equal in rounds),
    )


async def _played(environment: Environment) -> float:
    total = 0.0
    for task in environment.tasks("train"):
        async with environment.session(task, None) as session:  # type: ignore[arg-type]
            await session.reset()
            await session.act(AssistantMessage("4"))
            rewards = await session.score()
            total += float(rewards.success) + sum(rewards.components.values())
    return total


@contextmanager
def _installed(python: Path) -> Iterator[None]:
    """The taskset stands in the interpreter's own environment, as its users install theirs."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    module = site / f"{NAME}.py"
    module.write_text(TASKSET)
    try:
        yield
    finally:
        module.unlink()


if __name__ == "__main__":
    print(json.dumps(asdict(measured(Path(sys.argv[1]))), indent=1))
