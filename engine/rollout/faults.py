"""An environment's own faults, told from everything else that may go wrong in an episode."""

from collections.abc import Iterator
from contextlib import contextmanager

from sandboxes.interface import PoolClosed, SandboxFrozen, SandboxLost, SandboxUnavailable, SnapshotUnavailable

_NOT_THE_ENVIRONMENT = (SandboxLost, SandboxFrozen, SandboxUnavailable, SnapshotUnavailable, PoolClosed)


class EnvironmentFailed(Exception):
    """The environment's own code raised, or broke its contract: the episode is discarded and counted."""


@contextmanager
def named_as_environment_fault() -> Iterator[None]:
    """What comes of the sandboxes passes through; every other exception becomes EnvironmentFailed, with its cause."""
    try:
        yield
    except (*_NOT_THE_ENVIRONMENT, EnvironmentFailed):
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error
