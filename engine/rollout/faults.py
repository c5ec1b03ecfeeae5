"""An environment's own faults, told from everything else that may go wrong in an episode."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.environments.contract import EnvironmentProcessLost, VerifierFailed
from sandboxes.interface import PoolClosed, SandboxFrozen, SandboxLost, SandboxUnavailable, SnapshotUnavailable

_WITH_A_NAME_OF_ITS_OWN = (
    SandboxLost,
    SandboxFrozen,
    SandboxUnavailable,
    SnapshotUnavailable,
    PoolClosed,
    VerifierFailed,
)


class EnvironmentFailed(Exception):
    """The environment's own code raised, or broke its contract: the episode is discarded and counted."""


class EnvironmentLost(EnvironmentFailed):
    """The process that the environment runs in was lost: counted by itself, because others' episodes end with it."""

    def __init__(self, message: str, *, finished_episodes: int = 0) -> None:
        super().__init__(message)
        self.finished_episodes = finished_episodes
        """As ``EnvironmentProcessLost`` has it."""


@contextmanager
def named_as_environment_fault() -> Iterator[None]:
    """What comes of sandboxes and of a verifier passes through; all else becomes EnvironmentFailed, with its cause."""
    try:
        yield
    except (*_WITH_A_NAME_OF_ITS_OWN, EnvironmentFailed):
        raise
    except EnvironmentProcessLost as lost:
        raise EnvironmentLost(str(lost), finished_episodes=lost.finished_episodes) from lost
    except Exception as error:
        raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error
