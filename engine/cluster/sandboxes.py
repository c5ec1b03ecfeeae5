"""The sandboxes of a rollout worker."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.rollout.sandbox_monitor import SandboxMonitor
from engine.rollout.security_log import AlertEntry, SecurityLog
from engine.spec.environment import Environment
from engine.spec.mixture import RunEnvironment, parts_of, sandboxes_of
from engine.spec.security import Response
from sandboxes.opened import opened
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

WARM = 8
"""Sandboxes that are ready before the first episode; the others are made when they are needed."""


@dataclass(frozen=True, slots=True)
class MonitoredPool:
    pool: Pool
    monitor: SandboxMonitor


@asynccontextmanager
async def opened_sandboxes(
    environment: Environment,
    security_log: Path,
    *,
    size: int,
    on_alert: Callable[[AlertEntry], None] | None = None,
) -> AsyncIterator[MonitoredPool]:
    """Raises SandboxUnavailable at once if this machine cannot make sandboxes.

    What they do is written below the folder ``security_log``, and ``on_alert`` is told what is found in it.  An
    environment without sandbox never asks the pool for a sandbox, and none is made.
    """
    sandbox = environment.sandbox
    response = Response() if sandbox is None else environment.response
    policy = None if sandbox is None else sandbox.egress
    monitor = SandboxMonitor(response, policy, SecurityLog(security_log), on_alert=on_alert)
    try:
        async with Pool(
            sandbox or SandboxSpec(),
            size=size,
            on_record=monitor.on_record,
            on_statement=monitor.on_statement,
            on_action=monitor.on_action,
            keep_frozen_s=response.keep_frozen_s,
        ) as pool:
            if sandbox is not None:
                await pool.warm(min(WARM, size))
            yield MonitoredPool(pool, monitor)
    finally:
        await monitor.close()


@asynccontextmanager
async def opened_parts(
    environment: RunEnvironment, security_log: Path, *, size: int
) -> AsyncIterator[dict[str | None, MonitoredPool]]:
    """The sandboxes of each part of an environment, by the part's name; ``size`` of them in all.

    A part takes no sandbox of another one: its profile, its limits and what it may reach are its own.  Raises as
    ``opened_sandboxes``.
    """
    async with AsyncExitStack() as held:
        yield {
            name: await held.enter_async_context(opened_sandboxes(part, security_log, size=share))
            for name, part, share in _shares(environment, size)
        }


def _shares(environment: RunEnvironment, size: int) -> list[tuple[str | None, Environment, int]]:
    """Each part that takes sandboxes has one, and of the others what its weight gives it, rounded down."""
    parts = parts_of(environment)
    taking = [part for part in parts if part.environment.sandbox is not None]
    weight, left = sum(part.weight for part in taking), size - len(taking)
    shares = {part.name: 1 + int(left * part.weight / weight) for part in taking}
    return [(part.name, part.environment, shares.get(part.name, size)) for part in parts]


async def probe(environment: RunEnvironment) -> None:
    """Make a sandbox of each part and run something in it.  Raises SandboxUnavailable, which says what is missing."""
    for spec in sandboxes_of(environment):
        async with opened(spec) as sandbox:
            await sandbox.run_python("1 + 1")
