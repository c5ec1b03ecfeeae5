"""The sandboxes of a rollout worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.spec.run import RunSpec
from sandboxes.opened import opened
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

WARM = 8
"""Boxes that are ready before the first episode; the others are made when they are needed."""


@asynccontextmanager
async def opened_boxes(spec: RunSpec) -> AsyncIterator[Pool]:
    """Raises SandboxUnavailable at once if this machine cannot make boxes.

    An environment without sandbox never asks the pool for a box, and none is made.
    """
    sandbox = spec.environment.sandbox
    async with Pool(sandbox or SandboxSpec(), size=spec.resources.sandboxes) as pool:
        if sandbox is not None:
            await pool.warm(min(WARM, spec.resources.sandboxes))
        yield pool


async def probe(spec: RunSpec) -> None:
    """Make one box and run something in it.  Raises SandboxUnavailable, which says what is missing."""
    if spec.environment.sandbox is None:
        return
    async with opened(spec.environment.sandbox) as box:
        await box.run_python("1 + 1")
