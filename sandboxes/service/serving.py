"""One service as a process: checked, swept, served, drained, ended."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI

from sandboxes.service.app import make_app
from sandboxes.service.registration import Registration
from sandboxes.service.settings import Settings, is_loopback
from sandboxes.service.tokens import Tokens
from sandboxes.sweeper import sweep

log = logging.getLogger(__name__)
KEEP_ALIVE_S = 75
"""Longer than any client of ours keeps a connection that it does not use: a request never meets a closed one."""
BACKLOG = 4096


class NotStarted(Exception):
    """The message says what is missing."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would end by the signal, and not with 0."""
        yield


class Listening(Protocol):
    """Where a server listens, and how long it lets requests end."""

    @property
    def tokens(self) -> Path: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def drain_s(self) -> float: ...


class Closing(Protocol):
    """What an application has as ``state.sandboxes`` once it has started."""

    def drain(self) -> None: ...
    async def close(self) -> None: ...


def serve(settings: Settings, registration: Registration | None = None) -> None:
    """Serve until SIGTERM or SIGINT.  Raises ``NotStarted``.  ``registration``: with an admin of several hosts."""
    if registration is None:
        refuse_open_door(settings)
    swept = sweep()
    if swept.anything:
        log.warning("swept what a dead owner left", extra=swept.counts())
    asyncio.run(_serve(settings, registration))


def refuse_open_door(settings: Listening) -> None:
    """Raises ``NotStarted`` where other machines could ask and nobody could have been meant to."""
    if not is_loopback(settings.host) and not Tokens(settings.tokens).any_is_valid:
        raise NotStarted(
            f"--host {settings.host} can be reached from other machines, and {settings.tokens} has no token that is"
            " valid: run `python -m sandboxes token create NAME` first, or serve on 127.0.0.1"
        )


class Serving:
    """The server of one application.  ``run`` serves until ``stop``; a second ``stop`` does not wait for anybody."""

    def __init__(self, settings: Listening, app: FastAPI) -> None:
        """Listens at once, so that the address is known.  Raises ``NotStarted``."""
        self._listener = _listener(settings)
        self.host, self.port = self._listener.getsockname()[:2]
        self.app = app
        config = uvicorn.Config(
            self.app, log_config=None, access_log=False, server_header=False, loop="asyncio", lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=math.ceil(settings.drain_s),
        )  # fmt: skip
        self._server = _Server(config)

    async def run(self) -> None:
        try:
            await self._server.serve([self._listener])
        finally:
            self._listener.close()
            if self._sandboxes is not None:
                await self._sandboxes.close()  # uvicorn ends no lifespan when it does not wait

    def stop(self) -> None:
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
        if self._sandboxes is not None:
            self._sandboxes.drain()

    @property
    def _sandboxes(self) -> Closing | None:
        """Return them, None until the application has started."""
        return getattr(self.app.state, "sandboxes", None)


async def run_until_signal(serving: Serving, *, event: str, beside: Coroutine[Any, Any, None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, and do ``beside`` meanwhile."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.stop)
    log.info(event, extra={"host": serving.host, "port": serving.port})
    doing = None if beside is None else asyncio.ensure_future(beside)
    try:
        await serving.run()
    finally:
        if doing is not None:
            doing.cancel()
    log.info("stopped")


async def _serve(settings: Settings, registration: Registration | None) -> None:
    tokens = Tokens(settings.tokens) if registration is None else Tokens(settings.tokens, registration.token)
    serving = Serving(settings, make_app(settings, tokens))
    beside = None if registration is None else registration.keep(serving.port)
    await run_until_signal(serving, event="serving", beside=beside)


def _listener(settings: Listening) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named: asyncio turns delays off only for sockets that it knows to be TCP.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((settings.host, settings.port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise NotStarted(
            f"--host {settings.host} --port {settings.port}: {error.strerror}; choose another port or address"
        ) from error
    return made
