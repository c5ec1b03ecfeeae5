"""A plan on several of Ray's nodes, all of them on this machine with made-up resources, and one of them killed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = """
import asyncio, os, sys, tempfile
from pathlib import Path
sockets = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
os.environ["RAY_TMPDIR"] = sockets.name
os.environ.pop("RAY_ADDRESS", None)
(Path(sockets.name) / "ray").mkdir()
from engine.cluster.ray_token import use_private_token
use_private_token(Path(sys.argv[1]) / "ray_token")
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import ActorUnavailableError, RayActorError
from engine.cluster.ray_placement import RayPlacement
from engine.failures import RunFailed
from engine.spec.resources import Resources

STORE = {"object_store_memory": 80 * 2**20}


class Actor:
    def node(self):
        return ray.get_runtime_context().get_node_id()


def resources(**more):
    placement = {"generator": "apart", "rollout_cpus": 2}
    return Resources.model_validate(
        {"device": "cuda", "trainer_ranks": 2, "rollout_workers": 2, "placement": placement} | more
    )


async def nodes_of(placement, actors):
    made = [ray.remote(Actor).options(**placement.options(actor, ranks_node="")).remote() for actor in actors]
    return await asyncio.gather(*(actor.node.remote() for actor in made)), made


async def death_of(actor):
    # As RayWorkers finds it out: until Ray knows, a new actor might be given to the dead node.
    while True:
        try:
            await actor.node.remote()
        except ActorUnavailableError:
            pass
        except RayActorError:
            return
        await asyncio.sleep(0.1)


async def placed():
    too_large = RayPlacement(resources(trainer_ranks=3))
    try:
        await too_large.reserve()
    except RunFailed as refused:
        print("refused", refused)
    unreserved = RayPlacement(resources(placement={}, rollout_workers=4, device="cpu"))
    await unreserved.reserve()
    beside, _ = await nodes_of(unreserved, [f"rollout-{number}" for number in range(4)])
    print("unreserved beside the driver:", set(beside) == {ray.get_runtime_context().get_node_id()})
    placement = RayPlacement(resources())
    await placement.reserve()
    actors = ["learner", "rank-1", "generator", "rollout-0", "rollout-1"]
    found, made = await nodes_of(placement, actors)
    print("trainer on two:", found[:2] == [two.node_id] * 2, "generator on one:", found[2] == one.node_id)
    print("rollouts spread:", sorted(found[3:]) == sorted([one.node_id, two.node_id]))
    lost = 3 + found[3:].index(one.node_id)
    cluster.remove_node(one, allow_graceful=False)
    third = cluster.add_node(num_cpus=0, num_gpus=1, **STORE)
    for number in (lost, 2):
        await death_of(made[number])
    again, _ = await nodes_of(placement, [actors[lost], "generator"])
    print("rollout on the node that is left:", again[0] == two.node_id)
    print("generator on the new:", again[1] == third.node_id)
    print("trainer still answers:", await made[0].node.remote() == two.node_id)
    placement.release()


cluster = Cluster(
    initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, **STORE}
)
try:
    two = cluster.add_node(num_cpus=4, num_gpus=2, **STORE)
    one = cluster.add_node(num_cpus=4, num_gpus=1, **STORE)
    ray.init(address=cluster.address, log_to_driver=False)
    asyncio.run(placed())
finally:
    ray.shutdown()
    cluster.shutdown()
    sockets.cleanup()
"""


@pytest.mark.slow
@pytest.mark.soak  # test_lost_nodes.py loses a node of a run, test_placement.py and test_unequal_nodes.py plan
def test_a_node_that_dies_gives_its_seats_to_others(tmp_path: Path) -> None:
    """Ray reads its environment when it is imported, so it needs a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", PLACES, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    for words in (
        "refused resources.trainer_ranks = 3: ",
        "unreserved beside the driver: True",
        "trainer on two: True generator on one: True",
        "rollouts spread: True",
        "rollout on the node that is left: True",
        "generator on the new: True",
        "trainer still answers: True",
    ):
        assert words in ended.stdout, ended.stdout + ended.stderr
