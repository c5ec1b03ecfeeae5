"""What the service is doing, in numbers: as JSON, and as Prometheus reads it."""

from collections.abc import Mapping
from typing import get_args

from sandboxes.backends.remote.wire import LIVING, SandboxState, Wire
from sandboxes.service.hosted_sandboxes import HostedSandboxes


class Stats(Wire):
    sandboxes: dict[SandboxState, int]
    """Living ones by their state; lost and closed ones since the start."""
    queue: int
    capacity_sandboxes: int
    capacity_memory_mib: int
    used_memory_mib: int
    """What the sandboxes that were let in may fill."""
    execs: int
    """Programs and cells since the start."""
    frozen: int
    """Sandboxes ever frozen."""
    denied: int
    """Attempts to reach the network that were denied and read, since the start."""
    refused: int
    """Requests over a quota, since the start."""


def stats_of(sandboxes: HostedSandboxes) -> Stats:
    known = sandboxes.all()
    by_state = dict.fromkeys(get_args(SandboxState), 0) | sandboxes.ended
    for sandbox in known:
        if sandbox.state in LIVING:
            by_state[sandbox.state] += 1
    return Stats(
        sandboxes=by_state,
        queue=sandboxes.gate.waiting,
        capacity_sandboxes=sandboxes.gate.capacity.sandboxes,
        capacity_memory_mib=sandboxes.gate.capacity.memory_mib,
        used_memory_mib=sandboxes.gate.memory_mib,
        execs=sandboxes.execs + sum(sandbox.execs for sandbox in known),
        frozen=sandboxes.froze,
        denied=sandboxes.denied + sum(sandbox.attempts_denied for sandbox in known),
        refused=sandboxes.usage.refused,
    )


def prometheus_text(stats: Stats) -> str:
    lines: list[str] = []

    def add(name: str, kind: str, about: str, values: Mapping[str, float]) -> None:
        full = f"palestra_sandbox_{name}"
        lines.extend((f"# HELP {full} {about}", f"# TYPE {full} {kind}"))
        lines.extend(f"{full}{labels} {value}" for labels, value in values.items())

    living = {f'{{state="{state}"}}': stats.sandboxes[state] for state in get_args(SandboxState) if state in LIVING}
    ended = {f'{{state="{state}"}}': stats.sandboxes[state] for state in get_args(SandboxState) if state not in LIVING}
    add("sandboxes", "gauge", "Living sandboxes by state.", living)
    add("sandboxes_ended_total", "counter", "Sandboxes that ended, by how.", ended)
    add("queue", "gauge", "Sandboxes that wait for room.", {"": stats.queue})
    add("capacity_sandboxes", "gauge", "How many sandboxes this host takes.", {"": stats.capacity_sandboxes})
    add("capacity_memory_mib", "gauge", "Memory for sandboxes.", {"": stats.capacity_memory_mib})
    add("used_memory_mib", "gauge", "What the sandboxes may fill.", {"": stats.used_memory_mib})
    add("execs_total", "counter", "Programs and cells.", {"": stats.execs})
    add("frozen_total", "counter", "Sandboxes ever frozen.", {"": stats.frozen})
    add("denied_attempts_total", "counter", "Attempts to reach the network that were denied.", {"": stats.denied})
    add("refused_total", "counter", "Requests over a quota.", {"": stats.refused})
    return "\n".join(lines) + "\n"
