"""Which trainer backend a run asks for (``resources.trainer``)."""

from importlib import import_module

from engine.spec.backends import TRAINERS
from engine.spec.run import RunSpec
from engine.training.backends.interface import TrainerBackend


def trainer_backend(spec: RunSpec) -> TrainerBackend:
    """The backend of the run, with the weights that the run's seed gives."""
    module, _, name = TRAINERS[spec.resources.trainer].partition(":")
    backend: TrainerBackend = getattr(import_module(module), name)(spec)
    return backend
