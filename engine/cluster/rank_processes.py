"""The other ranks of a sharded trainer as processes beside the learner's, without Ray."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from engine.cluster.members import leader_for
from engine.failures import too_few_gpus
from engine.spec.run import RunSpec

__all__ = ["RankProcesses", "rank_processes_for"]

FOLLOW = "import sys; from pathlib import Path; from engine.training.backends.ranks import follow; "
FOLLOW += "follow(Path(sys.argv[1]), int(sys.argv[2]))"


def rank_processes_for(spec: RunSpec) -> "RankProcesses | None":
    """None where the trainer has no leader.  Raises RunFailed where this machine has fewer GPUs than it needs."""
    ranks = spec.resources.trainer_ranks
    if not spec.resources.has_leader:
        return None
    if spec.resources.device == "cuda" and (gpus := torch.cuda.device_count()) < ranks:
        raise too_few_gpus(ranks, gpus)
    return RankProcesses(spec)


class RankProcesses:
    """The leader of a run's ranks, and the processes that follow it.  They end with the leader, however it ends."""

    def __init__(self, spec: RunSpec) -> None:
        self.leader = leader_for(spec)
        self._processes = [self._started(number) for number in range(1, self.leader.size)]
        self.leader.watch(self._died)

    def close(self) -> None:
        """End the ranks.  Twice is fine."""
        for process in self._processes:
            process.kill()
            process.wait()
        self.leader.close()

    def pids(self) -> list[int]:
        """The process ids of rank 1, 2, ..."""
        return [process.pid for process in self._processes]

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", FOLLOW, str(self.leader.folder), str(number)]
        given = os.environ.get("PYTHONPATH")
        code = os.pathsep.join([str(Path(__file__).parents[2]), *([given] if given else [])])
        environment = os.environ | _sees_device(number) | {"PYTHONPATH": code}
        # In a session of its own: a Ctrl-C is the run's to hear, which then ends its ranks.
        return subprocess.Popen(command, env=environment, start_new_session=True)

    def _died(self) -> str | None:
        for number, process in enumerate(self._processes, start=1):
            if (code := process.poll()) is not None:
                return f"rank {number} ended with code {code}"
        return None


def _sees_device(number: int) -> dict[str, str]:
    """Each rank sees its own GPU alone, of those that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = str(number) if visible is None else (visible.split(",") + [""] * number)[number]
    return {"CUDA_VISIBLE_DEVICES": devices}
