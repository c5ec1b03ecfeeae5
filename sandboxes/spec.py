"""What a sandbox may use.  Published: the web validates it, the engine passes it on."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.refusal import refused
from sandboxes.images.reference import REMEDY as IMAGE_REMEDY
from sandboxes.images.reference import ImageRefused, parsed


class SandboxSpec(BaseModel):
    """Limits of one sandbox.  Every limit is enforced from outside the code that runs in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    backend: Literal["namespaces", "docker"] = "namespaces"
    """How sandboxes are made: Linux namespaces through bubblewrap, or containers of a Docker daemon."""
    image: str | None = None
    """What a container is made of: an image of the registry, as ``name``, ``name:tag`` or ``sha256:...``."""
    place: Literal["here", "service"] = "here"
    """``here``: on the machine of whoever uses the sandbox.  ``service``: at the sandbox service that the operator
    names in the environment (PALESTRA_SANDBOX_URL, PALESTRA_SANDBOX_TOKEN); a spec must not choose where a token is
    sent."""
    memory_mib: int = Field(default=128, ge=32, le=65536)
    """Address space of each process in the sandbox, in MiB.  Where cgroups can be made, also what all of them may use
    together, beside their files."""
    disk_mib: int = Field(default=16, ge=1, le=65536)
    """Size of each of the two writable file systems, /work and /tmp, in MiB."""
    processes: int = Field(default=16, ge=1, le=4096)
    """How many processes may live in the sandbox at once."""
    timeout_s: float = Field(default=2.0, gt=0, le=3600)
    """Wall-clock limit of one execution, in seconds."""
    output_bytes: int = Field(default=16384, ge=256, le=64 * 2**20)
    """Output beyond this is cut, and the result says so."""
    network: Literal["none", "watched"] = "none"
    """``none``: the sandbox has no way to any network, its host's loopback included.  ``watched``: no other way than a
    gateway, which records every attempt and forwards what ``egress`` allows."""
    egress: EgressPolicy | None = None
    """What a watched sandbox may reach; nothing by default."""
    reuse: Literal["never", "reset"] = "never"
    """Whether a pool gives a sandbox to another user.  ``never``: each user gets one that was made for it alone, with
    namespaces and file systems of its own, so that nothing of a former user can be read in it; the pool makes the next
    one ahead of time.  ``reset``: one sandbox serves one user after the other, and is reset between them.  That costs
    half of the processor time (of a watched one a tenth), and hides processes, variables, files and open connections
    of the former user, but not what its kernel objects have counted: ports that still wait to be closed, process, inode
    and packet numbers."""
    snapshots: bool = True
    """Whether the sandbox can be set back to an earlier moment.  False saves the memory that this needs."""
    terminal: bool = False
    """Whether it has terminals (/dev/ptmx) and the folders of a terminal task: /tests, /solution and /logs, which begin
    empty, and in namespaces /app, which is /work."""

    @model_validator(mode="after")
    def _image_is_pinned(self) -> Self:
        if self.backend != "docker" and self.image is not None:
            raise refused("image", self.image, "only sandboxes of Docker have an image", 'set backend = "docker"')
        if self.backend == "docker" and self.image is None:
            raise refused("image", None, "a sandbox of Docker needs an image", IMAGE_REMEDY)
        if self.image is not None:
            try:
                parsed(self.image)
            except ImageRefused as refusal:
                raise refused(refusal.field, refusal.value, refusal.problem, refusal.remedy) from None
        return self

    @model_validator(mode="after")
    def _policy_is_enforced(self) -> Self:
        if self.egress is not None and self.network == "none":
            raise refused(
                "egress", self.egress.name, "a sandbox without network has no egress", 'set network = "watched"'
            )
        return self
