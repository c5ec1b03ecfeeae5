"""The renderer of a run.  Tokenizers and templates are loaded where the model is a folder that has them."""

from engine.models.origin import model_origin
from engine.models.tokenizer import tokenizer_for
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.contract import Renderer
from engine.spec.mixture import RunEnvironment
from engine.spec.model import BuiltinModel, Model


def renderer_for(model: Model, environment: RunEnvironment) -> Renderer:
    """The renderer of the model's vocabulary.  A built-in model reasons where its environment says so."""
    origin = model_origin(model)
    if isinstance(origin.model, BuiltinModel):
        return CharacterRenderer(tokenizer_for(origin.model.vocabulary), reasoning=environment.reasoning)
    assert origin.weights is not None  # a pretrained model has a folder
    from engine.rollout.renderers.chat import chat_renderer

    return chat_renderer(origin.weights, tool_calls=origin.model.tool_calls, reasoning=origin.model.reasoning)
