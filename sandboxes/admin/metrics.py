"""What an admin and its hosts are doing, in numbers: as JSON, and as Prometheus reads it."""

from collections import Counter
from typing import Literal, get_args

from sandboxes.admin.host import Host
from sandboxes.admin.routed_sandboxes import RoutedSandboxes
from sandboxes.backends.remote.wire import SandboxState, Wire
from sandboxes.service.metrics import Stats, prometheus_text


class HostStats(Wire):
    """One host, as the admin's users may see it: neither its address nor its token."""

    name: str
    state: Literal["up", "draining", "missing", "down"]
    """``missing``: it has just not answered, and gets no new sandbox until it does."""
    fault: str | None
    """Why it is missing or down."""
    sandboxes: int
    """The sandboxes of this admin's."""
    used_memory_mib: int
    capacity_sandboxes: int
    capacity_memory_mib: int
    """What it has for this admin; 0 as long as nobody knows."""


class AdminStats(Stats):
    """The sums are over all hosts that are up."""

    hosts: list[HostStats]


def stats_of(sandboxes: RoutedSandboxes) -> AdminStats:
    living = Counter(routed.state for routed in sandboxes.living())
    views = [host.view for host in sandboxes.fleet.hosts.values() if host.view is not None]
    capacity = sandboxes.gate.capacity
    return AdminStats(
        sandboxes={state: living[state] + sandboxes.ended[state] for state in get_args(SandboxState)},
        queue=sandboxes.gate.waiting,
        capacity_sandboxes=capacity.sandboxes,
        capacity_memory_mib=capacity.memory_mib,
        used_memory_mib=sandboxes.gate.memory_mib,
        execs=sum(view.stats.execs for view in views),
        frozen=sum(view.stats.frozen for view in views),
        denied=sum(view.stats.denied for view in views),
        refused=sandboxes.usage.refused,
        hosts=[_host_stats(host) for _, host in sorted(sandboxes.fleet.hosts.items())],
    )


def admin_text(stats: AdminStats) -> str:
    """Return what Prometheus reads: the numbers of a service, and those of each host with its name as label."""
    lines = [prometheus_text(stats).rstrip("\n")]
    for name, about in HOST_GAUGES.items():
        full = f"palestra_sandbox_host_{name}"
        lines += [f"# HELP {full} {about}", f"# TYPE {full} gauge"]
        lines += [f'{full}{{host="{host.name}"}} {_gauge(host, name)}' for host in stats.hosts]
    return "\n".join(lines) + "\n"


HOST_GAUGES = {
    "up": "1 for a host that answers.",
    "draining": "1 for a host that gets no new sandboxes.",
    "sandboxes": "Sandboxes of this admin at the host.",
    "used_memory_mib": "What they may fill.",
    "capacity_memory_mib": "Memory that the host has for them.",
}


def _gauge(host: HostStats, name: str) -> int:
    match name:
        case "up":
            return int(host.state in ("up", "draining"))
        case "draining":
            return int(host.state == "draining")
        case _:
            return int(getattr(host, name))


def _host_stats(host: Host) -> HostStats:
    capacity = host.room.capacity
    return HostStats(
        name=host.name,
        state=_state(host),
        fault=host.fault,
        sandboxes=host.room.sandboxes,
        used_memory_mib=host.room.memory_mib,
        capacity_sandboxes=0 if capacity is None else capacity.sandboxes,
        capacity_memory_mib=0 if capacity is None else capacity.memory_mib,
    )


def _state(host: Host) -> Literal["up", "draining", "missing", "down"]:
    if not host.is_up:
        return "down"
    if host.fault is not None:
        return "missing"
    return "draining" if host.is_draining else "up"
