"""What is trained through the endpoint is what a direct run would train: the real generator, sandboxes, and learner."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from engine.cluster.in_process import InProcessWorkers
from engine.cluster.rollout_members import rollout_worker_for
from engine.cluster.sandboxes import opened_sandboxes
from engine.inference.torch.factory import builtin_generator
from engine.rollout.token_meter import TokenMeter
from engine.spec.run import RunSpec
from engine.training.backends.torch import TorchBackend
from engine.training.batch import samples_from_trajectory
from engine.training.columns import UpdateRequest
from tests.engine.groups import grouped, requests_of

CODE = (Path(__file__).parent / "python_agent.py").read_text()
QUICK = {"network": "watched", "snapshots": False, "memory_mib": 256, "processes": 32}
TASKS = {"id": "python-math", "levels": [1], "sandbox": QUICK}
AGENT = {"command": ["python3", "/tmp/agent/agent.py"], "files": [{"path": "agent.py", "content": CODE}]}
DIRECT = TASKS | {"max_turns": 4, "max_turn_tokens": 12}
THROUGH = {"id": "agent", "tasks": TASKS, "agent": AGENT, "max_turns": 4, "max_turn_tokens": 12}


def spec_of(environment, steps=()):
    return RunSpec.model_validate(
        {
            "name": "agents",
            "environment": environment,
            "model": {"layers": 1, "hidden_size": 32, "heads": 2, "kv_heads": 1, "head_dim": 16,
                      "intermediate_size": 64, "context_tokens": 128},
            "recipe": {"stages": list(steps), "reward": {"tool_error": 0.0}},
            "schedule": {"prompts_per_step": 2, "group_size": 4, "minibatch_trajectories": 8},
            "resources": {"threads": 1, "kv_slots": 8, "sandboxes": 4},
        }
    )  # fmt: skip


async def nobody_is_left_in(generator):
    """What was given back is gone as soon as the generator's own thread has seen it."""
    for _ in range(3000):
        if (generator.stats()["sessions"], generator.stats()["waiting"]) == (0, 0):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(generator.stats())


async def test_log_probs_and_draws_are_those_of_a_direct_run_and_those_that_the_trainer_recomputes(tmp_path):
    spec, played, sampled = spec_of(THROUGH), {}, {}
    generator = builtin_generator(spec.model, slots=8, threads=1, seed=0)
    try:
        for way, environment in (("agent", THROUGH), ("direct", DIRECT)):
            of_way = spec_of(environment)
            meter = TokenMeter(generator)
            async with opened_sandboxes(of_way.environment, tmp_path / way, size=4) as sandboxes:
                worker = rollout_worker_for(of_way, meter, sandboxes.pool, sandboxes.monitor)
                played[way] = (await worker.collect(requests_of(of_way, 1))).trajectories
            sampled[way] = meter.tokens
        await nobody_is_left_in(generator)
    finally:
        generator.close()
    for through, direct in zip(played["agent"], played["direct"], strict=True):
        first, of_direct = through.turns[0], direct.turns[0]
        assert (first.context_ids, first.token_ids) == (of_direct.context_ids, of_direct.token_ids)
        assert first.logprobs == of_direct.logprobs
        samples = samples_from_trajectory(through)
        again = TorchBackend(spec.model, spec.resources, seed=0).logprobs(samples)
        for sample, row in zip(samples, again, strict=True):
            mask = sample.loss_mask
            np.testing.assert_allclose(np.asarray(row)[mask], sample.rollout_logprobs[mask], atol=1e-4)
    trained = [sample for rollout in played["agent"] for sample in samples_from_trajectory(rollout)]
    assert sum(int(sample.loss_mask.sum()) for sample in trained) == sampled["agent"]


@pytest.mark.slow
async def test_a_run_trains_three_steps_through_the_endpoint(tmp_path):
    data = {"kind": "demonstrations", "count": 256, "wrong_fraction": 0.5}
    spec = spec_of(THROUGH, [{"data": data, "steps": 60, "batch_size": 16, "learning_rate": 2e-3}])
    workers = InProcessWorkers(spec, security_log=tmp_path)
    await workers.start()
    try:
        await workers.supervised(0, 1, 60)
        for step in range(1, 4):
            await workers.sync_weights(step - 1)
            rollouts = (await workers.collect(requests_of(spec, step))).trajectories
            groups = grouped(rollouts)
            await workers.credit(groups, (), step=step)
            report = (await workers.update(UpdateRequest.of(step, groups, (), credited=True))).metrics
            assert report["tokens"] == sum(rollout.sampled_tokens for rollout in rollouts)
            assert report["mismatch_max"] < 1e-3
            assert {version for rollout in rollouts for turn in rollout.turns for version in turn.policy_versions} == {
                step - 1
            }
    finally:
        await workers.close()
