"""A crew that trains in the worlds that need no box."""

import pytest

from engine.control.boxes import opened_boxes, probe
from engine.control.local import LocalCrew
from engine.rollout.requests import train_requests
from engine.spec.run import RunSpec

TINY = {"layers": 1, "hidden_size": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 64}


@pytest.mark.parametrize(("environment", "tool"), [("household", "act"), ("sokoban", "move")])
async def test_a_crew_learns_and_plays_in_it_and_no_box_is_made(environment, tool, tmp_path):
    spec = RunSpec.model_validate(
        {
            "name": environment,
            "environment": {"id": environment, "levels": [1]},
            "model": TINY | {"context_tokens": 256},
            "recipe": {"cold_start": {"demonstrations": 64, "wrong_fraction": 0.0, "steps": 150, "batch_size": 16}},
            "schedule": {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
            "resources": {"threads": 1, "kv_slots": 16},
        }
    )
    await probe(spec)
    async with opened_boxes(spec, tmp_path) as boxes:
        assert boxes.pool.stats().started == 0
    crew = LocalCrew(spec, sightings=tmp_path)
    await crew.start()
    try:
        losses = [await crew.cold_start(first, last) for first, last in ((1, 2), (3, 148), (149, 150))]
        assert losses[-1] < losses[0] / 1.5
        await crew.sync_weights(1)
        collected = await crew.collect(train_requests(spec, 1))
        calls = [call for one in collected.trajectories for call in one.tool_calls]
        assert len(collected.trajectories) == 16
        assert not collected.discarded
        assert {call.name for call in calls} == {tool}
        assert {call.status for call in calls} == {"ok", "error"}
        assert {call.error_class for call in calls} == {None, "illegal"}
        assert (await crew.update(await crew.credit(collected.trajectories)))["tokens"] > 0
    finally:
        await crew.close()
