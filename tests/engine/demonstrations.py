"""The demonstrations of a spec, for tests that begin with them."""

from engine.environments.registry import environment_for
from engine.rollout.demonstrations import DemonstrationWriter, demonstration_writer_for
from engine.rollout.renderers.registry import renderer_for
from engine.spec.run import RunSpec


def demonstration_writer_of(spec: RunSpec) -> DemonstrationWriter:
    environment = environment_for(spec.environment, spec.dataset)
    renderer = renderer_for(spec.model, spec.environment)
    return demonstration_writer_for(environment, renderer, spec.recipe.reward, seed=spec.seed)
