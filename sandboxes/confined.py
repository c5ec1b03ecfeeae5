"""A program of somebody else's that runs for long and speaks over a socket, behind the walls of a sandbox.

It has the namespaces, the filter of system calls and the cgroup of a sandbox of ``backends.namespaces``, no network, no
variable of ours, and beside the system's folders those that it is given, read-only.  There is no agent in it: what it
sends is its own word, and whoever reads that bounds it.
"""

import secrets
import socket
from dataclasses import dataclass

from sandboxes.backends.namespaces.arguments import SANDBOX_PYTHON, Program
from sandboxes.backends.namespaces.bubblewrap import Bubblewrap
from sandboxes.backends.namespaces.limits import OPEN_FILES
from sandboxes.backends.namespaces.probe import unavailable
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

__all__ = ["SANDBOX_PYTHON", "Confined", "Program", "process_limits"]


@dataclass(frozen=True)
class Confined:
    """A program that runs, until ``end``."""

    _bubblewrap: Bubblewrap

    @classmethod
    async def start(
        cls, program: Program, spec: SandboxSpec, connection: socket.socket, *, passing: tuple[int, ...] = ()
    ) -> "Confined":
        """The program inherits ``connection`` and ``passing`` under their numbers; they stay the caller's to close.

        Raises ``SandboxUnavailable``; ``OSError`` if no more files can be opened.
        """
        name = f"confined-{secrets.token_hex(8)}"
        return cls(await Bubblewrap.start(name, spec, connection, program=program, passing=passing))

    @property
    def limits_all(self) -> bool:
        """Whether a cgroup bounds its processes together; without one, each is bounded alone."""
        return self._bubblewrap.group is not None and self._bubblewrap.group.limits

    def processes(self) -> set[int]:
        """Those of it on this machine, bubblewrap's own included; empty where there is no cgroup."""
        return set() if self._bubblewrap.group is None else self._bubblewrap.group.processes()

    def complaint(self) -> str:
        """What was printed before the program took its output away, bounded, with a remedy where one is known."""
        text = self._bubblewrap.complaint().strip()
        return str(unavailable(text)) if text else ""

    async def end(self) -> None:
        """Every process of it is gone when this returns.  Call once; may raise ``TimeoutError``."""
        await completed(self._bubblewrap.gone())


def process_limits(spec: SandboxSpec) -> dict[str, int]:
    """What a program of this spec takes as its own limits first of all, by their names in ``resource``."""
    return {
        "RLIMIT_AS": spec.memory_mib * 2**20,
        "RLIMIT_NPROC": spec.processes,
        "RLIMIT_FSIZE": spec.disk_mib * 2**20,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 65536,
    }
