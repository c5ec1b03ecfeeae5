"""Which trainer backend a run asks for (``resources.trainer``)."""

from importlib import import_module

from engine.spec.backends import TRAINERS
from engine.spec.model import Model
from engine.spec.run import Resources
from engine.training.backends.interface import TrainerBackend


def trainer_backend(model: Model, resources: Resources, *, seed: int) -> TrainerBackend:
    """The backend of a run, with its model's first weights; those of a built-in model follow from ``seed``."""
    module, _, name = TRAINERS[resources.trainer].partition(":")
    backend: TrainerBackend = getattr(import_module(module), name)(model, resources, seed=seed)
    return backend
