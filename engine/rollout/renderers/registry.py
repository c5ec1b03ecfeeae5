"""The renderer of a run."""

from engine.models.origin import model_origin
from engine.models.tokenizer import tokenizer_for
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.chat import chat_renderer
from engine.rollout.renderers.contract import Renderer
from engine.spec.model import BuiltinModel
from engine.spec.run import RunSpec


def renderer_for(spec: RunSpec) -> Renderer:
    """The renderer of the model's vocabulary."""
    origin = model_origin(spec.model)
    if isinstance(origin.model, BuiltinModel):
        return CharacterRenderer(tokenizer_for(origin.model.vocabulary), reasoning=spec.environment.reasoning)
    assert origin.weights is not None  # a pretrained model has a folder
    return chat_renderer(origin.weights, tool_calls=origin.model.tool_calls, reasoning=origin.model.reasoning)
