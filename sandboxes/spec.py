"""What a sandbox may use.  Published: the web validates it, the engine passes it on."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.refusal import refused


class SandboxSpec(BaseModel):
    """Limits of one box.  Every limit is enforced from outside the code that runs in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    backend: Literal["namespaces"] = "namespaces"
    """How boxes are made: Linux namespaces through bubblewrap."""
    memory_mib: int = Field(default=128, ge=32, le=65536)
    """Address space of each process in the box, in MiB."""
    disk_mib: int = Field(default=16, ge=1, le=65536)
    """Size of each of the two writable file systems, /work and /tmp, in MiB."""
    processes: int = Field(default=16, ge=1, le=4096)
    """How many processes may live in the box at once."""
    timeout_s: float = Field(default=2.0, gt=0, le=3600)
    """Wall-clock limit of one execution, in seconds."""
    output_bytes: int = Field(default=16384, ge=256, le=64 * 2**20)
    """Output beyond this is cut, and the result says so."""
    network: Literal["none", "watched"] = "none"
    """``none``: the box has no way to any network, its host's loopback included.  ``watched``: no other way than a
    gateway, which records every attempt and forwards what ``egress`` allows."""
    egress: EgressPolicy | None = None
    """What a watched box may reach; nothing by default."""
    snapshots: bool = True
    """Whether the box can be set back to an earlier moment.  False saves the memory that this needs."""

    @model_validator(mode="after")
    def _policy_is_enforced(self) -> Self:
        if self.egress is not None and self.network == "none":
            raise refused("egress", self.egress.name, "a box without network has no egress", 'set network = "watched"')
        return self
