"""The rollout worker that a spec asks for, put together of its parts.

It stands apart from ``members.py`` so that the process of a rollout worker never loads torch.
"""

from collections.abc import Mapping
from types import MappingProxyType

from engine.cluster.sandboxes import MonitoredPool
from engine.environments.contract import Sandboxes
from engine.environments.registry import environment_for
from engine.judge_endpoint import ServedJudge
from engine.models.origin import model_origin
from engine.rollout.arena import ArenaPart
from engine.rollout.episode import Arena
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.sandbox_monitor import SandboxMonitor
from engine.rollout.worker import RolloutWorker
from engine.spec.agent import AgentProgram
from engine.spec.environment import Agent
from engine.spec.generation import TextGenerator
from engine.spec.mixture import PlayedPart, RunEnvironment, parts_of
from engine.spec.run import RunSpec

NO_PARTS: Mapping[str, ArenaPart] = MappingProxyType({})


def rollout_worker_for(
    spec: RunSpec,
    generator: TextGenerator,
    sandboxes: Sandboxes,
    monitor: SandboxMonitor | None = None,
    *,
    parts: Mapping[str, ArenaPart] = NO_PARTS,
    served_judge: ServedJudge | None = None,
) -> RolloutWorker:
    """A worker whose episodes ask ``generator`` and take ``sandboxes``, which ``monitor`` watches.

    ``parts`` have their own, by the names of the environment's parts; an environment with parts takes no other.
    """
    arena = Arena(
        environment=environment_for(spec.environment, spec.dataset, served_judge),
        renderer=renderer_for(spec.model, spec.environment),
        generator=generator,
        sandboxes=sandboxes,
        reward=spec.recipe.reward,
        max_turns=spec.environment.max_turns,
        max_turn_tokens=spec.environment.max_turn_tokens,
        context_tokens=model_origin(spec.model).context_tokens,
        purification=spec.recipe.purification,
        context=spec.recipe.context,
        monitor=monitor,
        agent=_agent_of(spec.environment),
        parts=parts,
    )
    slots = spec.resources.generators * spec.resources.kv_slots
    return RolloutWorker(arena, spec.recipe.selection.resampling, kv_slots=slots)


def rollout_worker_over(
    spec: RunSpec,
    generator: TextGenerator,
    pools: Mapping[str | None, MonitoredPool],
    served_judge: ServedJudge | None = None,
) -> RolloutWorker:
    """A worker over the sandboxes of each part of the environment, as ``opened_parts`` gives them."""
    usual = next(iter(pools.values()))
    parts = {part.name: _part(spec, part, pools[part.name]) for part in parts_of(spec.environment) if part.name}
    return rollout_worker_for(spec, generator, usual.pool, usual.monitor, parts=parts, served_judge=served_judge)


def _part(spec: RunSpec, part: PlayedPart, own: MonitoredPool) -> ArenaPart:
    return ArenaPart(
        renderer=renderer_for(spec.model, part.environment),
        sandboxes=own.pool,
        monitor=own.monitor,
        max_turns=part.environment.max_turns,
        max_turn_tokens=part.environment.max_turn_tokens,
        agent=_agent_of(part.environment),
    )


def _agent_of(environment: RunEnvironment) -> AgentProgram | None:
    return environment.agent if isinstance(environment, Agent) else None
