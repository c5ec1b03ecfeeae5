"""A process that has imported the service and forks web processes, all at the same address.

It reserves a port and prints it, imports, and then forks for each line of its input, which names the log; it prints the
web process's id.  When its input ends it kills those that are left and ends.
"""

import os
import signal
import socket
import sys

import uvicorn

from devtools.process import reap, send_signal

HOST = "127.0.0.1"


def main() -> None:
    reserved = _bound(0)  # it never listens: an address without a web process refuses connections
    port = reserved.getsockname()[1]
    os.environ["PALESTRA_BASE_URL"] = f"http://{HOST}:{port}"
    print(port, flush=True)
    config = uvicorn.Config("webapp.asgi:application", timeout_graceful_shutdown=1)
    config.load()
    _read_pages()
    living = set[int]()
    for line in sys.stdin:
        living = {pid for pid in living if not reap(pid)}
        pid = os.fork()
        if pid == 0:
            reserved.close()
            _redirect_to(line.rstrip("\n"))
            uvicorn.Server(config).run([_bound(port)])
            return
        living.add(pid)
        print(pid, flush=True)
    for pid in living:
        send_signal(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _bound(port: int) -> socket.socket:
    """Web processes share the port with whoever reserved it."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound


def _read_pages() -> None:
    """Django reads views when the first request comes."""
    from django.urls import get_resolver

    assert get_resolver().reverse_dict is not None


def _redirect_to(log: str) -> None:
    for path, flags, descriptors in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, (1, 2)),
    ):
        opened = os.open(path, flags, 0o600)
        for descriptor in descriptors:
            os.dup2(opened, descriptor)
        os.close(opened)


if __name__ == "__main__":
    main()
