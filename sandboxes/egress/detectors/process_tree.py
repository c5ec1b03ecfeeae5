"""Which programs of a sandbox were started by which, and who writes into whose input; bounded.

Programs are remembered by process, the latest of each; of too many the longest unseen is forgotten.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sandboxes.egress.detectors.actions import started_command
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.pipelines import Pipelines
from sandboxes.egress.detectors.shell import Command

REMEMBERED = 2048
MOST_PAIRS = 256
"""The most pairs of one pipeline."""
GENERATIONS = 64


@dataclass(frozen=True, slots=True)
class Program:
    action: ObservedAction
    command: Command


class ProcessTree:
    """One per sandbox, fed before the detectors that ask it."""

    def __init__(self) -> None:
        self._by_pid: OrderedDict[int, Program] = OrderedDict()
        self._by_number: OrderedDict[int, ObservedAction] = OrderedDict()
        """By the sandbox's own numbers, as programs in it say them."""
        self._pipelines = Pipelines()

    def add(self, action: ObservedAction) -> None:
        if action.kind != "program":
            return
        command = started_command(action)
        if command is None:
            return
        self._by_pid[action.pid] = Program(action, command)
        self._by_pid.move_to_end(action.pid)
        self._by_number[action.inside] = action
        self._by_number.move_to_end(action.inside)
        self._pipelines.add(action)
        for kept in (self._by_pid, self._by_number):
            if len(kept) > REMEMBERED:
                kept.popitem(last=False)

    def program(self, pid: int) -> Program | None:
        return self._by_pid.get(pid)

    def is_of_a_call(self, number: int) -> bool:
        """Return whether the process of this number in the sandbox runs a program that a tool call started."""
        found = self._by_number.get(number)
        return number > 1 and found is not None and found.label is not None

    def ancestors(self, action: ObservedAction) -> Iterator[Program]:
        """From the parent upwards; a program that replaced another one in the same process counts once."""
        pid = action.parent
        for _ in range(GENERATIONS):
            found = self._by_pid.get(pid)
            if found is None:
                return
            yield found
            pid = found.action.parent

    def pipes(self, action: ObservedAction) -> Iterator[tuple[Command, Command]]:
        """(writer, reader) of each pipeline in which this program has a part, whichever of the two started first."""
        own = self._by_pid.get(action.pid)
        if own is None or own.action is not action:
            return
        above = [command for other in self._pipelines.above(action) if (command := started_command(other))]
        below = [command for other in self._pipelines.below(action) if (command := started_command(other))]
        pairs = itertools.product((*above, own.command), (*below, own.command))
        for writer, reader in itertools.islice(pairs, MOST_PAIRS):
            if writer is not reader:
                yield writer, replace(reader, piped=True)
