"""What a run's processes take and how its servers fare, as its last heartbeat tells it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from engine.spec.usage import GpuUse, ProcessUse, ServerUse, Usage
from webapp.runs.models import Run

ROLES = {
    "all": ("All in one process", "Loop, learner, generator and rollouts, where a run has only one process."),
    "loop": ("Loop", "Decides what happens next, and writes the run's events."),
    "learner": ("Learner", "Assigns credit and updates the weights; rank 0 of the trainer."),
    "rank": ("Other trainer ranks", "Hold the rest of a divided trainer."),
    "generator": ("Generator", "Samples from the policy, or asks servers to."),
    "server": ("SGLang servers", "Those that the generator started, each with its child processes."),
    "judge": ("Judge", "Serves the language model that judges: its servers, and the actor that keeps them."),
    "rollout": ("Rollout workers", "Play episodes: environments and tool calls, without what runs in sandboxes."),
}
"""Role -> its name, and what its processes do; in the order in which the page shows them."""
SERVER_ROLES = {"policy": "Policy", "judge": "Judge"}
"""Role of a server -> the name of what it samples from."""
HEALTH = {
    "starting": ("Starting", "launching"),
    "up": ("Up", "succeeded"),
    "down": ("Down, will be restarted", "paused"),
    "given-up": ("Given up", "failed"),
}
"""Health -> its name, and the state whose colour it has."""


@dataclass(frozen=True)
class RoleUse:
    role: str
    processes: Sequence[ProcessUse]

    @property
    def name(self) -> str:
        return ROLES[self.role][0]

    @property
    def meaning(self) -> str:
        return ROLES[self.role][1]

    @property
    def cores(self) -> float:
        return sum(process.cores for process in self.processes)

    @property
    def memory_bytes(self) -> int:
        return sum(process.memory_bytes for process in self.processes)

    @property
    def gpus(self) -> list[GpuUse]:
        return [gpu for process in self.processes for gpu in process.gpus]

    @property
    def gpu_busy(self) -> float | None:
        return fmean(gpu.busy for gpu in self.gpus) if self.gpus else None

    @property
    def gpu_memory_bytes(self) -> int:
        return sum(gpu.memory_bytes for gpu in self.gpus)


@dataclass(frozen=True)
class ServerRow:
    server: ServerUse
    behind: bool
    """Another server has newer weights."""

    @property
    def health(self) -> str:
        return HEALTH[self.server.health][0]

    @property
    def state(self) -> str:
        return HEALTH[self.server.health][1]

    @property
    def role(self) -> str:
        return SERVER_ROLES[self.server.role]


@dataclass(frozen=True)
class UsageTables:
    at: datetime
    step: int
    roles: list[RoleUse]
    servers: list[ServerRow]

    @property
    def has_gpus(self) -> bool:
        return any(role.gpus for role in self.roles)


def newest_usage(run: Run) -> Usage | None:
    """None where nothing was measured yet in the run's last attempt."""
    found = (run.heartbeat or {}).get("usage")
    return None if found is None else Usage.model_validate(found)


def tables_of(usage: Usage) -> UsageTables:
    by_role = {role: [process for process in usage.processes if process.role == role] for role in ROLES}
    newest = max((server.version for server in usage.servers if server.role == "policy"), default=0)
    return UsageTables(
        datetime.fromtimestamp(usage.at, UTC),
        usage.step,
        [RoleUse(role, its) for role, its in by_role.items() if its],
        [ServerRow(server, server.role == "policy" and server.version < newest) for server in usage.servers],
    )


def reports_servers(spec: Mapping[str, Any]) -> bool:
    """Whether a run with this spec reports servers, of its policy or of its judge."""
    return spec["resources"].get("generator") == "sglang" or spec["resources"].get("judge") is not None
