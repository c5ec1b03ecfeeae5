"""Which programs of a sandbox write into whose input, told by the pipe and not by who was started beside whom; bounded.

A shell gives a here-document by a pipe too: two programs with a pipe each have nothing to do with one another.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from sandboxes.egress.detectors.observed_action import ObservedAction

REMEMBERED = 2048
"""Pipes."""
AT_AN_END = 16
"""Programs at one end of a pipe, the latest; a loop starts many at the same."""
STAGES = 8
MOST_FOUND = 64
"""Programs above or below one program."""


class Pipelines:
    """One per sandbox, fed with started programs."""

    def __init__(self) -> None:
        self._writers: OrderedDict[int, list[ObservedAction]] = OrderedDict()
        self._readers: OrderedDict[int, list[ObservedAction]] = OrderedDict()

    def add(self, action: ObservedAction) -> None:
        for pipe in outputs(action):
            _put(self._writers, pipe, action)
        for pipe in inputs(action):
            _put(self._readers, pipe, action)

    def above(self, action: ObservedAction) -> list[ObservedAction]:
        """Return the programs whose output comes to it, through others or directly."""
        return _followed(action, inputs, self._writers)

    def below(self, action: ObservedAction) -> list[ObservedAction]:
        """Return the programs that get its output, through others or directly."""
        return _followed(action, outputs, self._readers)


def inputs(action: ObservedAction) -> set[int]:
    return {action.pipes[0]} - {0}


def outputs(action: ObservedAction) -> set[int]:
    return {*action.pipes[1:]} - {0}


def _put(ends: OrderedDict[int, list[ObservedAction]], pipe: int, action: ObservedAction) -> None:
    at_end = ends.setdefault(pipe, [])
    at_end.append(action)
    del at_end[:-AT_AN_END]
    ends.move_to_end(pipe)
    if len(ends) > REMEMBERED:
        ends.popitem(last=False)


def _followed(
    action: ObservedAction,
    pipes_of: Callable[[ObservedAction], set[int]],
    ends: OrderedDict[int, list[ObservedAction]],
) -> list[ObservedAction]:
    def next_of(reached: ObservedAction) -> Iterator[ObservedAction]:
        for pipe in pipes_of(reached):
            yield from ends.get(pipe, ())

    found: dict[int, ObservedAction] = {}
    stage = [action]
    for _ in range(STAGES):
        stage = [other for reached in stage for other in next_of(reached) if id(other) not in found]
        found.update((id(other), other) for other in stage[: MOST_FOUND - len(found)])
        stage = stage[:MOST_FOUND]
    return [other for other in found.values() if other is not action]
