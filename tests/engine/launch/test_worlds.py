"""Workers that train in the worlds that need no sandbox."""

from pathlib import Path

import pytest

from engine.cluster.in_process import InProcessWorkers
from engine.cluster.sandboxes import opened_sandboxes, probe
from engine.spec.run import RunSpec
from engine.training.columns import UpdateRequest
from tests.engine.groups import grouped, requests_of

TINY = {"layers": 1, "hidden_size": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 64}


@pytest.mark.parametrize("at", ["one", "sampling"])
async def test_on_policy_the_engines_agree_and_ratios_are_1_wherever_log_probs_are_taken(at, tmp_path):
    """Sampled at 0.4, log-probs of generator, trainer and reference at 1 or at 0.4; random weights, no cold start."""
    spec = RunSpec.model_validate(
        {
            "name": "hot",
            "environment": {"id": "household", "levels": [1], "max_turns": 2, "max_turn_tokens": 8},
            "model": TINY | {"context_tokens": 192},
            "recipe": {"stages": [], "credit": {"kind": "chunk-return"}, "kl": {"beta": 0.1}},
            "schedule": {
                "prompts_per_step": 2, "group_size": 4, "minibatch_trajectories": 8, "temperature": 0.4,
                "logprobs_at": at,
            },
            "resources": {"threads": 1, "kv_slots": 8},
        }
    )  # fmt: skip
    workers = InProcessWorkers(spec, security_log=tmp_path)
    await workers.start()
    try:
        await workers.sync_weights(0)
        collected = await workers.collect(requests_of(spec, 1))
        groups = grouped(collected.trajectories)
        await workers.credit(groups, (), step=1)
        report = (await workers.update(UpdateRequest.of(1, groups, (), credited=True))).metrics
    finally:
        await workers.close()
    assert (report["ratio_max"], report["kl_to_old"], report["kl_to_reference"]) == (1, 0, 0)
    assert report["mismatch_ratio_max"] == pytest.approx(1, abs=1e-3)
    assert report["mismatch_max"] < 1e-3
    assert report["tokens"] > 0


DATA = {"kind": "demonstrations", "count": 64, "wrong_fraction": 0.0}


@pytest.mark.parametrize(("environment", "tool"), [("household", "act"), ("sokoban", "move")])
async def test_a_crew_learns_and_plays_in_it_and_no_sandbox_is_made(environment, tool, tmp_path):
    spec = RunSpec.model_validate(
        {
            "name": environment,
            "environment": {"id": environment, "levels": [1]},
            "model": TINY | {"context_tokens": 256},
            "recipe": {"stages": [{"data": DATA, "steps": 150, "batch_size": 16}]},
            "schedule": {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
            "resources": {"threads": 1, "kv_slots": 16},
        }
    )
    await probe(spec.environment)
    async with opened_sandboxes(spec.environment, tmp_path, size=spec.resources.sandboxes) as sandboxes:
        assert sandboxes.pool.stats().started == 0
    workers = InProcessWorkers(spec, security_log=tmp_path)
    await workers.start()
    try:
        losses = [(await workers.supervised(0, first, last))["loss"] for first, last in ((1, 2), (3, 148), (149, 150))]
        assert losses[-1] < losses[0] / 1.5
        await workers.sync_weights(1)
        collected = await workers.collect(requests_of(spec, 1))
        calls = [call for trajectory in collected.trajectories for call in trajectory.tool_calls]
        assert len(collected.trajectories) == 16
        assert not collected.discarded
        assert {call.name for call in calls} == {tool}
        assert {call.status for call in calls} == {"ok", "error"}
        assert {call.error_class for call in calls} == {None, "illegal"}
        groups = grouped(collected.trajectories)
        await workers.credit(groups, (), step=1)
        assert (await workers.update(UpdateRequest.of(1, groups, (), credited=True))).metrics["tokens"] > 0
    finally:
        await workers.close()


@pytest.mark.parametrize("environment", ["webshop", "search-qa", "apps"])
async def test_workers_learn_and_play_in_a_world_of_several_tools(environment: str, tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "name": environment,
            "environment": {"id": environment, "levels": [1]},
            "model": TINY | {"context_tokens": 288},
            "recipe": {"stages": [{"data": DATA, "steps": 30, "batch_size": 16}]},
            "schedule": {"prompts_per_step": 2, "group_size": 2, "minibatch_trajectories": 4},
            "resources": {"threads": 1, "kv_slots": 4},
        }
    )
    workers = InProcessWorkers(spec, security_log=tmp_path)
    await workers.start()
    try:
        losses = [(await workers.supervised(0, first, last))["loss"] for first, last in ((1, 2), (3, 30))]
        assert losses[-1] < losses[0]
        await workers.sync_weights(1)
        collected = await workers.collect(requests_of(spec, 1))
        assert len(collected.trajectories) == 4
        assert not collected.discarded
        groups = grouped(collected.trajectories)
        await workers.credit(groups, (), step=1)
        assert (await workers.update(UpdateRequest.of(1, groups, (), credited=True))).metrics["tokens"] > 0
    finally:
        await workers.close()
