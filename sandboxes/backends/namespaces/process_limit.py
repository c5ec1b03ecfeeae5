"""How long an observed sandbox has as many processes as it may, or half as many: a fork bomb that starts no program.

No counter of the kernel tells how often RLIMIT_NPROC refused a process, and a cgroup's limit that is met first would
refuse the agent its own.  So while calls run somebody looks, every ``LOOK_S``, whether the limit is met.  A shell that
was refused a process waits longer and longer before it asks again, so its bomb stays below the limit after a moment.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxes.cgroups.group import Group
from sandboxes.spec import SandboxSpec

LOOK_S = 0.05
OWN = 2
"""A sandbox that has been made has these: bubblewrap and the agent."""


class ProcessLimit:
    """One per sandbox; belongs to one event loop."""

    def __init__(self, folder: Path, spec: SandboxSpec, on_met: Callable[[str, int], None]) -> None:
        """``on_met`` is told at how many looks of a call the limit was met (``fork``) or half of it was (``crowd``)."""
        self._current, self._most, self._on_met = folder / "pids.current", spec.processes + OWN, on_met
        self._calls = 0
        self._met: Counter[str] = Counter()
        self._next: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, group: Group | None, spec: SandboxSpec, on_met: Callable[[str, int], None]) -> "ProcessLimit | None":
        """Return None without a cgroup that counts processes."""
        folders = [] if group is None else [folder for tree, folder in group.folders if "pids" in tree.controllers]
        return cls(folders[0], spec, on_met) if folders else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the limit while a call runs."""
        self._calls += 1
        self._wait()
        try:
            yield
        finally:
            self._calls -= 1
            self._report()

    def _wait(self) -> None:
        if self._next is None and self._calls:
            self._next = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._next = None
        try:
            current = int(self._current.read_text())
        except OSError:
            return  # the sandbox has ended
        self._met["fork"] += current >= self._most
        self._met["crowd"] += 2 * current >= self._most
        self._wait()

    def _report(self) -> None:
        if not self._calls and self._next is not None:
            self._next.cancel()
            self._next = None
        met, self._met = self._met, Counter()
        for how, looks in (+met).items():
            self._on_met(how, looks)
