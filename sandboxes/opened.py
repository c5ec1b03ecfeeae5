"""How one gets a box: ``async with opened(spec) as box``."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sandboxes.backends.namespaces.box import NamespaceBox
from sandboxes.interface import Sandbox
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

BACKENDS: dict[str, Callable[[SandboxSpec], Awaitable[Sandbox]]] = {"namespaces": NamespaceBox.start}


async def open_box(spec: SandboxSpec) -> Sandbox:
    """A box that the caller must ``close``.  Raises ``SandboxUnavailable``."""
    return await BACKENDS[spec.backend](spec)


@asynccontextmanager
async def opened(spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """A box that is closed however the caller leaves, a cancelled clean-up included."""
    box = await open_box(spec)
    try:
        yield box
    finally:
        await completed(box.close())
