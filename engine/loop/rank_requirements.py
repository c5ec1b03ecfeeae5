"""Whether this machine has room for the processes of the trainer's ranks, asked before a start.

What their network takes is counted apart (``model_requirements.py``); with GPUs each rank is counted by its own.
"""

from engine.inference.torch.memory import PROCESS_BYTES
from engine.loop.generator_requirements import free_memory
from engine.models.memory import readable_bytes
from engine.spec.problems import Problem
from engine.spec.resources import Resources


def lacking_for_ranks(resources: Resources, free_bytes: int | None = None) -> list[Problem]:
    """Empty where they fit into ``free_bytes``, which are this machine's by default, and where there is one rank."""
    ranks = resources.trainer_ranks
    if ranks == 1 or resources.device != "cpu":
        return []
    available = free_memory() if free_bytes is None else free_bytes
    if ranks * PROCESS_BYTES <= available:
        return []
    problem = (
        f"each rank is a process, which takes {readable_bytes(PROCESS_BYTES)} before it has a weight; "
        f"this machine has {readable_bytes(available)} free"
    )
    most = max(1, available // PROCESS_BYTES // resources.replica_ranks * resources.replica_ranks)
    remedy = f"use at most {most}, or more memory" if most >= resources.replica_ranks else "use more memory"
    return [Problem("resources.trainer_ranks", ranks, problem, remedy)]
