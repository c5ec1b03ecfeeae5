"""What an environment in a process of its own costs: time per call and memory, beside the same code in this process.

    python -m benchmarks.environment_process

The package is the one that ``python -m engine environment new`` writes.  Both arms play the same calls, in turns.
"""

import asyncio
import contextlib
import importlib
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import palestra_env
from engine.environments.process.checking import memory_of
from engine.environments.process.environment import ProcessEnvironment
from engine.environments.process.package import package_environment, program_of
from engine.launch.environment_commands import parser
from engine.spec.foreign_environments import Package
from engine.spec.message import AssistantMessage

CALLS, ROUNDS = 400, 5
NAME = "measured-env"


@dataclass(frozen=True)
class EnvironmentProcessCost:
    """Medians of the rounds."""

    start_s: float
    """From nothing to the first answer, the package being installed."""
    call_ms: float
    """One ``act`` with one call, in the process."""
    own_call_ms: float
    """The same in this process."""
    calls_per_s_of_64: float
    """With 64 episodes at once in one process."""
    memory_mib: float
    """Resident, of the process with bubblewrap's; 0 where no cgroup counts them."""


def measured() -> EnvironmentProcessCost:
    """Measure both arms.  Takes some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        making = parser().parse_args(["new", NAME, "--folder", f"{folder}/{NAME}"])
        with contextlib.redirect_stdout(io.StringIO()):
            making.run(making)
        described = Package(path=f"{folder}/{NAME}")
        program = program_of(described)
        began = time.monotonic()
        environment = package_environment(described)
        start_s = time.monotonic() - began
        return asyncio.run(_compared(environment, _own(Path(folder)), start_s, lambda: memory_of(program)))


async def _compared(
    environment: ProcessEnvironment, own: Any, start_s: float, memory_bytes: Callable[[], int]
) -> EnvironmentProcessCost:
    calls, own_calls, many = [], [], []
    for _ in range(ROUNDS):
        calls.append(await _seconds_per_call(environment, AssistantMessage.calling("below", {"n": 3})))
        request = palestra_env.ToolRequest("below", {"n": 3}, "call-1")
        own_calls.append(await _seconds_per_call(own, palestra_env.AssistantMessage(requests=(request,))))
        began = time.monotonic()
        message = AssistantMessage.calling("below", {"n": 3})
        await asyncio.gather(*(_seconds_per_call(environment, message, calls=50) for _ in range(64)))
        many.append(64 * 50 / (time.monotonic() - began))
    return EnvironmentProcessCost(
        start_s=start_s,
        call_ms=statistics.median(calls) * 1000,
        own_call_ms=statistics.median(own_calls) * 1000,
        calls_per_s_of_64=statistics.median(many),
        memory_mib=memory_bytes() / 2**20,
    )


async def _seconds_per_call(environment: Any, message: Any, calls: int = CALLS) -> float:
    async with environment.session(environment.tasks("train")[0], None) as session:
        await session.reset()
        began = time.monotonic()
        for _ in range(calls):
            await session.act(message)
        return (time.monotonic() - began) / calls


def _own(folder: Path) -> Any:
    """The package's environment, imported here."""
    sys.path.insert(0, str(folder / NAME / "src"))
    try:
        return importlib.import_module(NAME.replace("-", "_")).Guessing()
    finally:
        sys.path.pop(0)


if __name__ == "__main__":
    print(json.dumps(asdict(measured()), indent=1))
