"""One service as a process: checked, swept, served, drained, ended."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Iterator

import uvicorn

from sandboxes.service.app import make_app
from sandboxes.service.hosted_sandboxes import HostedSandboxes
from sandboxes.service.settings import Settings
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


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.  Raises ``NotStarted``."""
    if not settings.is_loopback and not Tokens(settings.tokens).any_is_valid:
        raise NotStarted(
            f"--host {settings.host} can be reached from other machines, and {settings.tokens} has no token that is"
            " valid: run `python -m sandboxes token create NAME` first, or serve on 127.0.0.1"
        )
    swept = sweep()
    if swept.anything:
        log.warning("swept what a dead owner left", extra=swept.counts())
    asyncio.run(_serve(settings))


class Serving:
    """The server of one application.  ``run`` serves until ``stop``; a second ``stop`` does not wait for anybody."""

    def __init__(self, settings: Settings) -> None:
        """Listens at once, so that the address is known.  Raises ``NotStarted``."""
        self._listener = _listener(settings)
        self.host, self.port = self._listener.getsockname()[:2]
        self.app = make_app(settings)
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
    def _sandboxes(self) -> HostedSandboxes | None:
        """Return them, None until the application has started."""
        return getattr(self.app.state, "sandboxes", None)


async def _serve(settings: Settings) -> None:
    serving = Serving(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.stop)
    log.info("serving", extra={"host": serving.host, "port": serving.port, "file": str(settings.tokens)})
    await serving.run()
    log.info("stopped")


def _listener(settings: Settings) -> socket.socket:
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
