"""RunLog an environment's own faults from everything else that may go wrong in an episode."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.environments.contract import ToolSession
from engine.rollout.chat import Call
from engine.spec.trajectory import ToolCall
from sandboxes.interface import PoolClosed, SandboxFrozen, SandboxLost, SandboxUnavailable, SnapshotUnavailable

_NOT_THE_ENVIRONMENT = (SandboxLost, SandboxFrozen, SandboxUnavailable, SnapshotUnavailable, PoolClosed)


class EnvironmentFailed(Exception):
    """The environment's own code raised: the episode is discarded and counted.  The cause is chained."""


@contextmanager
def named_as_environment_fault() -> Iterator[None]:
    """What comes of the boxes passes through; every other exception becomes EnvironmentFailed."""
    try:
        yield
    except _NOT_THE_ENVIRONMENT:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error


class FaultNamingSession:
    """A ToolSession whose faults have that name."""

    def __init__(self, session: ToolSession) -> None:
        self._session = session

    @property
    def done(self) -> bool:
        return self._session.done

    @property
    def success(self) -> bool:
        return self._session.success

    async def call(self, call: Call) -> ToolCall:
        with named_as_environment_fault():
            return await self._session.call(call)

    async def snapshot(self) -> object:
        with named_as_environment_fault():
            return await self._session.snapshot()

    async def restore(self, snapshot: object) -> None:
        with named_as_environment_fault():
            await self._session.restore(snapshot)

    async def drop(self, snapshot: object) -> None:
        with named_as_environment_fault():
            await self._session.drop(snapshot)
