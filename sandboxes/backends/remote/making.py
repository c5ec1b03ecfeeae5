"""How a sandbox at the service is made, waited for, or given up."""

import logging
import secrets

from sandboxes.backends.remote.connection import Connection
from sandboxes.backends.remote.wire import MOST_WAIT_S, CreateSandbox, SandboxView
from sandboxes.interface import SandboxLost, SandboxUnavailable
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

log = logging.getLogger(__name__)
IDLE_S = 90.0
"""Several heartbeats (``session``)."""
QUEUE_S = 600.0
"""How long to wait for room at the service."""


async def made(connection: Connection, spec: SandboxSpec, *, stream: bool) -> SandboxView:
    """A sandbox that is open.  Raises ``SandboxUnavailable``, and then nothing is left there, nor of the connection."""
    wanted = CreateSandbox(
        spec=spec.model_copy(update={"place": "here"}), idle_s=IDLE_S, queue_s=QUEUE_S, stream=stream
    )
    key = secrets.token_hex(16)
    view: SandboxView | None = None
    try:
        view = await _created(connection, wanted, key)
        return await _opened(connection, view)
    except BaseException as error:
        await completed(_give_up(connection, wanted, key, view))
        if isinstance(error, SandboxLost | ValueError):
            raise SandboxUnavailable(str(error)) from error
        raise


async def _opened(connection: Connection, view: SandboxView) -> SandboxView:
    while view.state in ("queued", "starting"):
        waiting = {"wait_s": MOST_WAIT_S}
        answer = await connection.ask("GET", f"/v1/sandboxes/{view.id}", params=waiting, again=True)
        view = SandboxView.model_validate_json(answer.content)
    if view.name is None:
        raise SandboxLost(f"the sandbox ended before it was open: {view.reason}")
    return view


async def _created(connection: Connection, wanted: CreateSandbox, key: str) -> SandboxView:
    """The same sandbox for the same key, however often it is asked for."""
    answer = await connection.ask("POST", "/v1/sandboxes", wanted, headers={"Idempotency-Key": key}, again=True)
    return SandboxView.model_validate_json(answer.content)


async def _give_up(connection: Connection, wanted: CreateSandbox, key: str, view: SandboxView | None) -> None:
    """Close what was made; of which nothing was heard may have been made, or not: the key leads to it."""
    try:
        if view is None:
            view = await _created(connection, wanted.model_copy(update={"wait_s": 0.0}), key)
        await connection.ask("DELETE", f"/v1/sandboxes/{view.id}", again=True)
    except (SandboxLost, SandboxUnavailable, ValueError) as error:
        log.info("nothing to give up at the service, or the service does it when idle: %s", error)
    finally:
        await connection.close()
