"""``task.toml``: what a task asks for.  Schema 1.0 to 1.4 of the Harbor form, without what no sandbox here can give.

A key that is not known is a fault: a task whose wishes are ignored is another task.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from engine.spec.impossible import impossible
from engine.spec.strict import Strict
from sandboxes.egress.connection_attempt import host_name
from sandboxes.egress.rule_checks import host_fault

LONGEST_S = 86400.0
MOST_HOSTS = 500
SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
Schema = Literal["1.0", "1.1", "1.2", "1.3", "1.4"]
NetworkMode = Literal["no-network", "none", "allowlist", "public"]
"""``none`` and ``no-network`` are the same."""
WORKING_FOLDERS = ("/work", "/app")
"""The two names of the folder that a policy works in."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE = re.compile(r"(\d{1,9})\s*([KMGT]?)i?B?", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "": 1 / 2**20}


def _unusable(problem: str, remedy: str) -> PydanticCustomError:
    return PydanticCustomError("unusable", "{problem}", {"problem": problem, "remedy": remedy})


def _host(given: str) -> str:
    name = host_name(given)
    if (fault := host_fault(name)) is not None:
        raise _unusable(*fault)
    return name


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if VARIABLE.fullmatch(name) is None or "\0" in value:
            raise _unusable(f"{name!r} is no variable", "use letters, digits and _ in its name")
        if "${" in value:
            problem = f"{name} asks for a variable of this machine, which may hold a secret"
            raise _unusable(problem, "write the value itself, or leave the variable out")
    return env


def _mib(given: Any) -> int:
    match = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None:
        raise _unusable("this is no size", 'write it as "512M" or "2G"')
    return max(1, int(int(match[1]) * _MIB[match[2].upper()]))


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    handed_in = metadata.get("handed_in", ["."])
    if not isinstance(handed_in, list) or not handed_in or not all(isinstance(path, str) for path in handed_in):
        raise _unusable("handed_in is no list of paths", 'write it as ["out.txt", "src"]')
    for path in handed_in:
        if path.startswith("/") or not path or ".." in path.split("/") or "\0" in path:
            problem = f"{path!r} in handed_in leads out of the working folder"
            raise _unusable(problem, "name files and folders below it, without '..'")
    return metadata


Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
Host = Annotated[str, AfterValidator(_host)]
Variables = Annotated[dict[str, Text], Field(max_length=100), AfterValidator(_variables)]
Size = Annotated[int, BeforeValidator(_mib)]
"""In MiB, written as schema 1.0 wrote it: ``2G``."""


class _Phase(Strict):
    """The network of a phase: of the policy, of the tests, or of both where neither has its own."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[Host] = Field(default=[], max_length=MOST_HOSTS)
    """Names that may be reached in the mode ``allowlist``, ``*.example.org`` for all below one."""

    @model_validator(mode="after")
    def _hosts_belong_to_an_allowlist(self) -> Self:
        if self.network_mode == "allowlist" and not self.allowed_hosts:
            raise impossible("allowed_hosts", [], "an allowlist without hosts allows nothing", 'use "no-network"')
        if self.allowed_hosts and self.network_mode != "allowlist":
            remedy = 'set network_mode = "allowlist", or remove allowed_hosts'
            raise impossible("allowed_hosts", self.allowed_hosts, "only the mode allowlist has hosts", remedy)
        return self


class EnvironmentTable(_Phase):
    """What the task runs in."""

    docker_image: str | None = None
    """An image of the registry of sandboxes: ``name``, ``name:tag`` or ``sha256:...``."""
    build_timeout_sec: Seconds = 600.0
    cpus: float | None = Field(default=None, gt=0, le=1024)
    memory_mb: int | None = Field(default=None, ge=1, le=2**20)
    storage_mb: int | None = Field(default=None, ge=1, le=2**24)
    memory: Size | None = None
    storage: Size | None = None
    gpus: Literal[0] = 0
    os: Literal["linux"] = "linux"
    allow_internet: bool | None = None
    """How schemas before 1.4 wrote the modes ``public`` and ``no-network``."""
    workdir: Literal["/work", "/app", "/app/", "/work/"] | None = None
    env: Variables = {}

    @model_validator(mode="after")
    def _nothing_twice(self) -> Self:
        if self.allow_internet is not None and self.network_mode is not None:
            raise impossible("allow_internet", self.allow_internet, "network_mode says it too", "remove allow_internet")
        for old, new in (("memory", self.memory_mb), ("storage", self.storage_mb)):
            if getattr(self, old) is not None and new is not None:
                raise impossible(old, getattr(self, old), f"{old}_mb says it too", f"remove {old}")
        return self

    @property
    def memory_mib(self) -> int | None:
        return self.memory if self.memory_mb is None else self.memory_mb

    @property
    def disk_mib(self) -> int | None:
        return self.storage if self.storage_mb is None else self.storage_mb

    @property
    def mode(self) -> NetworkMode | None:
        if self.allow_internet is not None:
            return "public" if self.allow_internet else "no-network"
        return self.network_mode


class AgentTable(_Phase):
    """The policy's phase."""

    timeout_sec: Seconds | None = None


class VerifierTable(_Phase):
    """The phase of the tests."""

    timeout_sec: Seconds = 600.0
    environment_mode: Literal["shared", "separate"] = "shared"
    """Read and kept; the tests have a sandbox of their own in either case."""
    env: Variables = {}


class SolutionTable(Strict):
    """What the service knows of ``solution/solve.sh``."""

    env: Variables = {}


class Author(Strict):
    name: Text
    email: Text = ""


class PackageTable(Strict):
    """How a registry knows the task."""

    name: Text
    description: Text = ""
    authors: list[Author] = []
    keywords: list[Text] = []
    version: Text = ""


class TaskFile(Strict):
    """The whole document."""

    schema_version: Schema = Field(validation_alias=AliasChoices("schema_version", "version"))
    task: PackageTable | None = None
    source: Text | None = None
    metadata: Annotated[dict[str, Any], AfterValidator(_metadata)] = {}
    """For people, but for ``difficulty`` and ``handed_in``."""
    environment: EnvironmentTable = EnvironmentTable()
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    solution: SolutionTable = SolutionTable()

    @property
    def handed_in(self) -> tuple[str, ...]:
        """What the tests get of the working folder: paths below it; ``.`` is all of it."""
        return tuple(self.metadata.get("handed_in", ["."]))

    @property
    def level(self) -> int:
        """1 to 3 by ``metadata.difficulty``; 2 where it says something else or nothing."""
        return {"easy": 1, "medium": 2, "hard": 3}.get(str(self.metadata.get("difficulty", "")).lower(), 2)
