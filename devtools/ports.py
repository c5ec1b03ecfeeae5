"""Which ports are free, and which one the web gets."""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from devtools.errors import Unfit

DEFAULT_PORT = 8700
LOOPBACK = ("127.0.0.1", "localhost")


def free_ports(count: int) -> list[int]:
    """Different ports that the system calls free; held together so that none is given twice."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_web_port(remembered: Path, *, say: Callable[[str], None] = print) -> int:
    """``PALESTRA_PORT`` if it is set, else the port of the last time, else the first free one from 8700."""
    refuse_public_address()
    asked = os.environ.get("PALESTRA_PORT")
    if asked:
        return _exactly(asked)
    wanted = int(remembered.read_text()) if remembered.exists() else DEFAULT_PORT
    port = next((port for port in (wanted, *range(DEFAULT_PORT, DEFAULT_PORT + 200)) if is_free(port)), None)
    if port is None:
        raise Unfit(f"no free port from {DEFAULT_PORT} to {DEFAULT_PORT + 199}; choose one with PALESTRA_PORT")
    if port != wanted:
        say(f"port {wanted} is taken; using {port}")
    remembered.write_text(str(port))
    return port


def _exactly(asked: str) -> int:
    if not asked.isdigit() or not 1024 <= int(asked) <= 65535:
        raise Unfit(f"PALESTRA_PORT={asked} is not a port; use a number from 1024 to 65535")
    if not is_free(int(asked)):
        raise Unfit(f"port {asked} (PALESTRA_PORT) is taken; choose another one or leave PALESTRA_PORT out")
    return int(asked)


def refuse_public_address() -> None:
    host = os.environ.get("PALESTRA_HOST", LOOPBACK[0])
    if host not in LOOPBACK:
        raise Unfit(f"PALESTRA_HOST={host}: ./dev serves this machine only; docker-compose.yml is the public shape")
