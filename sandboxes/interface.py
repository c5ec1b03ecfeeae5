"""The facade: what the rest of Palestra may ask of a sandbox.

A sandbox runs code that nobody trusts.  Whatever that code does is a *result* (``ExecResult``);
whatever goes wrong with the sandbox itself is ``SandboxLost``, which is never shown to a policy and
never scored.
"""

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from sandboxes.egress.record import EgressRecord
from sandboxes.tree import Tree, TreeLimits

Outcome = Literal["ok", "error", "timeout", "memory", "output", "killed"]
"""``error``: non-zero exit or an uncaught exception; ``output``: stopped because it wrote far too much."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What code did.  ``stdout`` and ``stderr`` are decoded as UTF-8 with replacement and cut at the spec's limit."""

    outcome: Outcome
    stdout: str
    stderr: str
    exit_code: int | None
    seconds: float
    truncated: bool = False
    exception: str | None = None
    """For Python: the class name of the uncaught exception, e.g. ``ZeroDivisionError``."""


class SandboxLost(Exception):
    """The sandbox died or stopped answering: its episode is discarded and counted, never scored."""


class SandboxFrozen(Exception):
    """The sandbox was frozen on purpose and only ``close`` works on it; the message says why.  Never scored, never
    tried again."""


class SandboxUnavailable(Exception):
    """Sandboxes cannot be made on this machine; the message says what is missing and how to get it."""


class PoolClosed(Exception):
    """The pool was closed before a sandbox came free."""


class SnapshotUnavailable(Exception):
    """The sandbox was made without snapshots, or its state cannot be kept; the message says why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment of one sandbox, to which it can be set back any number of times until it is dropped."""

    id: str


@dataclass(frozen=True, slots=True)
class InspectedProcess:
    """``command`` is what the process says of itself: hostile, here printable and bounded."""

    pid: int
    """On the machine that the sandbox runs on."""
    command: str
    state: str
    """The kernel's letter: R runs, S and D sleep, T is stopped, Z is dead.  A cgroup freezes without changing it."""
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class InspectedFile:
    path: str
    """Under /work or /tmp; hostile, here printable and bounded."""
    kind: Literal["file", "folder", "link", "other"]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a sandbox, looked at from outside."""

    frozen: str | None
    limits: Literal["cgroup", "prlimit"]
    """What bounds it: all of its processes together, or each of them alone."""
    processes: list[InspectedProcess]
    files: list[InspectedFile]
    complete: bool
    """False: there are more processes or files than are listed."""


INSPECTED_PROCESSES = 256
INSPECTED_FILES = 1000
"""No inspection lists more than this."""


class Sandbox(Protocol):
    """One sandbox.  Every method raises ``SandboxLost`` when the sandbox is gone; none raises for what the code did."""

    @property
    def name(self) -> str:
        """It names the present user's records (``attempt.sandbox``) and is random; ``reset`` gives another one."""
        ...

    @property
    def alive(self) -> bool:
        """Return whether the sandbox is not known to be gone.  Asks nobody, so a call may still find it lost."""
        ...

    @property
    def frozen(self) -> str | None:
        """The reason of ``freeze``, from its call on and after ``close`` too; None otherwise."""
        ...

    async def exec(
        self,
        argv: list[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        alone: bool = False,
    ) -> ExecResult:
        """Run a program.  Its exit code is the kernel's word to the agent.

        ``alone``: every other process of the sandbox is dead before it starts (the interpreter, programs under way,
        what they left behind, the copies of snapshots, which are dropped), and calls that would start one wait for its
        end.  It waits for a cell that runs.  The next cell finds a fresh interpreter, and its ``stderr`` says so.
        """
        ...

    async def run_python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run ``code`` in the sandbox's interpreter, whose variables live on until ``reset``.

        As in a notebook, the value of a last expression statement is printed.  A time-out or a
        memory error ends the interpreter; the next call finds a fresh one, and ``stderr`` says so.
        Calls wait for each other.  A cancelled call ends the interpreter like a time-out.
        """
        ...

    async def set_prelude(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run ``code`` now, and silently again first thing in every fresh interpreter until ``reset``.

        What a time-out must not take from the user (a function that the task needs) belongs here.
        """
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file, and the folders above it; a relative path starts at /work.

        Raises ``OSError`` with the path's own fault: no space, no permission, not a regular file.
        """
        ...

    async def read_file(self, path: str, *, limit_bytes: int = 2**20) -> bytes:
        """A file's content.  Raises ``OSError``: not there, not regular, ``EFBIG`` if over the limit."""
        ...

    async def read_tree(self, paths: Iterable[str], limits: TreeLimits = ..., *, alone: bool = False) -> Tree:
        """Files and folders of /work, with what is in them.  ``alone``: every process is dead before, as for ``exec``.

        Raises ``TreeRefused`` for what is not copied (missing, links, devices, too much), and ``ValueError`` for a path
        that leads out of /work.
        """
        ...

    async def write_tree(self, tree: Tree) -> None:
        """Write files and folders below /work; what is there is replaced, and no link is followed.

        Raises ``TreeRefused`` where a folder's place is taken, and ``OSError``: no space.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Keep this moment: files of /work and /tmp, and the interpreter with its variables and prelude.

        Raises SnapshotUnavailable where that cannot be done, and ValueError beyond the kept limit.
        """
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """As it was then: files and variables changed since are as before, processes started since are gone.

        Raises ValueError for a snapshot of another sandbox or one that was dropped.
        """
        ...

    async def drop(self, snapshot: Snapshot) -> None:
        """Forget it.  ``reset`` and ``close`` drop all; dropping twice is fine."""
        ...

    def label(self, text: str | None) -> None:
        """Name what runs from now on, e.g. the tool call: attempts to reach the network carry it in their records."""
        ...

    async def settled(self) -> None:
        """Return when ``on_action`` has got everything that the sandbox's processes did until now, and ``on_statement``
        what they tried to reach."""
        ...

    async def listen(self, port: int) -> socket.socket:
        """A TCP socket outside that listens on the sandbox's own loopback: programs in it reach a server of ours there.

        It is the caller's to close, and reachable from this sandbox alone.  Raises SandboxUnavailable where that
        cannot be done: a port that is taken, a sandbox of a service, not enough rights.
        """
        ...

    async def egress(self, after: int = 0, *, limit: int = 1000) -> list[EgressRecord]:
        """Return what was tried and recorded so far, beyond record ``after``, oldest first; nothing if unwatched.

        Repeatable until acknowledged.  Works until ``reset``, and after ``close`` too.  Not with ``on_record``,
        which gets all of them by itself.  Raises ValueError for what was acknowledged, never ``SandboxLost``.
        """
        ...

    def acknowledge_egress(self, through: int) -> None:
        """Forget the records up to this one: they are stored elsewhere.  Of too many that are kept, sums are made."""
        ...

    async def freeze(self, reason: str) -> None:
        """Stop every process of the sandbox where it is, and cut its connections; nothing of it runs again.

        Calls that are under way and later ones raise ``SandboxFrozen`` with ``reason``.  Its processes and files stay
        for inspection until ``close``.  Freezing twice is fine; a sandbox that is gone stays gone.
        """
        ...

    async def inspect(self) -> Inspection:
        """Look at processes and files from outside; nothing in the sandbox takes part.  Works while it is frozen.

        Raises ``SandboxLost`` when the sandbox is gone, and ``SandboxFrozen`` when it is closed after a freeze.
        """
        ...

    async def reset(self) -> None:
        """No process, variable or file is left, and no open connection, quota or record; nor priority, limit or mark.

        What kernel objects have counted stays, and ports wait to be closed (docs/sandboxes.md, "Reuse").
        """
        ...

    async def close(self) -> None:
        """End every process of the sandbox.  Closing twice is fine."""
        ...
