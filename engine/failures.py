"""Why a run or an attempt at it ends early."""

from collections.abc import Iterator
from contextlib import contextmanager


class RunFailed(Exception):
    """The run cannot succeed, and starting it again would not help."""


class AttemptFailed(Exception):
    """This attempt is over; another one may go on from the checkpoint."""


class RankLost(AttemptFailed):
    """A process of a sharded trainer died or failed, and with it its part of the weights."""


class AttemptRefused(Exception):
    """The service takes nothing more of this attempt."""


class Cancelled(Exception):
    """The run was cancelled."""


class NonFiniteGradient(Exception):
    """The gradient is infinite or not a number.  Everything is repeatable, so another attempt would meet it again."""


OUT_OF_MEMORY = (
    "a GPU's memory is full: go on from the checkpoint with a smaller model.microbatch_tokens or resources.kv_slots, "
    "with model.gradient_checkpointing, or on more resources.trainer_ranks; docs/backends.md says what may change"
)
NO_GPU = "resources.device = 'cuda': there is no GPU that torch or Ray could use; use cpu, or run it where there is one"


def too_few_gpus(ranks: int, gpus: int, fitting: int | None = None) -> RunFailed:
    """Each rank of a trainer has a GPU of its own, and all are on one machine.

    ``fitting`` ranks leave enough to the others of the run; absent: as many as there are GPUs.
    """
    if not gpus:
        return RunFailed(NO_GPU)
    machine = f"a machine has {gpus} GPU{'s' if gpus > 1 else ''} at most"
    return RunFailed(
        f"resources.trainer_ranks = {ranks}: each rank needs a GPU, and {machine}; use at most {fitting or gpus}"
    )


def with_remedy(reason: str) -> str:
    """The reason of a failure, with what to do about it where that is known."""
    return f"{reason}; {OUT_OF_MEMORY}" if "CUDA out of memory" in reason else reason


@contextmanager
def divergence_named(what: str, remedy: str) -> Iterator[None]:
    """A gradient that is not finite comes again in every attempt: RunFailed, which names the remedy."""
    try:
        yield
    except NonFiniteGradient as error:
        raise RunFailed(f"{what}: {error}; lower {remedy}") from error
