"""How one gets a sandbox: ``async with opened(spec) as sandbox``."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache

from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.backends.namespaces.zygote import Zygotes
from sandboxes.descriptors import unavailable_without
from sandboxes.egress.gateway.ledger import OnRecord, OnStatement
from sandboxes.egress.gateway.upstream import UPSTREAM, Upstream
from sandboxes.interface import Sandbox
from sandboxes.observation.observation import OnAction
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

Start = Callable[
    [SandboxSpec, OnRecord | None, Upstream, OnAction | None, Zygotes | None, OnStatement | None], Awaitable[Sandbox]
]


log = logging.getLogger(__name__)


async def _remote(
    spec: SandboxSpec,
    on_record: OnRecord | None,
    upstream: Upstream,
    _: OnAction | None,
    __: Zygotes | None,
    on_statement: OnStatement | None,
) -> Sandbox:
    # Imported here: an HTTP client takes as long to import as ten sandboxes to make.
    from sandboxes.backends.remote.sandbox import RemoteSandbox

    return await RemoteSandbox.start(spec, on_record, upstream, on_statement)


async def _docker(
    spec: SandboxSpec,
    on_record: OnRecord | None,
    upstream: Upstream,
    on_action: OnAction | None,
    _: Zygotes | None,
    on_statement: OnStatement | None,
) -> Sandbox:
    # Imported here: Docker's SDK is as slow to import, and most machines have no use for it.
    from sandboxes.backends.docker.sandbox import DockerSandbox

    return await DockerSandbox.start(spec, on_record, upstream, on_action, on_statement=on_statement)


BACKENDS: dict[str, Start] = {"namespaces": NamespaceSandbox.start, "docker": _docker}


def zygotes_for(spec: SandboxSpec) -> Zygotes | None:
    """For whoever opens one sandbox of this spec after the other, and closes them before these; None if none help."""
    return Zygotes(spec) if Zygotes.serve(spec) else None


async def open_sandbox(
    spec: SandboxSpec,
    on_record: OnRecord | None = None,
    upstream: Upstream = UPSTREAM,
    on_action: OnAction | None = None,
    zygotes: Zygotes | None = None,
    on_statement: OnStatement | None = None,
) -> Sandbox:
    """A sandbox that the caller must ``close``, of this machine or of the service.  Raises ``SandboxUnavailable``.

    ``on_record`` gets the record of every attempt to reach the network at once, the last of them within
    ``close``.  It must not wait; a record on which it raises is delivered again with the next one.
    ``on_action`` gets what the processes of a watched one on this machine do: of those of a service the network
    and the text of calls are all that is known.  It must not wait either.
    ``on_statement`` gets each attempt by itself at once, whatever ``on_record`` takes and the ledger sums up meanwhile.
    ``zygotes``: of the same spec (``zygotes_for``); one of them makes it, for a tenth of the price.
    """
    if on_action is not None and spec.network == "watched" and spec.place == "service":
        _not_observed()
    start = _remote if spec.place == "service" else BACKENDS[spec.backend]
    with unavailable_without():
        return await start(spec, on_record, upstream, on_action, zygotes, on_statement)


@cache
def _not_observed() -> None:
    """Say it once."""
    log.warning("a service's sandboxes are not observed: detectors see their network and the text of calls only")


@asynccontextmanager
async def opened(
    spec: SandboxSpec,
    on_record: OnRecord | None = None,
    upstream: Upstream = UPSTREAM,
    on_action: OnAction | None = None,
) -> AsyncIterator[Sandbox]:
    """A sandbox that is closed however the caller leaves, a cancelled clean-up included."""
    sandbox = await open_sandbox(spec, on_record, upstream, on_action)
    try:
        yield sandbox
    finally:
        await completed(sandbox.close())
