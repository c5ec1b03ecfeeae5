"""Which ports are free, and the socket that the web answers on."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from devtools.errors import Unfit

DEFAULT_PORT = 8700
BACKLOG = 2048
LOOPBACK = ("127.0.0.1", "localhost")


def free_ports(count: int) -> list[int]:
    """Different ports that the system calls free; held together so that none is given twice."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def hold_web_port(remembered: Path, *, show: Callable[[str], None] = print) -> socket.socket:
    """A listening socket on ``PALESTRA_PORT`` if that is set, else on the port of the last time, else on the first
    free one from 8700.

    Held from the choice on, so nobody takes the port between the choice and the web's start, or while the
    web is restarted: a request that comes meanwhile waits.
    """
    refuse_public_address()
    asked = os.environ.get("PALESTRA_PORT")
    if asked:
        return _exactly(asked)
    wanted = _remembered(remembered)
    ports = (wanted, *range(DEFAULT_PORT, DEFAULT_PORT + 200))
    held = next((held for port in ports if (held := _listening(port)) is not None), None)
    if held is None:
        raise Unfit(f"no free port from {DEFAULT_PORT} to {DEFAULT_PORT + 199}; choose one with PALESTRA_PORT")
    port = held.getsockname()[1]
    if port != wanted:
        show(f"port {wanted} is taken; using {port}")
    remembered.write_text(str(port))
    return held


def _remembered(file: Path) -> int:
    """A power cut may leave the file empty."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.isdigit() else DEFAULT_PORT


def _exactly(asked: str) -> socket.socket:
    if not asked.isdigit() or not 1024 <= int(asked) <= 65535:
        raise Unfit(f"PALESTRA_PORT={asked} is not a port; use a number from 1024 to 65535")
    held = _listening(int(asked))
    if held is None:
        raise Unfit(f"port {asked} (PALESTRA_PORT) is taken; choose another one or leave PALESTRA_PORT out")
    return held


def _listening(port: int) -> socket.socket | None:
    """None if somebody has the port.  Two that bind in the same moment are told apart by who listens first."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((LOOPBACK[0], port))
        holder.listen(BACKLOG)
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return holder


def refuse_public_address() -> None:
    host = os.environ.get("PALESTRA_HOST", LOOPBACK[0])
    if host not in LOOPBACK:
        raise Unfit(f"PALESTRA_HOST={host}: ./dev serves this machine only; docker-compose.yml is the public shape")
