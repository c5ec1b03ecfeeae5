"""Where this process may make cgroups, and what they can do there.  Looked at once.

    v1: a tree per controller, below the group that we are in      <mount>/<our group>/palestra/<owner>/<sandbox>
    v2: one tree; groups with processes have no controllers to give, so below ours, or beside it in a parent that
        was given to us (systemd: Delegate=yes with DelegateSubgroup=)

Both at once (hybrid) is common, with all that we need on v1.  Then v2 is left alone: to join a group there can
take ten milliseconds, because it waits for every other process that forks.
"""

import logging
import os
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)
TOP = "palestra"
LIMITS = frozenset({"memory", "pids"})
CONTROLLERS = LIMITS | {"cpu"}
FREEZER = "freezer"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One tree in which groups of ours can be made."""

    folder: Path
    """``.../palestra``."""
    version: int
    controllers: frozenset[str]
    """The controllers of ``CONTROLLERS`` and ``FREEZER``."""


@dataclass(frozen=True, slots=True)
class Found:
    hierarchies: tuple[Hierarchy, ...] = ()
    obstacles: tuple[str, ...] = field(default=(), compare=False)
    """What could not be had, and why."""

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset().union(*(tree.controllers for tree in self.hierarchies))

    @property
    def limits(self) -> bool:
        """Return whether memory and processes of a sandbox can be bounded as a whole."""
        return self.controllers >= LIMITS


@cache
def found() -> Found:
    """Return what this process has."""
    seen = look(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    if not seen.limits:
        why = "; ".join(seen.obstacles) or "no cgroup with memory and pids is mounted"
        log.info("sandboxes are bounded process by process, and not as a whole: %s", why)
    return seen


def all_over() -> tuple[Hierarchy, ...]:
    """``palestra`` in any group of the trees that this process uses: owners may each have had a group of their own.

    Walks whole trees, a few milliseconds for hundreds of groups: for whoever clears up, not for whoever makes
    sandboxes.
    """
    return tuple(
        replace(tree, folder=Path(folder) / TOP)
        for tree in found().hierarchies
        for folder, below, _ in os.walk(next(parent for parent in tree.folder.parents if parent.is_mount()))
        if TOP in below
    )


def look(mounts: str, memberships: str) -> Found:
    """``mounts`` and ``memberships`` as in ``/proc/self/{mountinfo,cgroup}``.  Makes ``palestra`` where it can."""
    trees: list[Hierarchy] = []
    obstacles = []
    for line in sorted(memberships.splitlines(), key=lambda line: "::" in line):  # v2 last
        _, names, group = line.split(":", 2)
        controllers = frozenset(names.split(",")) & (CONTROLLERS | {FREEZER})
        folder = group_folder(mounts, names, group)
        if folder is None or not (controllers if names else _lacking(trees)):
            continue
        try:
            trees.append(_unified(folder) if not names else _made(Hierarchy(folder / TOP, 1, controllers)))
        except OSError as error:
            obstacles.append(f"{names or 'unified'}: {folder}: {error.strerror}")
    return Found(tuple(trees), tuple(obstacles))


def _lacking(trees: list[Hierarchy]) -> bool:
    return not Found(tuple(trees)).controllers >= LIMITS | {FREEZER}


def group_folder(mounts: str, names: str, group: str) -> Path | None:
    """Return where the group that we are in is mounted, if it is."""
    wanted = set(names.split(",")) if names else set()
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        right = kind == "cgroup" and wanted <= set(options.split(",")) if names else kind == "cgroup2"
        if right and (group == root or group.startswith(root.rstrip("/") + "/")):
            return Path(point) / group.removeprefix(root).lstrip("/")
    return None


def _unified(own: Path) -> Hierarchy:
    """Below our own group or its parent, whichever has the controllers to give; else without them."""
    for parent in (own, own.parent):
        given = _given(parent)
        if given >= LIMITS:
            tree = _made(Hierarchy(parent / TOP, 2, given | {FREEZER}))
            hand_down(tree.folder, given)
            return tree
    tree = _made(Hierarchy(own / TOP, 2, frozenset({FREEZER})))
    if not (tree.folder / "cgroup.freeze").exists():
        raise OSError(0, "this kernel cannot freeze groups (Linux 5.2 or later)")
    return tree


def _given(parent: Path) -> frozenset[str]:
    try:
        there = frozenset((parent / "cgroup.controllers").read_text().split()) & CONTROLLERS
        hand_down(parent, there)
    except OSError:
        return frozenset()  # not ours to give, or there are processes in it
    return there


def hand_down(group: Path, controllers: frozenset[str]) -> None:
    """Let groups below have these controllers (v2).  Raises ``OSError``."""
    wanted = controllers & CONTROLLERS
    if wanted:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))


def _made(tree: Hierarchy) -> Hierarchy:
    tree.folder.mkdir(exist_ok=True)
    if not os.access(tree.folder, os.W_OK):
        raise PermissionError(13, "Permission denied")
    return tree
