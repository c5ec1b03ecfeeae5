"""The renderer of a run."""

from engine.models.tokenizer import tokenizer_for
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.contract import Renderer
from engine.spec.run import RunSpec


def renderer_for(spec: RunSpec) -> Renderer:
    """The renderer of the model's vocabulary."""
    return CharacterRenderer(tokenizer_for(spec.model.vocabulary), reasoning=spec.environment.reasoning)
