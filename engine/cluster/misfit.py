"""Why a cluster can never hold a run's plan, and what would help: by field, in numbers.  Arithmetic without Ray.

Each amount that is short (GPUs, processors, memory) has a line of its own, with the field that asks for it.  A change
is advised only where the plan fits with it, in this amount and in those that are not short themselves.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, get_args

from engine.cluster.placement import GIB, PARTS, Amount, Bundle, Group, Plan, plan_for
from engine.failures import NO_GPU, too_few_gpus
from engine.spec.resources import Resources
from engine.spec.sglang import SglangServers

AMOUNTS: tuple[Amount, ...] = get_args(Amount)
Options = dict[str, dict[str, Any]]
"""What to use -> the fields of ``resources`` that it changes."""


@dataclass(frozen=True)
class _Shortage:
    plan: Plan
    nodes: Sequence[Bundle]
    amounts: Sequence[Amount]
    """By these a change is judged."""

    @property
    def resources(self) -> Resources:
        return self.plan.resources

    @property
    def cluster(self) -> Bundle:
        return sum(self.nodes, Bundle())

    def largest(self, amount: Amount, beside: Bundle = Bundle()) -> float:  # noqa: B008
        """What the largest node has, of those that also have what is ``beside`` it, if there are such."""
        able = [node for node in self.nodes if node.holds(beside)] or self.nodes
        return max((getattr(node, amount) for node in able), default=0)

    def changed(self, changes: dict[str, Any]) -> "_Shortage":
        return replace(self, plan=plan_for(self.resources.model_copy(update=changes)))

    def ends_with(self, changes: dict[str, Any]) -> bool:
        return self.changed(changes).plan.only(self.amounts).held_by(self.nodes)

    def at_most(self, field: str, words: str) -> Options:
        """The largest lower number of the field that fits, if any does: what fits still fits with less."""
        lower = range(1, getattr(self.resources, field))
        most = bisect_left(lower, True, key=lambda number: not self.ends_with({field: number}))
        return {words.format(most): {field: most}} if most else {}

    def remedy(self, options: Options, others: Options, last: str = "") -> str:
        """Every option that is enough; else the first two that are together, ``others`` among them."""
        enough = [words for words, changes in options.items() if self.ends_with(changes)]
        pairs = combinations((options | others).items(), 2)
        both = (f"{one} and {two}" for (one, first), (two, second) in pairs if self.ends_with(first | second))
        *alternatives, final = [*(enough or [next(both, "more nodes")]), *filter(None, [last])]
        return f"use {', '.join(alternatives)}, or {final}" if alternatives else f"use {final}"


def misfit(plan: Plan, nodes: Sequence[Bundle]) -> str | None:
    """Say why nodes of such sizes can never hold the plan: field, value, arithmetic, remedy.  None: they can."""
    if plan.held_by(nodes):
        return None
    short = [amount for amount in AMOUNTS if not plan.only([amount]).held_by(nodes)]
    lines: list[str] = []
    for amount in short or AMOUNTS:
        judged_by = [other for other in AMOUNTS if other == amount or other not in short]
        found = list(REFUSALS[amount](_Shortage(plan, nodes, judged_by)))
        lines += found or [_in_pieces(plan.only([amount]), nodes)] if short else found
    return "\n".join(lines or [_in_pieces(plan, nodes)])


def _in_pieces(plan: Plan, nodes: Sequence[Bundle]) -> str:
    wanted = ", ".join(f"{group.name} {_wanted(group)}" for group in plan.groups)
    amounts = [amount for amount in AMOUNTS if getattr(plan.total(), amount)]
    sizes = ", ".join(_sizes(node.only(amounts)) for node in nodes)
    return (
        f"resources.placement: {wanted}: the cluster has enough in all, but its nodes have it in pieces ({sizes}); "
        "reserve less per role, or use larger nodes"
    )


def _gpus(shortage: _Shortage) -> Iterator[str]:
    plan, largest, total = shortage.plan, int(shortage.largest("gpus")), shortage.cluster.gpus
    trainer, generator, judge = (plan.total(name).gpus for name in ("trainer", "generator", "judge"))
    ranks = shortage.at_most("trainer_ranks", "resources.trainer_ranks of at most {}")
    if not total:
        yield NO_GPU
    elif trainer > largest:
        [fitting] = [changes["trainer_ranks"] for changes in ranks.values()] or [largest]
        yield str(too_few_gpus(trainer, largest, fitting))
        if not ranks:
            yield from _gpus(shortage.changed({"trainer_ranks": largest}))
    elif trainer + generator + judge > total:
        parts = {"trainer": trainer, "generator": generator} | ({"judge": judge} if judge else {})
        field, options, others = _most_to_spare(shortage)
        yield (
            f"{field}: needs {' + '.join(map(str, parts.values()))} GPUs ({' + '.join(parts)}); the cluster has "
            f"{total}: {shortage.remedy(options | ranks, others)}"
        )
    else:
        yield from _servers_of_one_node(shortage)


def _servers_of_one_node(shortage: _Shortage) -> Iterator[str]:
    roles = {"generator": _of_generator(shortage.resources), "judge": _of_judge(shortage.resources)}
    largest = shortage.largest("gpus")
    for group in shortage.plan.groups:
        if group.name in roles and group.piece.gpus > largest:
            field, options = roles[group.name]
            others = roles["generator"][1] | roles["judge"][1]
            yield (
                f"{field}: needs {group.piece.gpus} GPUs on one node; the largest has {largest}: "
                f"{shortage.remedy(options, others, 'larger nodes')}"
            )


def _most_to_spare(shortage: _Shortage) -> tuple[str, Options, Options]:
    """The field whose role is to give way, its options, and those of the other role."""
    generator, judge = _of_generator(shortage.resources), _of_judge(shortage.resources)
    judge_is_enough = shortage.ends_with({"judge": None})
    generator_is_enough = any(map(shortage.ends_with, generator[1].values()))
    if shortage.resources.judge and (judge_is_enough or not generator_is_enough):
        return *judge, generator[1]
    return *generator, judge[1]


def _of_generator(resources: Resources) -> tuple[str, Options]:
    """The field and its value, and what to use in its place."""
    if resources.generator == "sglang":
        servers = resources.sglang
        return f"resources.sglang.servers = {_servers(servers)}", {
            "fewer servers": {"sglang": servers.model_copy(update={"servers": 1})},
            "those of urls": {"sglang": servers.model_copy(update={"urls": ["http://elsewhere"]})},
        }
    fewer: Options = {"fewer generators": {"generators": 1}}
    if resources.placement.generator == "colocated":
        return f"resources.generators = {resources.generators}", fewer
    colocated = resources.placement.model_copy(update={"generator": "colocated"})
    return "resources.placement.generator = 'apart'", {"'colocated'": {"placement": colocated}} | fewer


def _of_judge(resources: Resources) -> tuple[str, Options]:
    """The same of the judge's servers; nothing without them."""
    if resources.judge is None:
        return "", {}
    return f"resources.judge.servers = {_servers(resources.judge)}", {
        "fewer servers of the judge": {"judge": resources.judge.model_copy(update={"servers": 1})},
        "a judge that runs elsewhere": {"judge": None},
    }


def _servers(servers: SglangServers) -> str:
    each = f" of {servers.tensor_parallel} GPUs" if servers.tensor_parallel > 1 else ""
    return f"{servers.servers}{each}"


def _cpus(shortage: _Shortage) -> Iterator[str]:
    """Threads are named where they alone are too many, workers where they are, alone or beside the threads."""
    plan, total = shortage.plan, shortage.cluster.cpus
    threads, workers = plan.total("trainer", "generator", "judge").cpus, plan.total("rollouts").cpus
    if plan.total().cpus <= total:
        yield from _cpus_of_one_node(shortage)
        return
    if threads > total:
        yield _threads_line(shortage, f"{threads:g} CPUs", f"the cluster has {total:g}")
    if workers > total or threads <= total:
        each, number = shortage.resources.placement.rollout_cpus, shortage.resources.rollout_workers
        fewer = shortage.at_most("rollout_workers", "at most {} resources.rollout_workers")
        yield (
            f"resources.placement.rollout_cpus = {each:g}: needs {number} x {each:g} + {threads:g} CPUs (rollout "
            f"workers + the rest); the cluster has {total:g}: "
            f"{shortage.remedy(fewer | _less_each(shortage.resources), _threads(shortage.resources))}"
        )


def _cpus_of_one_node(shortage: _Shortage) -> Iterator[str]:
    for group in shortage.plan.groups:
        largest = shortage.largest("cpus", Bundle(group.piece.gpus))
        if group.piece.cpus <= largest:
            continue
        if group.name != "rollouts":
            gpus = " with its GPUs" if group.piece.gpus else ""
            needed = f"{group.piece.cpus:g} CPUs on one node ({group.name})"
            yield _threads_line(shortage, needed, f"the largest{gpus} has {largest:g}", "larger nodes")
        else:
            yield (
                f"resources.placement.rollout_cpus = {group.piece.cpus:g}: each rollout worker needs them on one node; "
                f"the largest has {largest:g}: "
                f"{shortage.remedy(_less_each(shortage.resources), _threads(shortage.resources), 'larger nodes')}"
            )


def _threads_line(shortage: _Shortage, needed: str, there: str, last: str = "") -> str:
    ranks = shortage.at_most("trainer_ranks", "resources.trainer_ranks of at most {}")
    remedy = shortage.remedy(_threads(shortage.resources) | ranks, _less_each(shortage.resources), last)
    threads = shortage.resources.threads
    field = "resources.placement.reserve_threads = True"
    return f"{field}: needs {needed} at resources.threads = {threads}; {there}: {remedy}"


def _threads(resources: Resources) -> Options:
    without = resources.placement.model_copy(update={"reserve_threads": False})
    return (
        {"fewer threads": {"threads": 1}, "False": {"placement": without}}
        if resources.placement.reserve_threads
        else {}
    )


def _less_each(resources: Resources) -> Options:
    least = min(resources.placement.rollout_cpus, 1 / PARTS)
    return {"fewer CPUs for each": {"placement": resources.placement.model_copy(update={"rollout_cpus": least})}}


def _memory(shortage: _Shortage) -> Iterator[str]:
    rollouts, total = shortage.plan.group("rollouts"), shortage.cluster.memory_bytes
    if rollouts is None:
        return
    each, placement = rollouts.piece.memory_bytes, shortage.resources.placement
    largest = shortage.largest("memory_bytes", Bundle(cpus=rollouts.piece.cpus))
    field = f"resources.placement.rollout_memory_gib = {each / GIB:g}"
    less: Options = {"less for each": {"placement": placement.model_copy(update={"rollout_memory_gib": 1 / GIB})}}
    if rollouts.total.memory_bytes > total:
        fewer = shortage.at_most("rollout_workers", "at most {} resources.rollout_workers")
        yield (
            f"{field}: needs {len(rollouts.bundles)} x {each / GIB:g} GiB; the cluster has {total / GIB:.1f} GiB: "
            f"{shortage.remedy(fewer | less, {})}"
        )
    elif each > largest:
        yield (
            f"{field}: each rollout worker needs it on one node; the largest has {largest / GIB:.1f} GiB: "
            f"{shortage.remedy(less, {}, 'larger nodes')}"
        )


REFUSALS: dict[Amount, Callable[[_Shortage], Iterator[str]]] = {"gpus": _gpus, "cpus": _cpus, "memory_bytes": _memory}


def _wanted(group: Group) -> str:
    if group.on_one_node or len(group.bundles) == 1:
        return f"{_sizes(group.total)} on one node"
    return f"{len(group.bundles)} x {_sizes(group.bundles[0])}"


def _sizes(bundle: Bundle) -> str:
    parts = [f"{bundle.gpus} GPUs" if bundle.gpus else "", f"{bundle.cpus:g} CPUs" if bundle.cpus else ""]
    memory = f"{bundle.memory_bytes / GIB:.1f} GiB" if bundle.memory_bytes else ""
    return " + ".join(filter(None, [*parts, memory])) or "nothing"
