"""A run's plan (placement.py) as Ray's placement groups, and the options by which an actor comes to its seat."""

import asyncio
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from engine.cluster.misfit import misfit
from engine.cluster.placement import Bundle, Group, GroupName, plan_for
from engine.failures import RunFailed
from engine.spec.resources import Resources

LOOK_EVERY_S = 1.0


class RayPlacement:
    """What a run holds of a cluster, from ``reserve`` to ``release``.

    Ray gives the bundles of a node that died to other nodes, so that an actor that is made anew finds its seat there.
    """

    def __init__(self, resources: Resources) -> None:
        self._plan = plan_for(resources)
        self._groups: dict[GroupName, PlacementGroup] = {}

    async def reserve(self) -> None:
        """Wait until everything is the run's.  RunFailed where it could never be; others' runs are waited for."""
        if problem := misfit(self._plan, _nodes()):
            raise RunFailed(problem)
        for group in self._plan.groups:
            self._groups[group.name] = _reserved(group)
        for reserved in self._groups.values():
            while not await asyncio.get_running_loop().run_in_executor(None, reserved.wait, LOOK_EVERY_S):
                pass

    def options(self, actor: str, *, ranks_node: str) -> dict[str, Any]:
        """The options of ``actor``, by the names of ``Plan.seat``.

        Without a reservation a rank goes to ``ranks_node``, and a rollout worker to the driver's node: not every node
        can make sandboxes.
        """
        seat = self._plan.seat(actor)
        options: dict[str, Any] = {"num_cpus": seat.cpus, "num_gpus": seat.gpus}
        if seat.group is None:
            if actor.startswith("rank"):
                return options | {"scheduling_strategy": _on(ranks_node)}
            if actor.startswith("rollout"):
                return options | {"scheduling_strategy": _on(ray.get_runtime_context().get_node_id())}
            return options
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._groups[seat.group], placement_group_bundle_index=seat.bundle
        )
        memory = {"memory": seat.memory_bytes} if seat.memory_bytes else {}
        return options | memory | {"scheduling_strategy": strategy}

    def release(self) -> None:
        """Twice is fine."""
        for reserved in self._groups.values():
            remove_placement_group(reserved)
        self._groups.clear()


def _reserved(group: Group) -> PlacementGroup:
    strategy = "STRICT_PACK" if group.on_one_node else "SPREAD"
    reserved: PlacementGroup = placement_group([_in_rays_words(bundle) for bundle in group.bundles], strategy=strategy)
    return reserved


def _in_rays_words(bundle: Bundle) -> dict[str, float]:
    amounts: dict[str, float] = {"GPU": bundle.gpus, "CPU": bundle.cpus, "memory": bundle.memory_bytes}
    return {name: amount for name, amount in amounts.items() if amount}


def _nodes() -> list[Bundle]:
    """What each living node has, whoever uses it now."""
    living = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Bundle(int(has.get("GPU", 0)), has.get("CPU", 0.0), int(has.get("memory", 0))) for has in living]


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)
