"""How often a trajectory crosses between the processes of a run on Ray."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLAYS_TWO_STEPS = """
import asyncio, collections, json, pickle, sys
from pathlib import Path
folder = Path(sys.argv[1])
from engine.cluster.ray_token import use_private_token
use_private_token(folder / "ray_token")
from engine.cluster.ray_connection import private_ray
from engine.cluster.ray_workers import RayWorkers
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from engine.training.columns import UpdateRequest
from tests.engine.groups import grouped, requests_of

came, went = collections.Counter(), collections.Counter()
get_state, set_state = Trajectory.__getstate__, Trajectory.__setstate__

def leaving(trajectory):
    went[trajectory.id] += 1
    return get_state(trajectory)

def arriving(trajectory, state):
    set_state(trajectory, state)
    came[trajectory.id] += 1

Trajectory.__getstate__, Trajectory.__setstate__ = leaving, arriving
spec = RunSpec.model_validate({
    "name": "t",
    "environment": {"id": "sokoban", "levels": [1], "max_turns": 2},
    "model": {"layers": 1, "hidden_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24,
              "context_tokens": 256},
    "recipe": {"stages": [], "credit": {"kind": "grpo"}},
    "schedule": {"prompts_per_step": 2, "group_size": 4, "minibatch_trajectories": 8},
    "resources": {"threads": 1, "kv_slots": 8},
})

async def play(workers):
    sizes = []
    await workers.start()
    for step in (1, 2):
        await workers.sync_weights(step - 1)
        groups = grouped((await workers.collect(requests_of(spec, step))).trajectories)
        columns = await workers.credit(groups, (), step=step)
        request = UpdateRequest.of(step, groups, (), credited=True)
        before = went.total()
        sizes.append(len(pickle.dumps(request)))
        assert (await workers.update(request)).metrics["tokens"] > 0
        assert went.total() == before
        assert len(columns) == 8
    return sizes

async def main():
    workers = RayWorkers(spec, name="t", connection=private_ray(), report=lambda *_: None, security_log=folder)
    try:
        print(json.dumps({"sizes": await play(workers), "came": came, "went": went, "torch": "torch" in sys.modules}))
    finally:
        await workers.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.soak
def test_a_trajectory_crosses_once_each_way_and_an_update_carries_no_token(tmp_path: Path) -> None:
    """Pickles are counted where the loop runs.  Ray reads its environment when it is imported: a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", PLAYS_TWO_STEPS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    crossings = json.loads(ended.stdout.splitlines()[-1])
    assert len(crossings["came"]) == 16
    assert set(crossings["came"].values()) == {1}
    assert crossings["went"] == crossings["came"]
    assert max(crossings["sizes"]) < 100 * 8
    assert not crossings["torch"], "weights went from the learner to the generator without being unpacked on the way"
