"""Where the roles of a run stand on a cluster of Ray, and what is reserved for them there."""

from typing import Literal

from pydantic import Field

from engine.spec.strict import Strict


class Placement(Strict):
    """Placement decides where a run's processes are, and nothing of what the run learns.

    The trainer's ranks are always on one node.  A run may be resumed with another placement.
    """

    generator: Literal["colocated", "apart"] = "colocated"
    """With ``device = "cuda"``.  ``colocated``: the generator shares the GPU of the trainer's first rank.  ``apart``:
    it has a GPU of its own, on whichever node has one.  Servers of ``sglang`` always have theirs, all on one node."""
    reserve_threads: bool = False
    """Whether ``threads`` CPUs are reserved for each of the trainer's ranks, and as many for the generator.  Else its
    processes share what the node has."""
    rollout_cpus: float = Field(default=0.0, ge=0, le=1024)
    """CPUs that are reserved for each rollout worker and its sandboxes.  Workers that reserve something are spread over
    the nodes that have it; with 0, and no memory either, all of them are on the driver's node."""
    rollout_memory_gib: float = Field(default=0.0, ge=0, le=16384)
    """Memory that is reserved for each rollout worker and its sandboxes, in GiB.  It is no limit.  0: none."""

    @property
    def needs_ray(self) -> bool:
        """Return whether it asks for what only a cluster of Ray can give."""
        return self != Placement()
