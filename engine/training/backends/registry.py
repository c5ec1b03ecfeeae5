"""Which trainer backend a run asks for (``resources.trainer``), on one process or on several."""

from engine.spec.backends import SHARDED_TRAINERS, TRAINERS
from engine.spec.model import Model
from engine.spec.resources import Resources
from engine.training.backends.interface import TrainerBackend
from engine.training.backends.ranks import Leader, found


def trainer_backend(model: Model, resources: Resources, *, seed: int, leader: Leader | None = None) -> TrainerBackend:
    """The backend of a run, with its model's first weights; those of a built-in model follow from ``seed``.

    ``leader`` leads the trainer's ranks, where it has more than one.  Raises RankLost.
    """
    if resources.has_leader and leader is None:
        raise ValueError(f"{resources.trainer_ranks} ranks have no leader: who starts them gives it")
    made = found((SHARDED_TRAINERS if resources.has_leader else TRAINERS)[resources.trainer])
    backend: TrainerBackend = made(leader) if resources.has_leader else made(model, resources, seed=seed)
    return backend
