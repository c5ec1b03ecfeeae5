"""Which programs of a sandbox were started by which, and who writes into whose input; bounded.

Programs are remembered by process, the latest of each; of too many the longest unseen is forgotten.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sandboxes.egress.detectors.actions import started_command
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.shell import Command

REMEMBERED = 2048
PIPELINE_S = 10.0
"""Programs of one parent that start within this time, one with a pipe as output and one as input, are a pipeline."""
GENERATIONS = 64


@dataclass(frozen=True, slots=True)
class Program:
    action: ObservedAction
    command: Command


class ProcessTree:
    """One per sandbox, fed before the detectors that ask it."""

    def __init__(self) -> None:
        self._by_pid: OrderedDict[int, Program] = OrderedDict()
        self._by_parent: OrderedDict[int, list[int]] = OrderedDict()

    def add(self, action: ObservedAction) -> None:
        if action.kind != "program":
            return
        command = started_command(action)
        if command is None:
            return
        self._by_pid[action.pid] = Program(action, command)
        self._by_pid.move_to_end(action.pid)
        children = self._by_parent.setdefault(action.parent, [])
        if action.pid not in children:
            children.append(action.pid)
        self._by_parent.move_to_end(action.parent)
        del children[:-GENERATIONS]
        for kept in (self._by_pid, self._by_parent):
            if len(kept) > REMEMBERED:
                kept.popitem(last=False)

    def program(self, pid: int) -> Program | None:
        return self._by_pid.get(pid)

    def ancestors(self, action: ObservedAction) -> Iterator[Program]:
        """From the parent upwards; a program that replaced another one in the same process counts once."""
        pid = action.parent
        for _ in range(GENERATIONS):
            found = self._by_pid.get(pid)
            if found is None:
                return
            yield found
            pid = found.action.parent

    def siblings(self, action: ObservedAction) -> Iterator[Program]:
        """Programs that the same parent started within ``PIPELINE_S``."""
        for pid in self._by_parent.get(action.parent, ()):
            found = self._by_pid.get(pid)
            if found is not None and pid != action.pid and abs(action.at - found.action.at) <= PIPELINE_S:
                yield found

    def pipes(self, action: ObservedAction) -> Iterator[tuple[Command, Command]]:
        """(writer, reader) of each pipe in which this program may have a part, whichever of the two started first."""
        own = self._by_pid.get(action.pid)
        if own is None or own.action is not action or action.streams is None:
            return
        for other in self.siblings(action):
            if other.action.streams is None:
                continue
            if action.streams[0] == "pipe" and other.action.streams[1] == "pipe":
                yield other.command, replace(own.command, piped=True)
            if action.streams[1] == "pipe" and other.action.streams[0] == "pipe":
                yield own.command, replace(other.command, piped=True)
