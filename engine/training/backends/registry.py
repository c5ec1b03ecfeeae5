"""Which trainer backend a run asks for (``resources.trainer``), on one process or on several."""

from importlib import import_module
from typing import Any

from engine.spec.backends import SHARDED_TRAINERS, TRAINERS
from engine.spec.model import Model
from engine.spec.run import Resources
from engine.training.backends.interface import TrainerBackend
from engine.training.backends.ranks import Leader


def trainer_backend(model: Model, resources: Resources, *, seed: int, leader: Leader | None = None) -> TrainerBackend:
    """The backend of a run, with its model's first weights; those of a built-in model follow from ``seed``.

    ``leader`` leads the trainer's ranks, where it has more than one.  Raises RankLost.
    """
    is_sharded = resources.trainer_ranks > 1
    if is_sharded and leader is None:
        raise ValueError(f"{resources.trainer_ranks} ranks have no leader: who starts them gives it")
    module, _, name = (SHARDED_TRAINERS if is_sharded else TRAINERS)[resources.trainer].partition(":")
    made: Any = getattr(import_module(module), name)
    backend: TrainerBackend = made(leader) if is_sharded else made(model, resources, seed=seed)
    return backend
