"""``python -m engine`` on several of Ray's nodes, all on this machine; the node of one role is killed in the middle.

    python -m tests.engine.losing_node rollout-0 collect 3 4 train run.toml

kills all processes of the node on which ``rollout-0`` stands, when the event of the phase's
begin is on disk; there are four nodes.  ``nobody`` in place of the role kills none.
"""

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from engine.cluster.ray_token import use_private_token
from engine.reporting.spool import Spool
from tests.engine.dying import begin_of, when_written

CPUS = 2
STORE_BYTES = 80 * 2**20
NOBODY = "nobody"


def losing_node_of(role: str, phase: str, step: int, *, nodes: int = 4) -> Sequence[str]:
    """This program, as arguments of ``python -m``."""
    return "tests.engine.losing_node", role, phase, str(step), str(nodes)


def kill_node_of(role: str, pids: dict[str, int]) -> None:
    """The raylet, which is the parent of the actors on its node, first: nobody reports how the others ended."""
    raylet = psutil.Process(pids[role]).parent()
    assert raylet is not None
    assert "raylet" in raylet.name(), raylet.cmdline()
    for process in [raylet, *raylet.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def noting_pids(pids: dict[str, int]) -> None:
    """From what the run's log says of who is which process; the latest counts."""
    append = Spool.append

    def appended(spool: Spool, lines: Sequence[bytes], *, first_seq: int) -> int:
        for line in lines:
            words = json.loads(line).get("message", "").split()
            if words[1:3] == ["is", "process"]:
                pids[words[0]] = int(words[3])
        return append(spool, lines, first_seq=first_seq)

    Spool.append = appended


@contextmanager
def several_nodes(number: int) -> Iterator[None]:
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(number):
            cluster.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES)
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def main(role: str, phase: str, step: int, nodes: int, sockets: str) -> None:
    os.environ["RAY_TMPDIR"] = sockets
    os.environ.pop("RAY_ADDRESS", None)
    (Path(sockets) / "ray").mkdir()
    use_private_token(Path(sockets) / "ray_token")
    from engine.cluster import ray_connection
    from engine.launch import train

    train.use_private_token = lambda file: None  # Ray has read its environment by now
    ray_connection.private_ray = lambda: several_nodes(nodes)
    pids: dict[str, int] = {}
    if role != NOBODY:
        when_written(begin_of(phase, step), lambda: kill_node_of(role, pids))
        noting_pids(pids)
    runpy.run_module("engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    role, phase, step, nodes, *sys.argv[1:] = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as sockets:
        main(role, phase, int(step), int(nodes), sockets)
