"""The frozen policy that a recipe holds the trained one to: its weights at the end of the cold start."""

import copy

from engine.models.qwen3 import Qwen3
from engine.spec.recipe import Recipe


def penalises(recipe: Recipe) -> bool:
    """Whether the loss has a KL term.  A weight of 0 is its absence."""
    return recipe.kl is not None and recipe.kl.beta > 0


def needs_reference(recipe: Recipe) -> bool:
    return penalises(recipe) or recipe.objective.kind == "dpo"


def frozen_copy(model: Qwen3) -> Qwen3:
    return copy.deepcopy(model).requires_grad_(False)
