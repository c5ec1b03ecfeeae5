"""Containers whose maker was killed before it could remove them, found by their labels."""

from sandboxes import owner
from sandboxes.backends.docker import daemon
from sandboxes.backends.docker.container import OWNER, remove_if_there


def orphans() -> list[str]:
    """Names of containers of dead processes.  Raises ``SandboxUnavailable`` if no daemon answers.

    A container of an earlier boot is one if it does not run: nothing starts it again.
    """
    client = daemon.client()
    with daemon.refusals():
        found = client.containers(all=True, filters={"label": OWNER})
    return [
        container["Names"][0].removeprefix("/")
        for container in found
        if _is_orphan(container["Labels"][OWNER], stands=container["State"] not in ("running", "paused"))
    ]


def _is_orphan(mark: str, *, stands: bool) -> bool:
    return owner.is_dead(mark) or (stands and _boot(mark) != _boot(owner.mark()))


def _boot(mark: str) -> str:
    return mark.split(":")[2] if mark.count(":") >= 2 else ""


def remove_orphans() -> list[str]:
    """Remove them, running, frozen or ended, and return their names.  Raises ``SandboxUnavailable``."""
    client = daemon.client()
    with daemon.refusals():
        return [name for name in orphans() if remove_if_there(client, name)]  # somebody else may sweep as well
