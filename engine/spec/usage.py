"""Who takes how much of its machine, and how a generator's servers fare.

A *reading* counts from the beginning of a process or a server, so that whoever has two of them knows what lay between.
The ``usage`` of a heartbeat was computed of two readings (engine/loop/usage.py).
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from engine.spec.strict import Strict

Role = Literal["all", "loop", "learner", "rank", "generator", "server", "rollout", "judge"]
"""``all``: a run whose roles share one process."""
Health = Literal["starting", "up", "down", "given-up"]
"""A server is on its way for the first time; answering; gone, and started again soon; gone for good."""


ServerRole = Literal["policy", "judge"]
"""Whose model a server has."""

MOST = 400
"""Processes that one heartbeat names, and servers; with eight GPUs each they take half a MiB of their batch."""


class GpuUse(Strict):
    """One GPU, as its driver describes it: others who use it count too."""

    name: str = Field(max_length=200)
    """Its number on its machine, and its model."""
    busy: float = Field(ge=0, le=1)
    """The share of the last moment in which something was computed on it."""
    memory_bytes: int = Field(ge=0)
    total_bytes: int = Field(ge=0)


class ProcessUse(Strict):
    """What one process took since it was last measured."""

    name: str = Field(max_length=100)
    """As the run's log names it, e.g. ``rollout-0``."""
    role: Role
    pid: int
    cores: float = Field(ge=0)
    """Processors that it kept busy, on average; a server with those of its child processes."""
    memory_bytes: int = Field(ge=0)
    """Resident now."""
    gpus: list[GpuUse] = Field(default=[], max_length=64)
    """Those that it may use."""


class ServerUse(Strict):
    """One server of the generator, or of the run's judge."""

    role: ServerRole = "policy"
    number: int = Field(ge=0)
    """Among those of its role."""
    url: str = Field(max_length=400)
    health: Health
    reason: str = Field(default="", max_length=300)
    """Why it is not up any more."""
    running: int | None = Field(default=None, ge=0)
    """Requests that it samples for, by its own count; None where it does not answer."""
    queued: int | None = Field(default=None, ge=0)
    """Requests that wait in it, by its own count; None where it does not answer."""
    in_hand: int = Field(ge=0)
    """Requests that the engine awaits from it."""
    tokens_per_s: float = Field(ge=0)
    """Sampled and handed over since it was last measured."""
    cache_hit_rate: float = Field(ge=0, le=1)
    """The share of prompt tokens, since the attempt began, that it had read before."""
    restarts: int = Field(ge=0)
    version: int = Field(ge=0)
    """The version of the weights that it samples with; a judge's never change."""


class Usage(Strict):
    """What a run's processes took and how its servers fared, at one moment."""

    at: float
    """Unix time in seconds, by the engine's clock."""
    step: int
    """The last finished one."""
    processes: list[ProcessUse] = Field(max_length=MOST)
    servers: list[ServerUse] = Field(default=[], max_length=MOST)


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """``cpu_s`` is the processor time that a process has taken since ``began_at`` (Unix time in seconds)."""

    name: str
    role: Role
    pid: int
    began_at: float
    cpu_s: float
    memory_bytes: int
    gpus: tuple[GpuUse, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerReading:
    """What ``ServerUse`` has; tokens are counted since the attempt began, which was at ``began_at``."""

    number: int
    url: str
    health: Health
    reason: str
    running: int | None
    queued: int | None
    in_hand: int
    sampled_tokens: int
    prompt_tokens: int
    cached_tokens: int
    restarts: int
    version: int
    began_at: float
    pid: int | None
    """The id of the process that keeps it; None where it is given by URL."""
    role: ServerRole = "policy"


@dataclass(frozen=True, slots=True)
class UsageReading:
    """All members of a run that answered, at one moment."""

    at: float
    """Unix time in seconds."""
    processes: tuple[ProcessReading, ...]
    servers: tuple[ServerReading, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return sum(process.memory_bytes for process in self.processes)

    @property
    def awaits_servers(self) -> bool:
        """A server is on its way for the first time, or of one role no one is up and one will come back: turns or
        verdicts wait for it."""
        by_role = defaultdict[ServerRole, set[Health]](set)
        for server in self.servers:
            by_role[server.role].add(server.health)
        return any("starting" in healths or ("down" in healths and "up" not in healths) for healths in by_role.values())
