"""What a sandbox's processes did since the last report: alike actions are one with a count, and floods are sums.

The sum of ``count`` is the number of actions, always.  Each kind has an allowance of its own, so that a flood of
one hides no other; within one kind what is beyond the allowance is told by program, operation and folder, and
beyond that by kind and operation.
"""

import posixpath
import time
from collections.abc import Hashable

from sandboxes.observation.reading import Action

AT_ONCE, PER_S = 1000.0, 200.0
"""The most observations of one kind, told each for itself."""
ALIKE = 512
"""Kinds of sums of each of the two finer sorts that are held."""
SOCKET_KINDS = 64
OTHER_SOCKET = (-1, -1, -1)


class Allowance:
    """A token bucket."""

    def __init__(self) -> None:
        self._left, self._at = AT_ONCE, time.monotonic()

    def spend(self) -> bool:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * PER_S, AT_ONCE)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Sums:
    def __init__(self) -> None:
        self._actions: dict[Hashable, Action] = {}
        self._sockets: dict[tuple[int, int, int], int] = {}
        self._allowances: dict[Hashable, Allowance] = {}
        self._finest = self._coarser = self._sequence = 0

    def __bool__(self) -> bool:
        return bool(self._actions or self._sockets)

    def add(self, action: Action) -> None:
        key = _finest(action)
        if key not in self._actions:
            kind = (action["kind"], action.get("operation"))
            allowance = self._allowances.setdefault(kind, Allowance())
            if self._finest < ALIKE and allowance.spend():
                self._finest += 1
            else:
                key = self._sum_key(action)
        if key in self._actions:
            self._actions[key]["count"] += 1
            return
        self._sequence += 1
        self._actions[key] = action | {"count": 1, "sequence": self._sequence}

    def add_socket(self, call: tuple[int, int, int]) -> None:
        if call not in self._sockets and len(self._sockets) >= SOCKET_KINDS:
            call = OTHER_SOCKET
        self._sockets[call] = self._sockets.get(call, 0) + 1

    def taken(self) -> tuple[list[Action], list[tuple[tuple[int, int, int], int]]]:
        """Everything, in the order in which it began; the next sum is a new one."""
        actions, sockets = list(self._actions.values()), list(self._sockets.items())
        self._actions, self._sockets = {}, {}
        self._finest = self._coarser = 0
        return actions, sockets

    def _sum_key(self, action: Action) -> Hashable:
        operation = action.get("operation")
        folder = posixpath.dirname(action.get("path", ""))
        key = ("sum", action["kind"], operation, action["program"], folder, action.get("call"))
        if key not in self._actions:
            if self._coarser >= ALIKE:
                return ("all", action["kind"], operation)
            self._coarser += 1
        return key


def _finest(action: Action) -> Hashable:
    """All but who exactly and when."""
    passing = ("at", "pid", "parent", "inside")
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in action.items()
        if name not in passing
    )
