"""Where the Docker daemon of this machine listens.  Without Docker's SDK, whose import takes longer than ten
sandboxes."""

import os

from sandboxes.interface import SandboxUnavailable

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"


def address() -> str:
    """``DOCKER_HOST``, or where Docker listens by default."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS


def socket_path() -> str:
    """Raises ``SandboxUnavailable`` for a daemon that is not reached by a unix socket: it may be another machine's."""
    scheme, _, path = address().partition("://")
    if scheme != "unix":
        raise SandboxUnavailable(
            f"DOCKER_HOST = {address()!r}: sandboxes of Docker are made on this machine only;"
            " set it to unix:///path/to/docker.sock"
        )
    return path
