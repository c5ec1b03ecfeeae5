"""The cgroup of one sandbox: made before its first process, joined by that, removed after its last.

<tree>/palestra/<owner.mark()>/<sandbox>     in each tree; whoever finds it knows whose it is, and whether it lives
"""

import errno
import logging
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sandboxes import owner
from sandboxes.cgroups.hierarchies import FREEZER, Found, Hierarchy, found, hand_down

log = logging.getLogger(__name__)
FREEZE_S = 5.0
PAUSE_S = 0.0005
ATTEMPTS = 20
SHARES, WEIGHT, MOST_SHARES, MOST_WEIGHT = 1024, 100, 262144, 10000
"""The share of one ordinary process: cpu.shares (v1), cpu.weight (v2)."""
BUFFER_BYTES = 16 * 2**20
"""All TCP and UDP sockets of a sandbox's processes share it."""
JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 1; shift; done; shift; exec "$@"'


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all processes of a sandbox together may use."""

    memory_bytes: int
    """It includes its files, which are memory, and what the kernel keeps for it."""
    processes: int
    """Threads count too."""


@dataclass(frozen=True, slots=True)
class Group:
    """The folders of one sandbox, one in each tree."""

    folders: tuple[tuple[Hierarchy, Path], ...]

    @classmethod
    def make(cls, sandbox: str, bounds: Bounds, trees: Found | None = None) -> "Group | None":
        """Make a group; None where this process may make no cgroup at all.  Raises ``OSError``."""
        trees = found() if trees is None else trees
        if not trees.hierarchies:
            return None
        _clear_of_the_dead()
        mark = owner.mark()
        made: list[tuple[Hierarchy, Path]] = []
        try:
            for tree in trees.hierarchies:
                made.append((tree, _make(tree, tree.folder / mark / sandbox)))
                _bound(*made[-1], bounds)
        except OSError:
            cls(tuple(made)).try_to_remove()
            raise
        return cls(tuple(made))

    @property
    def limits(self) -> bool:
        return Found(tuple(tree for tree, _ in self.folders)).limits

    @property
    def freezes(self) -> bool:
        return any(FREEZER in tree.controllers for tree, _ in self.folders)

    @property
    def holds_the_dead(self) -> bool:
        """Return whether a frozen process lives on when it is killed, until ``kill`` thaws it."""
        return self._freezer()[1] == 1

    def joining(self) -> list[str]:
        """Return what to put before a command line, so that it is run as a member.  Fails where it cannot join."""
        # One thread that moves itself need not wait for those of all other processes (v1: ``tasks``).
        doors = [str(folder / ("tasks" if tree.version == 1 else "cgroup.procs")) for tree, folder in self.folders]
        return ["/bin/sh", "-c", JOIN, "sh", *doors, "--"]

    def freeze(self) -> None:
        """Return when no process of the sandbox runs any more.  Raises ``OSError``, ``TimeoutError``."""
        folder, version = self._freezer()
        give_up_s = time.monotonic() + FREEZE_S
        while not _frozen(folder, version):
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{folder} did not freeze within {FREEZE_S:g} s")
            time.sleep(PAUSE_S)

    def kill(self) -> None:
        """Every process, frozen ones included, before any of them runs again."""
        folder, version = self._freezer()
        with suppress(FileNotFoundError):  # it has no process any more
            if (folder / "cgroup.kill").exists():
                (folder / "cgroup.kill").write_text("1")
                return
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if version == 1 and (folder / "freezer.state").exists():
                (folder / "freezer.state").write_text("THAWED")  # a frozen process of v1 takes no signal

    def processes(self) -> set[int]:
        """Process ids of its members."""
        members: set[int] = set()
        for _, folder in self.folders:
            with suppress(FileNotFoundError):  # removed meanwhile
                members |= {int(pid) for pid in (folder / "cgroup.procs").read_text().split()}
        return members

    def count(self) -> int:
        """Return how many processes are its members.  Raises ``OSError``."""
        return len((self.folders[0][1] / "cgroup.procs").read_text().split())

    def try_to_remove(self) -> bool:
        """Return whether nothing of it is left.  False while a process of it is still ending."""
        left = [folder for _, folder in self.folders if not _removed(folder)]
        if not left:
            for tree, folder in self.folders:
                if _removed(folder.parent):
                    _removed(tree.folder)
        return not left

    def _freezer(self) -> tuple[Path, int]:
        """The folder that freezes; without one, any."""
        tree, folder = max(self.folders, key=lambda one: FREEZER in one[0].controllers)
        return folder, tree.version


def left_behind(trees: Iterable[Hierarchy] | None = None) -> dict[str, list[Group]]:
    """Groups of sandboxes by the marks of their owners, living and dead; where this process would make its own."""
    seen: dict[str, dict[str, list[tuple[Hierarchy, Path]]]] = {}
    for tree in found().hierarchies if trees is None else trees:
        for mark in _below(tree.folder):
            sandboxes = seen.setdefault(mark.name, {})
            for sandbox in _below(mark):
                sandboxes.setdefault(sandbox.name, []).append((tree, sandbox))
    return {mark: [Group(tuple(folders)) for folders in sandboxes.values()] for mark, sandboxes in seen.items()}


@cache
def _clear_of_the_dead() -> None:
    """Once per process: remove what killed owners left.  What still has processes is left to ``sweeper``."""
    for mark, sandboxes in left_behind().items():
        if owner.is_dead(mark):
            for sandbox in sandboxes:
                sandbox.try_to_remove()
            for tree in found().hierarchies:
                _removed(tree.folder / mark)


def _below(folder: Path) -> list[Path]:
    try:
        return [below for below in folder.iterdir() if below.is_dir()]
    except FileNotFoundError:
        return []


def _make(tree: Hierarchy, folder: Path) -> Path:
    for _ in range(ATTEMPTS):
        try:
            folder.mkdir()
        except FileNotFoundError:
            _make_owner(tree, folder.parent)  # gone with the last sandbox before this one
        else:
            return folder
    raise OSError(errno.ENOENT, "it disappears again and again", str(folder.parent))


def _make_owner(tree: Hierarchy, folder: Path) -> None:
    """Sandboxes together weigh as much as a busy ordinary process on each processor; among each other they are
    equal."""
    processors = os.cpu_count() or 1
    for group in (tree.folder, folder):
        try:
            group.mkdir()
        except FileExistsError:
            continue
        except FileNotFoundError:
            return  # somebody else's last sandbox has just taken ``palestra`` along: again
        if "cpu" in tree.controllers:
            _weigh(group, tree.version, processors)
        if tree.version == 2:
            hand_down(group, tree.controllers)


def _weigh(group: Path, version: int, processes: int) -> None:
    if version == 1:
        (group / "cpu.shares").write_text(str(min(SHARES * processes, MOST_SHARES)))
    else:
        (group / "cpu.weight").write_text(str(min(WEIGHT * processes, MOST_WEIGHT)))


def _bound(tree: Hierarchy, folder: Path, bounds: Bounds) -> None:
    if "memory" in tree.controllers:
        memory, swap = (
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
            if tree.version == 1
            else ("memory.max", "memory.swap.max")
        )
        (folder / memory).write_text(str(bounds.memory_bytes))
        if tree.version == 1:
            _bound_buffers(folder)
        if (folder / swap).exists():  # where the kernel accounts swap at all; v1 counts it with the memory
            (folder / swap).write_text(str(bounds.memory_bytes if tree.version == 1 else 0))
    if "pids" in tree.controllers:
        (folder / "pids.max").write_text(str(bounds.processes))
    if "cpu" in tree.controllers:
        _weigh(folder, tree.version, 1)


def _bound_buffers(folder: Path) -> None:
    """Bound the buffers of TCP and UDP: v1 counts them beside the memory, and only where they have a limit; v2 counts
    them as memory."""
    try:
        (folder / "memory.kmem.tcp.limit_in_bytes").write_text(str(BUFFER_BYTES))
    except OSError as error:
        warn_of_unbounded_sockets(f"memory.kmem.tcp.limit_in_bytes: {error.strerror}")


@cache
def warn_of_unbounded_sockets(why: str) -> None:
    """Warn once per reason."""
    log.warning("buffers of sandboxes' TCP and UDP sockets are not bounded on this machine: %s", why)


def _frozen(folder: Path, version: int) -> bool:
    """Say it again each time: v1 may have missed a process that was just being made."""
    if version == 1:
        (folder / "freezer.state").write_text("FROZEN")
        return (folder / "freezer.state").read_text().strip() == "FROZEN"
    (folder / "cgroup.freeze").write_text("1")
    return "frozen 1" in (folder / "cgroup.events").read_text().splitlines()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        return False
    return True
