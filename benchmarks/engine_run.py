"""The workload on Palestra's engine in one process: ``python -m benchmarks.engine_run WORKLOAD.json RUN.json``.

The same members as ``engine/control/local.py`` makes, and the loop's phases in its order.  What a
run also does and this does not: events, checkpoints, evaluation.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch

from benchmarks.measurement import Run, Step
from benchmarks.workload import Workload, digit_share, sampled_tokens, turns
from engine.control.boxes import opened_boxes
from engine.control.generators import generator_for
from engine.control.learner import Learner
from engine.inference.generator import Generator
from engine.rollout.environments import environment_for
from engine.rollout.requests import train_requests
from engine.rollout.worker import RolloutWorker
from engine.spec.generation import Generated, GenerateRequest
from engine.spec.trajectory import Trajectory

T = TypeVar("T")
PURIFICATIONS = ("purified", "purification-failed")


@dataclass(frozen=True)
class WithoutStop:
    """A ``TextGenerator`` whose turns end at ``max_new_tokens`` only."""

    generator: Generator

    async def generate(self, request: GenerateRequest) -> Generated:
        return await self.generator.generate(replace(request, stop_ids=frozenset()))

    async def rewind(self, session: str, tokens: int) -> None:
        await self.generator.rewind(session, tokens)

    async def release(self, session: str) -> None:
        await self.generator.release(session)


class Engine:
    """Learner (in a thread of its own), generator and rollouts over one workload."""

    def __init__(self, workload: Workload) -> None:
        self._workload, self._spec = workload, workload.run_spec()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._environment = environment_for(self._spec)

    async def run(self) -> list[Step]:
        """All steps, the warm-up included."""
        async with AsyncExitStack() as opened:
            opened.callback(self._thread.shutdown)
            self._learner = await self._learning(lambda: Learner(self._spec))
            await self._learning(lambda: self._learner.load(Path(self._workload.policy_folder)))
            self._generator = generator_for(self._spec)
            opened.callback(self._generator.close)
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="palestra-bench-")))
            boxes = await opened.enter_async_context(opened_boxes(self._spec, folder))
            fixed_length = self._workload.setting == "completions"
            sampler = WithoutStop(self._generator) if fixed_length else self._generator
            self._worker = RolloutWorker(self._spec, sampler, boxes.pool, boxes.guard)
            await self._sync_weights(0)
            return [await self._step(number) for number in range(1, self._workload.steps + 1)]

    async def _step(self, number: int) -> Step:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        trajectories = await self._collected(number)
        collected_at = time.perf_counter()
        trajectories = await self._learning(lambda: self._learner.credit(trajectories))
        credited_at = time.perf_counter()
        learned = await self._learning(lambda: self._learner.update(trajectories))
        await self._sync_weights(number)
        end = time.perf_counter()
        return Step(
            seconds=end - begin,
            rollout=collected_at - begin,
            score=credited_at - collected_at,
            update=end - credited_at,
            cpu=time.process_time() - cpu_begin,
            trajectories=len(trajectories),
            turns=turns(trajectories),
            sampled_tokens=sampled_tokens(trajectories),
            purified=sum(change.kind in PURIFICATIONS for one in trajectories for change in one.changes),
            replayed=int(learned.get("sil/replayed", 0)),
        )

    async def _collected(self, number: int) -> list[Trajectory]:
        collected = await self._worker.collect(train_requests(self._spec, number))
        if collected.discarded:
            raise RuntimeError(f"episodes were lost, so the batch is not whole: {dict(collected.discarded)}")
        if self._workload.setting == "tool-use":
            return collected.trajectories
        return [
            one.model_copy(update={"reward": digit_share(self._environment, one.turns[0].token_ids)})
            for one in collected.trajectories
        ]

    async def _sync_weights(self, policy_version: int) -> None:
        weights = await self._learning(self._learner.weights)
        await self._generator.load_weights(weights, policy_version)

    async def _learning(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def main(workload_file: str, run_file: str) -> None:
    workload = Workload.read(Path(workload_file))
    steps = asyncio.run(Engine(workload).run())
    versions = {name: version(name) for name in ("torch", "numpy")}
    Run("palestra", steps[workload.warmup_steps :], versions, torch.get_num_threads()).write(Path(run_file))


if __name__ == "__main__":
    main(*sys.argv[1:])
