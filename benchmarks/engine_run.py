"""The workload on Palestra's engine in one process: ``python -m benchmarks.engine_run WORKLOAD.json RUN.json``.

The same members as ``engine/cluster/in_process.py`` makes, and the loop's phases in its order.  What a
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
from benchmarks.processor import processor_seconds
from benchmarks.workload import Workload, digit_share, sampled_tokens, turns
from engine.cluster.garbage import collect_rarely
from engine.cluster.generators import generator_for, hand_over_weights
from engine.cluster.members import learner_for
from engine.cluster.rollout_members import rollout_worker_for
from engine.cluster.sandboxes import opened_sandboxes
from engine.loop.expert_pool import ExpertPool
from engine.loop.planner import Played, planner_for
from engine.spec.generation import Generated, GenerateRequest, TextGenerator
from engine.spec.mixture import alone
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.trajectory import Trajectory
from engine.training.columns import UpdateRequest

T = TypeVar("T")
PURIFICATIONS = ("purified", "purification-failed")


@dataclass(frozen=True)
class WithoutStop:
    """A ``TextGenerator`` whose turns end at ``max_new_tokens`` only."""

    generator: TextGenerator

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
        self._planner = planner_for(self._spec)

    async def run(self) -> list[Step]:
        """All steps, the warm-up included."""
        async with AsyncExitStack() as opened:
            opened.callback(self._thread.shutdown)
            self._learner = await self._learning(lambda: learner_for(self._spec))
            await self._learning(lambda: self._learner.load(Path(self._workload.policy_folder)))
            self._generator = generator_for(self._spec.model, self._spec.resources, seed=self._spec.seed)
            opened.callback(self._generator.close)
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="palestra-bench-")))
            sandboxes = await opened.enter_async_context(
                opened_sandboxes(alone(self._spec.environment), folder, size=self._spec.resources.sandboxes)
            )
            fixed_length = self._workload.setting == "completions"
            sampler = WithoutStop(self._generator) if fixed_length else self._generator
            self._worker = rollout_worker_for(self._spec, sampler, sandboxes.pool, sandboxes.monitor)
            collect_rarely()
            await self._sync_weights(0)
            return [await self._step(number) for number in range(1, self._workload.steps + 1)]

    async def _step(self, number: int) -> Step:
        cpu_begin = processor_seconds()  # which is no part of a step
        begin = time.perf_counter()
        groups = await self._collected(number)
        collected_at = time.perf_counter()
        await self._learning(lambda: self._learner.credit(groups, step=number))
        credited_at = time.perf_counter()
        request = UpdateRequest.of(number, groups, (), credited=True)
        learned = (await self._learning(lambda: self._learner.update(request))).metrics
        await self._sync_weights(number)
        end = time.perf_counter()
        trajectories = rollouts_in(groups)
        return Step(
            seconds=end - begin,
            rollout=collected_at - begin,
            score=credited_at - collected_at,
            update=end - credited_at,
            cpu=processor_seconds() - cpu_begin,
            trajectories=len(trajectories),
            turns=turns(trajectories),
            sampled_tokens=sampled_tokens(trajectories),
            purified=sum(change.kind in PURIFICATIONS for trajectory in trajectories for change in trajectory.changes),
            replayed=int(learned.get("sil/replayed", 0)),
        )

    async def _collected(self, number: int) -> list[RolloutGroup]:
        prompts = (number - 1) * self._spec.schedule.prompts_per_step
        played = Played(tasks_taken=prompts, prompts=prompts)
        plans = self._planner.plans(number - 1, played, ExpertPool())
        played.add(plans, await self._worker.collect(self._planner.requests(plans)))
        if played.discarded:
            raise RuntimeError(f"episodes were lost, so the batch is not whole: {dict(played.discarded)}")
        if self._workload.setting != "completions":
            return played.groups
        return [group.with_rollouts(map(self._paid_by_digits, group.rollouts)) for group in played.groups]

    def _paid_by_digits(self, rollout: Trajectory) -> Trajectory:
        return rollout.model_copy(update={"reward": digit_share(rollout.turns[0].pieces)})

    async def _sync_weights(self, policy_version: int) -> None:
        weights = await self._learning(self._learner.weights)
        await hand_over_weights(self._generator, weights, policy_version)

    async def _learning(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def main(workload_file: str, run_file: str) -> None:
    workload = Workload.read(Path(workload_file))
    steps = asyncio.run(Engine(workload).run())
    versions = {name: version(name) for name in ("torch", "numpy")}
    Run("palestra", steps[workload.warmup_steps :], versions, torch.get_num_threads()).write(Path(run_file))


if __name__ == "__main__":
    main(*sys.argv[1:])
