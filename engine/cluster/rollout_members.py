"""The rollout worker that a spec asks for, put together of its parts.

It stands apart from ``members.py`` so that the process of a rollout worker never loads torch.
"""

from engine.environments.contract import Sandboxes
from engine.environments.registry import environment_for
from engine.models.origin import model_origin
from engine.rollout.episode import Arena
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.sandbox_monitor import SandboxMonitor
from engine.rollout.worker import RolloutWorker
from engine.spec.environment import Agent
from engine.spec.generation import TextGenerator
from engine.spec.run import RunSpec


def rollout_worker_for(
    spec: RunSpec, generator: TextGenerator, sandboxes: Sandboxes, monitor: SandboxMonitor | None = None
) -> RolloutWorker:
    """A worker whose episodes ask ``generator`` and take ``sandboxes``, which ``monitor`` watches."""
    arena = Arena(
        environment=environment_for(spec.environment, spec.dataset),
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
        agent=spec.environment.agent if isinstance(spec.environment, Agent) else None,
    )
    return RolloutWorker(arena, spec.recipe.selection.resampling, kv_slots=spec.resources.kv_slots)
