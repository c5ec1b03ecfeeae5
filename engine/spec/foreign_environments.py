"""Environments whose code is somebody else's: by an import path, as a package, of another library, or at an address.

What the service takes of them stands in a catalog, or at an address that whoever runs it has allowed.
"""

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from engine.spec.impossible import impossible
from engine.spec.model_files import CatalogVersion
from engine.spec.security import Response
from engine.spec.strict import LARGEST_NUMBER, MOST_THINGS, Strict
from sandboxes.spec import SandboxSpec

ImportPath = Annotated[
    str, StringConstraints(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$", max_length=300)
]


class Imported(Strict):
    """An environment of your own, by its import path.  ``python -m engine train`` alone takes it: it runs your code."""

    command_line_only: ClassVar[bool] = True
    """The service refuses it: whoever may start a run there would run code of hers in the service's engine."""

    id: Literal["import"] = "import"
    path: ImportPath
    """``package.module:Name``, which gives an environment (``engine/environments/contract.py``) when it is called."""
    options: dict[str, Any] = {}
    """What it is called with."""
    max_turns: int = Field(default=8, ge=1, le=64)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=32, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool call or the answer."""
    sandbox: SandboxSpec | None = None
    """The form of the sandboxes that its sessions may take; none where it is left out."""
    response: Response = Response()

    @property
    def can_be_restored(self) -> bool:
        """Only the environment itself knows, which is asked before the run starts."""
        return True


class ProcessLimits(Strict):
    """What the process of an environment may take of its machine, and how long it may take to answer.

    It has no network, and reads the system's folders and its own package alone (docs/security.md).
    """

    memory_mib: int = Field(default=512, ge=64, le=65536)
    """Address space of each of its processes, in MiB; where cgroups can be made, also what all of them may use
    together."""
    disk_mib: int = Field(default=64, ge=1, le=65536)
    """Size of each of its two writable file systems, /work and /tmp, in MiB.  Both begin empty."""
    processes: int = Field(default=64, ge=1, le=4096)
    """Processes and threads at once."""
    start_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """How long it may take to import its modules and make the environment, in seconds."""
    call_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """How long one answer may take, in seconds.  A process that takes longer is ended, and all of its episodes with
    it."""

    @property
    def sandbox(self) -> SandboxSpec:
        return SandboxSpec(
            memory_mib=self.memory_mib, disk_mib=self.disk_mib, processes=self.processes, snapshots=False
        )


def _json_object(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise impossible("", text, f"no JSON: {error}", 'give a JSON object, e.g. {"digits": 4}') from None
    if not isinstance(value, dict):
        raise impossible("", text, "no JSON object", 'give a JSON object, e.g. {"digits": 4}')
    return text


JsonObject = Annotated[str, StringConstraints(max_length=2**16), AfterValidator(_json_object)]
"""A JSON object as text: a run's TOML has no values of every kind that one may hold."""


class _InProcess(Strict):
    """An environment whose code runs in a process of its own, with nothing of the engine's."""

    max_turns: int = Field(default=8, ge=1, le=512)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=32, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool call or the answer."""
    process: ProcessLimits = ProcessLimits()

    @property
    def sandbox(self) -> None:
        """Its sessions take no sandbox: the process is in one."""
        return None

    @property
    def response(self) -> Response:
        """The policy runs nothing that could alarm anybody."""
        return Response()


class _InPackage(_InProcess):
    """One whose code, or what it needs, comes as a package that is installed into a virtual environment of its own."""

    command_line_only: ClassVar[bool] = False

    catalog: CatalogVersion | None = None
    """Your team's published version of the package, as ``name@version``.  The service takes no other."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """The package's folder (``pyproject.toml`` and ``src/``), or its wheel, in place of ``catalog``."""
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """What the package at ``path`` must be (``python -m engine environment check`` prints it).  Another one is
    refused."""
    python: str | None = Field(default=None, min_length=1, max_length=4096)
    """The interpreter that runs it, 3.10 or later; by default the system's.  The service takes no other."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.catalog is None and not self._has_place():
            problem = "nothing says where its code is"
            raise impossible("catalog", None, problem, self._remedy())
        beside = next((name for name in ("path", "digest", "python") if getattr(self, name) is not None), None)
        if self.catalog is not None and beside is not None:
            problem = "environment.catalog names the package already, and the service runs it"
            raise impossible(beside, getattr(self, beside), problem, "leave one of the two out")
        return self

    def _has_place(self) -> bool:
        return self.path is not None

    def _remedy(self) -> str:
        return 'name a version of the catalog ("name@version"), or the folder or wheel in environment.path'


class Package(_InPackage):
    """An environment package of your own: a folder with a ``pyproject.toml``, or a wheel.

    It is installed into a virtual environment of its own and runs as a process of its own.
    """

    id: Literal["package"] = "package"
    entry: ImportPath | None = None
    """``package.module:Name``, which gives the environment when it is called.  By default the package's only entry
    point of the group ``palestra.environments``."""
    options: JsonObject = "{}"
    """What it is called with, as a JSON object."""

    @property
    def can_be_restored(self) -> bool:
        """Only the environment itself knows, which is asked before the run starts."""
        return True


class _OtherLibrary(_InPackage):
    """An environment of another library, which is installed beside a package, or stands in an interpreter's own
    environment: ``python`` alone names that."""

    success_at: float = Field(default=1.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """An episode whose total reward is at least this is a success.  Success and the component ``environment`` together
    are the total."""

    def _has_place(self) -> bool:
        return self.path is not None or self.python is not None

    def _remedy(self) -> str:
        return f"{super()._remedy()}, or an interpreter that has the library in environment.python"

    @property
    def can_be_restored(self) -> bool:
        """Other libraries keep no snapshots."""
        return False


class Gem(_OtherLibrary):
    """An environment of the library ``gem-llm``, in a process of its own.  A task is a seed."""

    id: Literal["gem"] = "gem"
    env_id: str = Field(min_length=1, max_length=300)
    """As the library registers it, e.g. ``game:GuessTheNumber-v0-easy``."""
    arguments: JsonObject = "{}"
    """What ``gem.make`` is given beside it, as a JSON object."""


class VerifiersTaskset(_OtherLibrary):
    """A taskset of the library ``verifiers`` (v1), in a process of its own: a prompt, an answer, its own scoring."""

    id: Literal["verifiers"] = "verifiers"
    taskset: ImportPath
    """``package.module:Class`` of that virtual environment."""
    config: JsonObject = "{}"
    """The fields of its configuration, as a JSON object."""
    heldout_share: float = Field(default=0.2, ge=0, le=1)
    """The share of its tasks, the last ones, that is held out."""
    most_tasks: int = Field(default=10_000, ge=1, le=MOST_THINGS)
    """No more of its tasks are read."""


class OpenEnv(Strict):
    """An environment that an OpenEnv server serves.  A task is a seed; the policy's answers are the actions."""

    id: Literal["openenv"] = "openenv"
    url: str = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=1000)
    """Where the server is, e.g. ``http://127.0.0.1:8000``.  The service asks those alone that whoever runs it has
    allowed (``PALESTRA_OPENENV``)."""
    action_field: str = Field(default="message", min_length=1, max_length=100)
    """The field of an action that takes the policy's text."""
    observation_field: str | None = Field(default=None, min_length=1, max_length=100)
    """The field of an observation that the policy reads; by default it reads all of it, as JSON."""
    timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """How long one answer of the server may take, in seconds."""
    success_at: float = Field(default=1.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """An episode whose total reward is at least this is a success.  Success and the component ``environment`` together
    are the total."""
    max_turns: int = Field(default=8, ge=1, le=512)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=32, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the answer."""

    @property
    def sandbox(self) -> None:
        """What the policy does happens at the server."""
        return None

    @property
    def response(self) -> Response:
        """The policy runs nothing here that could alarm anybody."""
        return Response()

    @property
    def can_be_restored(self) -> bool:
        """The protocol knows no snapshots."""
        return False


ForeignEnvironment = Imported | Package | Gem | VerifiersTaskset | OpenEnv
InPackage = Package | Gem | VerifiersTaskset
