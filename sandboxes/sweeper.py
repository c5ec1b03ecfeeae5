"""What owners of sandboxes left when they were killed: found by their marks, ended and removed.

Sandboxes end with their owner by themselves (``--die-with-parent``).  Three things can stay: a sandbox that a cgroup
holds frozen, for a kill waits until it is thawed; the folders of cgroups; and containers, which belong to
Docker's daemon.  Nothing is touched whose owner lives or is not known for certain (``owner``), and nothing
that has no mark of ours.  What a guest says of itself can end no process but those of its own sandbox.
"""

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from sandboxes import owner
from sandboxes.backends.docker.address import socket_path
from sandboxes.cgroups.group import Group, left_behind
from sandboxes.cgroups.hierarchies import Hierarchy, all_over
from sandboxes.interface import SandboxUnavailable

log = logging.getLogger(__name__)
DEATH_S = 10.0
LOOK_S = 0.01
MARK_BYTES = 4096
"""So much is read of an environment: ours begins with the mark."""


@dataclass
class Swept:
    """What was found and, unless only looked at, removed."""

    processes: list[int] = field(default_factory=list)
    """Process ids on this host."""
    networks: list[int] = field(default_factory=list)
    """Inodes of network namespaces that lived by these processes alone."""
    cgroups: list[str] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """What could not be removed, with the reason."""

    @property
    def anything(self) -> bool:
        return any(self.as_dict().values())

    def as_dict(self) -> dict[str, list[int] | list[str]]:
        return asdict(self)

    def counts(self) -> dict[str, int]:
        return {f"swept_{kind}": len(found) for kind, found in self.as_dict().items()}

    def lines(self) -> list[str]:
        return [f"{kind}: {name}" for kind, found in self.as_dict().items() for name in found]


def sweep(*, remove: bool = True) -> Swept:
    """Find what dead owners left, and remove it.  What resists is told in ``failed``, and does not stop the rest."""
    swept = Swept()
    trees = all_over()
    groups = {mark: sandboxes for mark, sandboxes in left_behind(trees).items() if owner.is_dead(mark)}
    _end_processes(swept, groups, remove)
    _remove_groups(swept, groups, trees, remove)
    _remove_containers(swept, remove)
    return swept


# -- processes -------------------------------------------------------------------------------------


def _end_processes(swept: Swept, groups: dict[str, list[Group]], remove: bool) -> None:
    members = {pid for sandboxes in groups.values() for group in sandboxes for pid in group.processes()}
    orphans = {pid: started for pid in _families(members | _marked()) if (started := owner.started_ticks(pid))}
    swept.processes = sorted(orphans)
    swept.networks = sorted(_networks_of(set(orphans)))
    if not remove:
        return
    for pid, started in orphans.items():
        _kill(pid, started)
    for group in (group for sandboxes in groups.values() for group in sandboxes):
        group.kill()  # thaws as well: a frozen process does not die
    give_up_s = time.monotonic() + DEATH_S
    while left := [pid for pid, started in orphans.items() if owner.started_ticks(pid) == started]:
        if time.monotonic() > give_up_s:
            swept.failed += [f"process {pid} was killed, and does not end within {DEATH_S:g} s" for pid in left]
            return
        time.sleep(LOOK_S)


def _marked() -> set[int]:
    """Processes whose environment names a dead owner."""
    prefix = f"{owner.VARIABLE}=".encode()
    marked = set()
    for pid in _pids():
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # gone, or somebody else's
            for entry in file.read(MARK_BYTES).split(b"\0"):
                if entry.startswith(prefix) and owner.is_dead(entry.removeprefix(prefix).decode(errors="replace")):
                    marked.add(pid)
    return marked


def _families(heads: set[int]) -> set[int]:
    """These and all their descendants."""
    parents = {pid: parent for pid in _pids() if (parent := _parent(pid)) is not None}
    inside = set(heads)
    while more := {pid for pid, parent in parents.items() if parent in inside and pid not in inside}:
        inside |= more
    return inside


def _kill(pid: int, started: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        pidfd = os.pidfd_open(pid)
        try:
            if owner.started_ticks(pid) == started:  # the number may be somebody else's by now
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _networks_of(orphans: set[int]) -> set[int]:
    """Network namespaces in which there is nobody else."""
    networks: dict[int, bool] = {}
    for pid in _pids():
        with suppress(OSError):
            inode = os.stat(f"/proc/{pid}/ns/net").st_ino
            networks[inode] = networks.get(inode, True) and pid in orphans
    return {inode for inode, orphaned in networks.items() if orphaned}


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


# -- cgroups and containers ------------------------------------------------------------------------


def _remove_groups(swept: Swept, groups: dict[str, list[Group]], trees: tuple[Hierarchy, ...], remove: bool) -> None:
    for mark, sandboxes in groups.items():
        for group in sandboxes:
            swept.cgroups += [str(folder) for _, folder in group.folders]
            if remove and not _gone(group):
                swept.failed.append(f"cgroup {group.folders[0][1]} has processes that do not end")
        if remove:
            for tree in trees:  # an owner that was killed before its first sandbox
                with suppress(OSError):
                    (tree.folder / mark).rmdir()
                    tree.folder.rmdir()


def _gone(group: Group) -> bool:
    give_up_s = time.monotonic() + DEATH_S
    while not group.try_to_remove():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(LOOK_S)
    return True


def _remove_containers(swept: Swept, remove: bool) -> None:
    try:
        if not os.path.exists(socket_path()):
            return
        # Imported here: Docker's SDK is slow to import, and most machines have no use for it.
        from sandboxes.backends.docker.orphans import orphans, remove_orphans

        swept.containers = remove_orphans() if remove else orphans()
    except SandboxUnavailable as error:
        log.debug("no containers are looked for: %s", error)  # without a daemon there are none
