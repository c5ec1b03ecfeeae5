"""Who stands where: the roles of a run, what each reserves, and whether nodes hold it.  Arithmetic without Ray.

    resources --plan_for--> Plan: groups of bundles --held_by(nodes)--> whether some choice of nodes holds all of them
                                  ├── engine/cluster/misfit.py says why none does, and what would
                                  └── engine/cluster/ray_placement.py makes Ray's placement groups of it

A *bundle* is what must come from one node; a *group* is reserved as a whole.  There are up to four:

    trainer    one bundle for each rank, all on one node; colocated, a generator stands in each, as far as there are so
                many of both
    generator  one bundle for each other generator, or for each of them where they are apart; servers of its own always
                are, and share the GPUs of one bundle out among them
    judge      one bundle for the servers of the run's judge, which share its GPUs out among them
    rollouts   one bundle for each rollout worker, spread over the nodes

A group whose bundles hold nothing is not reserved.  Which fields say so: engine/spec/placement.py.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.spec.resources import Resources

GIB = 2**30
SHARE = 0.5
"""The share of a GPU, for each of the two that share one."""
PARTS = 10_000
"""Ray counts processors in whole parts of so many."""

GroupName = Literal["trainer", "generator", "judge", "rollouts"]
Amount = Literal["gpus", "cpus", "memory_bytes"]


@dataclass(frozen=True)
class Bundle:
    """Sums and comparisons count processors in whole parts: thirty tenths are three."""

    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0

    @property
    def cpu_parts(self) -> int:
        return round(self.cpus * PARTS)

    def __bool__(self) -> bool:
        return bool(self.gpus or self.cpu_parts or self.memory_bytes)

    def __add__(self, other: "Bundle") -> "Bundle":
        cpus = (self.cpu_parts + other.cpu_parts) / PARTS
        return Bundle(self.gpus + other.gpus, cpus, self.memory_bytes + other.memory_bytes)

    def __mul__(self, times: int) -> "Bundle":
        return Bundle(self.gpus * times, self.cpu_parts * times / PARTS, self.memory_bytes * times)

    def __sub__(self, other: "Bundle") -> "Bundle":
        return self + other * -1

    def holds(self, other: "Bundle") -> bool:
        return self.gpus >= other.gpus and self.cpu_parts >= other.cpu_parts and self.memory_bytes >= other.memory_bytes

    def only(self, amounts: Collection[Amount]) -> "Bundle":
        return Bundle(**{amount: getattr(self, amount) for amount in amounts})


@dataclass(frozen=True)
class Group:
    name: GroupName
    bundles: tuple[Bundle, ...]
    on_one_node: bool
    """Else the bundles are spread over as many nodes as there are."""

    @property
    def total(self) -> Bundle:
        return sum(self.bundles, Bundle())

    @property
    def piece(self) -> Bundle:
        """What must come from one node.  The bundles of a group that is spread are alike."""
        return self.total if self.on_one_node else self.bundles[0]


@dataclass(frozen=True)
class Seat:
    """An actor's place: a bundle of a group, and what it takes of it.  Without a group it reserves nothing."""

    group: GroupName | None
    bundle: int = 0
    gpus: float = 0.0
    cpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    resources: Resources
    groups: tuple[Group, ...]
    """Those that reserve something."""

    def group(self, name: GroupName) -> Group | None:
        return next((group for group in self.groups if group.name == name), None)

    def total(self, *names: GroupName) -> Bundle:
        """What these groups reserve; without a name, all of them."""
        return sum((group.total for group in self.groups if group.name in names or not names), Bundle())

    def only(self, amounts: Collection[Amount]) -> "Plan":
        """The plan as if nothing else were reserved."""
        groups = [
            replace(group, bundles=tuple(bundle.only(amounts) for bundle in group.bundles)) for group in self.groups
        ]
        return replace(self, groups=tuple(group for group in groups if group.total))

    def held_by(self, nodes: Sequence[Bundle]) -> bool:
        """Whether some choice of nodes holds everything: all that matter are tried, so the answer is exact."""
        whole = [group.total for group in self.groups if group.on_one_node]
        generators, rollouts = self.group("generator"), self.group("rollouts")
        return any(_spread_fits(generators, rollouts, left) for left in _leftovers(whole, list(nodes)))

    def seat(self, actor: str) -> Seat:
        """``actor`` is ``learner``, ``judge``, ``generator``, or ``rank-1``, ``generator-1``, ``rollout-0`` and up."""
        role, _, digits = actor.partition("-")
        number = int(digits or 0)
        if role == "judge":
            return self._seat("judge", 0)
        if role == "rollout":
            return self._seat("rollouts", number)
        shared = colocated_generators(self.resources)
        if role == "generator" and number >= shared:
            return self._seat("generator", number - shared)
        return self._shared_seat(number) if number < shared else self._seat("trainer", number)

    def _seat(self, name: GroupName, number: int) -> Seat:
        group = self.group(name)
        if group is None:
            return Seat(None)
        bundle = group.bundles[number]
        return Seat(name, number, bundle.gpus, bundle.cpus, bundle.memory_bytes)

    def _shared_seat(self, rank: int) -> Seat:
        """Half of the bundle of a rank, which it divides with a generator."""
        seat = self._seat("trainer", rank)
        return Seat(seat.group, seat.bundle, seat.gpus * SHARE, seat.cpus * SHARE, seat.memory_bytes // 2)


def colocated_generators(resources: Resources) -> int:
    """How many generators stand in the bundles of the trainer's first ranks; the others have bundles of their own."""
    is_apart = resources.placement.generator == "apart" or resources.generator == "sglang"
    return 0 if is_apart else resources.shared_generators


def generator_gpus(resources: Resources) -> int:
    """What one needs with a bundle of its own.  Servers that are given by URL need none of the cluster."""
    if resources.device != "cuda":
        return 0
    if resources.generator != "sglang":
        return 1
    servers = resources.sglang
    return 0 if servers.urls else servers.servers * servers.tensor_parallel


def judge_gpus(resources: Resources) -> int:
    """What the servers of the run's judge need, all on one node."""
    if resources.device != "cuda" or resources.judge is None:
        return 0
    return resources.judge.servers * resources.judge.tensor_parallel


def plan_for(resources: Resources) -> Plan:
    placement, gpu = resources.placement, int(resources.device == "cuda")
    threads = float(resources.threads) if placement.reserve_threads else 0.0
    colocated = colocated_generators(resources)
    rank, alone = Bundle(gpu, threads), Bundle(generator_gpus(resources), threads)
    # Both keep their threads where they share a bundle: with overlapping phases both work at once.
    divided = Bundle(gpu, 2 * threads)
    rollout = Bundle(0, placement.rollout_cpus, round(placement.rollout_memory_gib * GIB))
    ranks = (divided,) * colocated + (rank,) * (resources.trainer_ranks - colocated)
    groups = (
        Group("trainer", ranks, on_one_node=True),
        Group("generator", (alone,) * (resources.generators - colocated), on_one_node=False),
        Group("judge", (Bundle(judge_gpus(resources), threads),) if resources.judge else (), on_one_node=True),
        Group("rollouts", (rollout,) * resources.rollout_workers, on_one_node=False),
    )
    return Plan(resources, tuple(group for group in groups if group.total))


def _leftovers(wanted: list[Bundle], nodes: list[Bundle]) -> Iterator[list[Bundle]]:
    """What the nodes have left for each way of giving every wanted bundle to one of them; like nodes count once."""
    if not wanted:
        yield nodes
        return
    for node in dict.fromkeys(nodes):
        if node.holds(wanted[0]):
            number = nodes.index(node)
            yield from _leftovers(wanted[1:], [*nodes[:number], node - wanted[0], *nodes[number + 1 :]])


def _spread_fits(generators: Group | None, rollouts: Group | None, nodes: Sequence[Bundle]) -> bool:
    """The bundles of a group are alike.  Node by node: the most rollout workers for each number of generators."""
    wanted = len(generators.bundles) if generators else 0
    most = {0: 0}
    for node in nodes:
        following: dict[int, int] = {}
        for placed, beside in most.items():
            for more in range(wanted - placed + 1):
                taken = generators.bundles[0] * more if generators else Bundle()
                if not node.holds(taken):
                    break
                room = _times(node - taken, rollouts.bundles[0]) if rollouts else 0
                following[placed + more] = max(following.get(placed + more, 0), beside + room)
        most = following
    return most.get(wanted, -1) >= (len(rollouts.bundles) if rollouts else 0)


def _times(node: Bundle, bundle: Bundle) -> int:
    by_cpus = [node.cpu_parts // bundle.cpu_parts] if bundle.cpu_parts else []
    by_memory = [node.memory_bytes // bundle.memory_bytes] if bundle.memory_bytes else []
    return min(by_cpus + by_memory)
