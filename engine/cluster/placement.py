"""Who stands where: the roles of a run, what each reserves, and whether a cluster has that.  Arithmetic without Ray.

    resources --plan_for--> Plan: groups of bundles --misfit(nodes)--> None, or why not, in numbers
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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.failures import NO_GPU, too_few_gpus
from engine.spec.run import Resources
from engine.spec.sglang import SglangServers

GIB = 2**30
SHARE = 0.5
"""The share of a GPU, for each of the two that share one."""

GroupName = Literal["trainer", "generator", "judge", "rollouts"]


@dataclass(frozen=True)
class Bundle:
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.gpus or self.cpus or self.memory_bytes)

    def __add__(self, other: "Bundle") -> "Bundle":
        return Bundle(self.gpus + other.gpus, self.cpus + other.cpus, self.memory_bytes + other.memory_bytes)

    def __mul__(self, times: int) -> "Bundle":
        return Bundle(self.gpus * times, self.cpus * times, self.memory_bytes * times)

    def __sub__(self, other: "Bundle") -> "Bundle":
        return Bundle(self.gpus - other.gpus, self.cpus - other.cpus, self.memory_bytes - other.memory_bytes)

    def holds(self, other: "Bundle") -> bool:
        return self.gpus >= other.gpus and self.cpus >= other.cpus and self.memory_bytes >= other.memory_bytes


@dataclass(frozen=True)
class Group:
    name: GroupName
    bundles: tuple[Bundle, ...]
    on_one_node: bool
    """Else the bundles are spread over as many nodes as there are."""

    @property
    def total(self) -> Bundle:
        return sum(self.bundles, Bundle())


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


def misfit(plan: Plan, nodes: Sequence[Bundle]) -> str | None:
    """Say why nodes of such sizes can never hold the plan: field, value, arithmetic, remedy.  None: they can."""
    if plan.resources.device == "cuda" and not any(node.gpus for node in nodes):
        return NO_GPU
    return next(_misfits(plan, nodes), None)


def _misfits(plan: Plan, nodes: Sequence[Bundle]) -> Iterator[str]:
    yield from _too_few_gpus(plan, nodes)
    yield from _too_few_cpus(plan, nodes)
    yield from _too_little_memory(plan, nodes)
    if not _assignable(plan, nodes):
        yield (
            f"resources.placement: {_in_words(plan)}: the cluster has enough in all, but its nodes have it in pieces "
            f"({', '.join(_sizes(node) for node in nodes)}); reserve less per role, or use larger nodes"
        )


def _too_few_gpus(plan: Plan, nodes: Sequence[Bundle]) -> Iterator[str]:
    trainer, generator, judge = (_gpus(plan, name) for name in ("trainer", "generator", "judge"))
    roomiest, total = max(node.gpus for node in nodes), sum(node.gpus for node in nodes)
    if trainer > roomiest:
        yield str(too_few_gpus(trainer, roomiest))
    if trainer + generator + judge > total:
        others = generator + judge
        ranks = f", or resources.trainer_ranks of at most {total - others}" if total > others else ""
        fits_without_judge = trainer + generator <= total
        field, remedy = _of_judge(plan.resources) if fits_without_judge else _why_apart(plan.resources)
        parts = {"trainer": trainer, "generator": generator} | ({"judge": judge} if judge else {})
        yield (
            f"{field}: needs {' + '.join(map(str, parts.values()))} GPUs ({' + '.join(parts)}); the cluster has "
            f"{total}: {remedy}{ranks}"
        )


def _why_apart(resources: Resources) -> tuple[str, str]:
    """The field and its value, and what to use in its place."""
    if resources.placement.generator == "apart" and resources.generator != "sglang":
        return "resources.placement.generator = 'apart'", "use 'colocated'"
    if resources.generator != "sglang":
        return f"resources.generators = {resources.generators}", "use fewer generators"
    servers = resources.sglang
    return f"resources.sglang.servers = {_servers_of(servers)}", "use fewer servers, those of urls"


def _of_judge(resources: Resources) -> tuple[str, str]:
    """As ``_why_apart``."""
    assert resources.judge is not None
    return f"resources.judge.servers = {_servers_of(resources.judge)}", "use fewer, or a judge that runs elsewhere"


def _servers_of(servers: SglangServers) -> str:
    each = f" of {servers.tensor_parallel} GPUs" if servers.tensor_parallel > 1 else ""
    return f"{servers.servers}{each}"


def _too_few_cpus(plan: Plan, nodes: Sequence[Bundle]) -> Iterator[str]:
    total, needed = sum(node.cpus for node in nodes), sum(group.total.cpus for group in plan.groups)
    if needed <= total:
        return
    rollouts = plan.group("rollouts")
    others = needed - (rollouts.total.cpus if rollouts else 0.0)
    if rollouts and rollouts.total.cpus:
        each, workers = rollouts.bundles[0].cpus, len(rollouts.bundles)
        room = int(max(0.0, total - others) / each)
        fewer = f"use at most {room} resources.rollout_workers, or fewer CPUs for each" if room else "reserve fewer"
        yield (
            f"resources.placement.rollout_cpus = {each:g}: needs {workers} x {each:g} + {others:g} CPUs (rollout "
            f"workers + the rest); the cluster has {total:g}: {fewer}"
        )
    else:
        yield (
            f"resources.placement.reserve_threads = True: needs {needed:g} CPUs at resources.threads = "
            f"{plan.resources.threads}; the cluster has {total:g}: use fewer threads, or False"
        )


def _too_little_memory(plan: Plan, nodes: Sequence[Bundle]) -> Iterator[str]:
    rollouts, total = plan.group("rollouts"), sum(node.memory_bytes for node in nodes)
    if rollouts is None or rollouts.total.memory_bytes <= total:
        return
    each, workers = rollouts.bundles[0].memory_bytes, len(rollouts.bundles)
    room = total // each
    fewer = f"use at most {room} resources.rollout_workers, or less for each" if room else "reserve less"
    yield (
        f"resources.placement.rollout_memory_gib = {each / GIB:g}: needs {workers} x {each / GIB:g} GiB; the cluster "
        f"has {total / GIB:.1f} GiB: {fewer}"
    )


def _assignable(plan: Plan, nodes: Sequence[Bundle]) -> bool:
    """Whether some choice of nodes holds everything: all that matter are tried, so the answer is exact."""
    whole = [group.total for group in plan.groups if group.on_one_node]
    generators, rollouts = plan.group("generator"), plan.group("rollouts")
    return any(_spread_fits(generators, rollouts, left) for left in _leftovers(whole, list(nodes)))


def _leftovers(wanted: list[Bundle], nodes: list[Bundle]) -> Iterator[list[Bundle]]:
    """What the nodes have left for each way of giving every wanted bundle to one of them."""
    if not wanted:
        yield nodes
        return
    for number, node in enumerate(nodes):
        if node.holds(wanted[0]):
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
    by_cpus = [int(node.cpus / bundle.cpus)] if bundle.cpus else []
    by_memory = [node.memory_bytes // bundle.memory_bytes] if bundle.memory_bytes else []
    return min(by_cpus + by_memory)


def _gpus(plan: Plan, name: GroupName) -> int:
    group = plan.group(name)
    return group.total.gpus if group else 0


def _in_words(plan: Plan) -> str:
    return ", ".join(f"{group.name} {_wanted(group)}" for group in plan.groups)


def _wanted(group: Group) -> str:
    if group.on_one_node or len(group.bundles) == 1:
        return f"{_sizes(group.total)} on one node"
    return f"{len(group.bundles)} x {_sizes(group.bundles[0])}"


def _sizes(bundle: Bundle) -> str:
    parts = [f"{bundle.gpus} GPUs" if bundle.gpus else "", f"{bundle.cpus:g} CPUs" if bundle.cpus else ""]
    memory = f"{bundle.memory_bytes / GIB:.1f} GiB" if bundle.memory_bytes else ""
    return " + ".join(filter(None, [*parts, memory])) or "nothing"
