"""The Docker daemon of this machine: one client per process, calls off the event loop, errors in our terms."""

import asyncio
import functools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from sandboxes.backends.docker.address import address, socket_path
from sandboxes.interface import SandboxUnavailable
from sandboxes.teardown import completed

ANSWER_S = 60.0
HEAD_BYTES = 16384
FAULTS = (DockerException, requests.RequestException)
REQUIRED = {"MemoryLimit": "memory", "PidsLimit": "pids", "CpuCfsQuota": "cpu"}
"""What ``docker info`` must say that it can limit, and the cgroup controller that it needs for it."""

P = ParamSpec("P")
T = TypeVar("T")


def client() -> docker.APIClient:
    """Raises ``SandboxUnavailable`` if no daemon answers there."""
    socket_path()
    return _client(address(), os.getpid())


@functools.cache
def _client(at: str, _pid: int) -> docker.APIClient:
    """One for each process: connections do not survive a fork."""
    try:
        return docker.APIClient(base_url=at, version="auto", timeout=ANSWER_S)
    except FAULTS as error:
        raise SandboxUnavailable(
            f"no Docker daemon answers at {at} ({error}): start one, name its socket in DOCKER_HOST, or set"
            ' backend = "namespaces"'
        ) from None


async def asked(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run a call of the client in a thread, to its end even if the caller is cancelled.

    Raises ``SandboxUnavailable`` with the daemon's word; ``docker.errors.NotFound`` for what is not there.
    """
    with refusals():
        return await completed(asyncio.to_thread(call, *arguments, **options))


@contextmanager
def refusals() -> Iterator[None]:
    """What the daemon refuses is ``SandboxUnavailable``; ``NotFound`` is left to whoever knows what it means."""
    try:
        yield
    except NotFound:
        raise
    except FAULTS as error:
        raise refusal(error) from None


def refusal(error: Exception) -> SandboxUnavailable:
    reason = str(error.explanation) if isinstance(error, APIError) and error.explanation else str(error)
    return SandboxUnavailable(f"the Docker daemon at {address()} refused: {reason}")


def capabilities(known: docker.APIClient) -> bool:
    """Return whether containers' user ids are the machine's own.  Raises ``SandboxUnavailable`` for want of a limit."""
    info: dict[str, Any] = known.info()
    for name, controller in REQUIRED.items():
        if not info.get(name):
            raise SandboxUnavailable(
                f"Docker cannot limit {name} here, so a sandbox would have none: give the daemon the cgroup controller"
                f' {controller!r}, or set backend = "namespaces"'
            )
    options = [option.removeprefix("name=").split(",")[0] for option in info.get("SecurityOptions") or ()]
    if "seccomp" not in options:
        raise SandboxUnavailable("this Docker has no seccomp, and a sandbox is not made without: use one that has it")
    return not {"rootless", "userns"} & set(options)


def attached(container: str) -> socket.socket:
    """The container's standard streams as one connection: what is written goes to its stdin.

    Spoken by hand: the SDK hands out a buffered reader that shares the connection with its pool.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(ANSWER_S)
        connection.connect(socket_path())
        path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)  # what follows the head is the container's
            head += byte
            if not byte or len(head) > HEAD_BYTES:
                raise SandboxUnavailable("the Docker daemon hung up on an attach")
        if not head.startswith((b"HTTP/1.1 101 ", b"HTTP/1.1 200 ")):
            raise SandboxUnavailable(f"the Docker daemon refused an attach: {head.splitlines()[0].decode()}")
        connection.setblocking(False)
    except OSError as error:
        connection.close()
        raise SandboxUnavailable(f"no Docker daemon answers at {address()}: {error}") from None
    except BaseException:
        connection.close()
        raise
    return connection
