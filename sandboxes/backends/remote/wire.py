"""What client and service say to each other: JSON of these models, files as they are.  docs/sandbox-service.md."""

import binascii
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from sandboxes.bounds import LONGEST_S
from sandboxes.egress.refusal import refused
from sandboxes.interface import ExecResult, Inspection, Outcome
from sandboxes.spec import SandboxSpec
from sandboxes.tree import MOST_BYTES, MOST_ENTRIES, Tree, TreeEntry, TreeLimits

SandboxState = Literal["queued", "starting", "open", "frozen", "lost", "closed"]
"""``lost`` and ``closed`` are final; ``reason`` says why."""
LIVING: frozenset[SandboxState] = frozenset({"queued", "starting", "open", "frozen"})
IDLE_S = 600.0
QUEUE_S = 60.0
MOST_WAIT_S = 30.0
"""How long one request may wait for a change."""
MOST_RECORDS = 1000
"""One response holds no more of them."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/@-]{0,99}$")]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_S, description="Seconds to wait for a change.")]


def _decoded(given: Any) -> Any:
    """Bytes that are given stay as they are: only text is base64."""
    if not isinstance(given, str):
        return given
    try:
        return binascii.a2b_base64(given, strict_mode=True)
    except ValueError as error:
        remedy = "encode it with the standard alphabet and padding, without line breaks"
        problem = f"it is not base64: {error}"
        raise PydanticCustomError("base64", "{problem}", {"problem": problem, "remedy": remedy}) from error


Base64 = Annotated[
    bytes,
    BeforeValidator(_decoded),
    PlainSerializer(lambda raw: binascii.b2a_base64(raw, newline=False).decode(), when_used="json"),
    WithJsonSchema({"type": "string", "format": "base64", "contentEncoding": "base64"}),
]


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class OnBehalf(Wire):
    """Whose sandbox an admin asks a host for.  The host keeps it, so that an admin that starts anew finds it there."""

    id: str = Field(pattern=r"^sbx-[0-9a-f]{16}$")
    """The sandbox has this id at the host too."""
    owner: Name
    token: str = Field(max_length=100)
    """The id of the admin's token that it was asked for with."""
    key: str | None = Field(default=None, max_length=200)
    """The idempotency key that it was asked for with, and the fingerprint of what was asked."""
    fingerprint: str = Field(max_length=64)


class CreateSandbox(Wire):
    spec: SandboxSpec = SandboxSpec()
    user: Name | None = None
    """For whom: waiting users of one owner take turns.  Default: the token's name."""
    idle_s: float = Field(default=IDLE_S, gt=0, le=86400)
    """The sandbox is closed when nobody has asked anything of it for so long."""
    queue_s: float = Field(default=QUEUE_S, ge=0, le=3600)
    """How long to wait for room on the host."""
    wait_s: Wait = MOST_WAIT_S
    """How long this request may wait for the sandbox, before it answers 202 with the place in the queue."""
    stream: bool = False
    """Whether egress records are handed on as they come, over the whole life of the sandbox, ``reset`` included."""
    on_behalf: OnBehalf | None = None
    """For whom an admin of several hosts asks; from anybody else it is refused."""

    @model_validator(mode="after")
    def _is_made_here(self) -> Self:
        if self.spec.place != "here":
            raise refused("spec.place", self.spec.place, "this is the service", "leave it out")
        return self


class SandboxView(Wire):
    id: str
    """It names the sandbox at the service, for its whole life."""
    name: str | None = None
    """The name of its present user: ``attempt.sandbox`` of the records.  None until it is open."""
    owner: str
    user: str
    state: SandboxState
    position: int | None = None
    """1 is the next to be let in; None unless ``queued``."""
    reason: str | None = None
    """Why it is frozen, lost or closed."""
    spec: SandboxSpec
    idle_s: float
    created_at: float
    """Unix time in seconds."""
    unused_s: float
    """Since the last request for it, in seconds."""


class SandboxViews(Wire):
    sandboxes: list[SandboxView]


class Inspected(Wire):
    """``sandboxes.interface.Inspection``, and what the service knows itself."""

    sandbox: SandboxView
    execs: int
    """Programs and cells that were run."""
    inside: Inspection


class Exec(Wire):
    argv: list[str] = Field(min_length=1, max_length=10_000)
    stdin: Base64 = b""
    env: dict[str, str] = Field(default={}, max_length=1000)
    timeout_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    alone: bool = False
    """Every other process of the sandbox is dead before it starts, the interpreter and snapshots included."""
    call: str | None = Field(default=None, max_length=64)
    """A name by which this call can be cancelled while it runs."""


class Code(Wire):
    code: str
    timeout_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    call: str | None = Field(default=None, max_length=64)


class Result(Wire):
    """``sandboxes.interface.ExecResult``."""

    outcome: Outcome
    stdout: str
    stderr: str
    exit_code: int | None
    seconds: float
    truncated: bool = False
    exception: str | None = None

    @classmethod
    def of(cls, result: ExecResult) -> Self:
        return cls(
            outcome=result.outcome, stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code,
            seconds=result.seconds, truncated=result.truncated, exception=result.exception,
        )  # fmt: skip

    def as_result(self) -> ExecResult:
        return ExecResult(
            self.outcome, self.stdout, self.stderr, self.exit_code, self.seconds, self.truncated, self.exception
        )


class ReadTree(Wire):
    paths: list[str] = Field(min_length=1, max_length=MOST_ENTRIES)
    """Below /work, absolute or relative to it; of a folder all that is in it."""
    entries: int = Field(default=TreeLimits().entries, ge=1, le=MOST_ENTRIES)
    size_bytes: int = Field(default=TreeLimits().size_bytes, ge=1, le=MOST_BYTES)
    partial: bool = False
    """What is not copied, or goes beyond the limits, is left out and not refused."""
    alone: bool = False
    """Every process of the sandbox is dead before anything is read."""


class FileView(Wire):
    path: str
    """It is relative to /work."""
    content: Base64 | None
    """It is None of a folder."""
    executable: bool = False


class TreeView(Wire):
    """``sandboxes.tree.Tree``: regular files and folders, and nothing else."""

    entries: list[FileView] = Field(max_length=MOST_ENTRIES)

    @classmethod
    def of(cls, tree: Tree) -> Self:
        return cls(
            entries=[FileView(path=entry.path, content=entry.content, executable=entry.executable)
                     for entry in tree.entries]
        )  # fmt: skip

    def as_tree(self) -> Tree:
        """Raises ``ValueError`` for a path that leads elsewhere, and for too much."""
        return Tree(tuple(TreeEntry(file.path, file.content, file.executable) for file in self.entries))


class SnapshotView(Wire):
    id: str


class LabelText(Wire):
    text: str | None = Field(default=None, max_length=10_000)


class Acknowledge(Wire):
    through: int = Field(ge=0)


class Freeze(Wire):
    reason: str = Field(min_length=1, max_length=1000)


class Health(Wire):
    status: Literal["ok", "draining"]
