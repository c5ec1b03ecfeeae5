"""Snapshots as the agent holds them: files, what the next fresh interpreter must be told, and a frozen copy."""

import _socket
import errno
import os

from sandboxes.backends.namespaces.inside import copies, processes, trees
from sandboxes.backends.namespaces.inside.jobs import Interpreter

KEPT_DISKS = 2
"""How many times ``disk_mib`` all snapshots of a sandbox may hold."""


class KeptSnapshot:
    """One snapshot.  Without a frozen copy there was no variable to keep: a fresh interpreter is as good."""

    def __init__(self, files: dict[str, trees.Node], prelude: bytes, loss_note: str) -> None:
        self.files = files
        self.prelude = prelude
        self.loss_note = loss_note
        self.control: _socket.socket | None = None
        self.pid = 0
        """It is that of the frozen copy; 0 if there is none, or none any more."""

    def freeze(self, interpreter: Interpreter, others: set[int]) -> None:
        """``others``, and the interpreter itself, must not pose as the copy: its end is not theirs."""
        pid, control = copies.freeze(interpreter.cells)
        if pid in others or pid == interpreter.pid:
            control.close()
            raise OSError(errno.EPROTO, "not a copy")
        self.pid, self.control = pid, control

    def thaw(self, descriptors: list[int]) -> int:
        if self.control is None or self.pid == 0:
            raise OSError(errno.ESRCH, "the frozen copy is gone")
        return copies.thaw(self.control, descriptors)

    def forget(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.pid:
            processes.end_child(self.pid)
            self.pid = 0


class Snapshots:
    """All of a sandbox, by the names that the host gave them."""

    def __init__(self, disk_bytes: int) -> None:
        self.disk_bytes = disk_bytes
        self.kept: dict[str, KeptSnapshot] = {}
        self.latest: dict[str, trees.Node] = {}

    def take(
        self, name: str, prelude: bytes, loss_note: str, interpreter: Interpreter | None, programs: set[int]
    ) -> None:
        """Keep this moment, with the idle ``interpreter`` if there is one; or ``OSError``, and nothing is kept."""
        files = trees.taken(self.disk_bytes, self.latest)
        snapshot = KeptSnapshot(files, prelude, loss_note)
        if self.weight_bytes(files) > KEPT_DISKS * self.disk_bytes:
            raise OSError(errno.EFBIG, "too large to be kept")
        if interpreter is not None:
            snapshot.freeze(interpreter, programs | self.frozen())
        self.kept[name] = snapshot
        self.latest = files

    def weight_bytes(self, files: dict[str, trees.Node]) -> int:
        counted: set[int] = set()
        every = [files, *(snapshot.files for snapshot in self.kept.values())]
        return sum(trees.weight_bytes(list(roots.values()), counted) for roots in every)

    def frozen(self) -> set[int]:
        return {snapshot.pid for snapshot in self.kept.values() if snapshot.pid}

    def buried(self, pid: int) -> None:
        for snapshot in self.kept.values():
            if snapshot.pid == pid:
                snapshot.pid = 0

    def drop(self, name: str) -> None:
        snapshot = self.kept.pop(name, None)
        if snapshot is not None:
            snapshot.forget()
        if not self.kept:
            self.latest = {}

    def drop_all(self) -> None:
        for name in list(self.kept):
            self.drop(name)

    def leave_to_agent(self) -> None:
        """Close, in a fork of the agent, what is the agent's: contents and sockets are nothing to a guest, and would
        count as its memory."""
        for snapshot in self.kept.values():
            if snapshot.control is not None:
                os.close(snapshot.control.detach())
        self.kept.clear()
        self.latest = {}
