"""How many sandboxes this machine holds without being brought down: asked before they are made, and while."""

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.cgroups.hierarchies import group_folder
from sandboxes.cgroups.memory import CGROUP_V1, CGROUP_V2

MEMORY_BYTES = 12 * 2**20
"""Reckoned for a sandbox.  About 6 MiB are seen in its processes; what the kernel keeps for it comes on top."""
PROCESSES = 6
DESCRIPTORS = 8
KEPT_FREE_BYTES = 2**30
"""Or a tenth of the machine's memory, if that is more."""
KEPT_FREE = 512
"""Processes, and descriptors of this process."""
UNBOUNDED = 2**63
PROC = Path("/proc")


@dataclass(frozen=True)
class Room:
    sandboxes: int
    bound: str | None
    """What allows no more, if it is fewer than were wanted."""


def room(wanted: int, free: Mapping[str, int]) -> Room:
    """``free``: what is to spare of ``memory`` (bytes), ``processes`` and ``descriptors``."""
    each = {"memory": MEMORY_BYTES, "processes": PROCESSES, "descriptors": DESCRIPTORS}
    held = {name: max(0, free[name]) // need for name, need in each.items()}
    tightest = min(held, key=lambda name: held[name])
    if held[tightest] >= wanted:
        return Room(wanted, None)
    return Room(held[tightest], f"{tightest}: {held[tightest]} sandboxes of {wanted} fit")


def spare() -> dict[str, int]:
    """What the machine has, less what others are to keep; the limits of our own cgroups and of this user included."""
    groups = _own_groups()
    tasks = int((PROC / "loadavg").read_text().split()[3].split("/")[1])
    of_processes = [int((PROC / f"sys/kernel/{name}").read_text()) - tasks for name in ("pid_max", "threads-max")]
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY:  # the kernel does not count root's
        of_processes.append(most - tasks)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "memory": min(available_bytes(), *(_memory_left(group) for group in groups)) - kept_free_bytes(),
        "processes": min(*of_processes, *(_processes_left(group) for group in groups)) - KEPT_FREE,
        "descriptors": descriptors - len(os.listdir("/proc/self/fd")) - KEPT_FREE,
    }


def raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def available_bytes() -> int:
    return _meminfo("MemAvailable")


def kept_free_bytes() -> int:
    return max(KEPT_FREE_BYTES, _meminfo("MemTotal") // 10)


def _meminfo(name: str) -> int:
    lines = (PROC / "meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _own_groups() -> list[Path]:
    """Every cgroup that this process is in, and all above it, as far as they can be seen."""
    mounts = (PROC / "self/mountinfo").read_text()
    found: list[Path] = []
    for line in (PROC / "self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        if (folder := group_folder(mounts, names, group)) is not None:
            found += _and_above(folder)
    return found


def _and_above(folder: Path) -> Iterator[Path]:
    while (folder / "cgroup.procs").exists():
        yield folder
        folder = folder.parent


def _memory_left(group: Path) -> int:
    """Files that the kernel can drop count as free."""
    for version in (CGROUP_V2, CGROUP_V1):
        cgroup = replace(version, folder=group)
        if (most := cgroup.limit_bytes) is not None:
            return most - (cgroup.used_bytes or 0)
    return UNBOUNDED


def _processes_left(group: Path) -> int:
    most = _number(group / "pids.max")
    return UNBOUNDED if most is None else most - (_number(group / "pids.current") or 0)


def _number(file: Path) -> int | None:
    """None where the controller is not, or does not bound."""
    try:
        output = file.read_text().strip()
    except FileNotFoundError:
        return None
    return None if output == "max" else int(output)
