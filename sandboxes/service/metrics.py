"""What the service is doing, in numbers: as JSON, and as Prometheus reads it."""

from collections.abc import Mapping
from typing import get_args

from sandboxes.backends.remote.wire import LIVING, State, Wire
from sandboxes.service.boxes import Boxes


class Stats(Wire):
    boxes: dict[State, int]
    """Living ones by their state; lost and closed ones since the start."""
    queue: int
    capacity_boxes: int
    capacity_memory_mib: int
    used_memory_mib: int
    """What the boxes that were let in may fill."""
    execs: int
    """Programs and cells since the start."""
    frozen: int
    """Boxes ever frozen."""
    denied: int
    """Attempts to reach the network that were denied and read, since the start."""
    refused: int
    """Requests over a quota, since the start."""


def stats_of(boxes: Boxes) -> Stats:
    known = boxes.all()
    by_state = dict.fromkeys(get_args(State), 0) | boxes.ended
    for box in known:
        if box.state in LIVING:
            by_state[box.state] += 1
    return Stats(
        boxes=by_state,
        queue=boxes.gate.waiting,
        capacity_boxes=boxes.gate.capacity.boxes,
        capacity_memory_mib=boxes.gate.capacity.memory_mib,
        used_memory_mib=boxes.gate.memory_mib,
        execs=boxes.execs + sum(box.execs for box in known),
        frozen=boxes.froze,
        denied=boxes.denied + sum(box.attempts_denied for box in known),
        refused=boxes.usage.refused,
    )


def prometheus_text(stats: Stats) -> str:
    lines: list[str] = []

    def add(name: str, kind: str, about: str, values: Mapping[str, float]) -> None:
        full = f"palestra_sandbox_{name}"
        lines.extend((f"# HELP {full} {about}", f"# TYPE {full} {kind}"))
        lines.extend(f"{full}{labels} {value}" for labels, value in values.items())

    living = {f'{{state="{state}"}}': stats.boxes[state] for state in get_args(State) if state in LIVING}
    ended = {f'{{state="{state}"}}': stats.boxes[state] for state in get_args(State) if state not in LIVING}
    add("boxes", "gauge", "Living boxes by state.", living)
    add("boxes_ended_total", "counter", "Boxes that ended, by how.", ended)
    add("queue", "gauge", "Boxes that wait for room.", {"": stats.queue})
    add("capacity_boxes", "gauge", "How many boxes this host takes.", {"": stats.capacity_boxes})
    add("capacity_memory_mib", "gauge", "Memory for boxes.", {"": stats.capacity_memory_mib})
    add("used_memory_mib", "gauge", "What the boxes may fill.", {"": stats.used_memory_mib})
    add("execs_total", "counter", "Programs and cells.", {"": stats.execs})
    add("frozen_total", "counter", "Boxes ever frozen.", {"": stats.frozen})
    add("denied_attempts_total", "counter", "Attempts to reach the network that were denied.", {"": stats.denied})
    add("refused_total", "counter", "Requests over a quota.", {"": stats.refused})
    return "\n".join(lines) + "\n"
