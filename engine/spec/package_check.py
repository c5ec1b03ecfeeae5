"""What checking an environment package means, and what a check reports.

A worker writes a ``PackageCheckJob``; the engine installs the package, plays it, and appends a ``PACKAGE_LINE`` to the
job's log with what it found.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, TypeAdapter, model_validator

from engine.spec.check_log import LONGEST_NOTE, DoneLine, RefusedLine, UnavailableLine
from engine.spec.foreign_environments import (
    Gem,
    ImportPath,
    InPackage,
    JsonObject,
    Package,
    ProcessLimits,
    VerifiersTaskset,
)
from engine.spec.impossible import impossible
from engine.spec.package_files import PackageDigest
from engine.spec.strict import Strict

MOST_NOTES = 100
Note = Annotated[str, StringConstraints(max_length=LONGEST_NOTE)]


class PackageCheck(Strict):
    """How a version is played before it may be published."""

    entry: ImportPath | None = None
    """``package.module:Name``; by default the package's only entry point of the group ``palestra.environments``."""
    taskset: ImportPath | None = None
    """``package.module:Class`` of a taskset of verifiers v1, in place of ``entry``; the package, or what it depends
    on, has the library."""
    env_id: str | None = Field(default=None, min_length=1, max_length=300)
    """The name of an environment of GEM, likewise."""
    options: JsonObject = "{}"
    """What the environment is called with, as a JSON object: a taskset's configuration, the arguments of GEM."""
    process: ProcessLimits = ProcessLimits()
    """What its process may take."""

    @model_validator(mode="after")
    def _one_environment(self) -> Self:
        given = [name for name in ("entry", "taskset", "env_id") if getattr(self, name) is not None]
        if len(given) > 1:
            problem = f"{given[0]} says already what is played"
            raise impossible(given[1], getattr(self, given[1]), problem, "leave one of the two out")
        return self

    def environment(self, **where: str | None) -> InPackage:
        """What a run plays that is checked so; ``where`` is its ``catalog``, or its ``path`` and ``digest``."""
        given: dict[str, Any] = {**where, "process": self.process}
        if self.taskset is not None:
            return VerifiersTaskset(taskset=self.taskset, config=self.options, **given)
        if self.env_id is not None:
            return Gem(env_id=self.env_id, arguments=self.options, **given)
        return Package(entry=self.entry, options=self.options, **given)


class PackageCheckJob(Strict):
    """``<folder>/check.json``."""

    path: str
    """The package: its folder, or the wheel."""
    digest: PackageDigest
    """What it must be."""
    check: PackageCheck


class PackageReport(Strict):
    """What playing a package has shown.  Without ``faults`` a run can use it."""

    tasks: dict[Literal["train", "heldout"], int] = {}
    """How many there are of each split."""
    tools: list[Note] = Field(default=[], max_length=MOST_NOTES)
    episodes: int = Field(default=0, ge=0)
    faults: list[Note] = Field(default=[], max_length=MOST_NOTES)
    notes: list[Note] = Field(default=[], max_length=MOST_NOTES)
    start_s: float = Field(default=0.0, ge=0)
    """Until it answered, in seconds; installing is not counted."""
    call_s: float = Field(default=0.0, ge=0)
    """The mean time of a call, in seconds."""
    memory_bytes: int = Field(default=0, ge=0)
    """Resident, of all of its processes; 0 where nothing counts them."""


class ReportLine(Strict):
    """The package was played."""

    line: Literal["report"] = "report"
    report: PackageReport


PackageLine = Annotated[ReportLine | RefusedLine | UnavailableLine | DoneLine, Field(discriminator="line")]
PACKAGE_LINE: TypeAdapter[ReportLine | RefusedLine | UnavailableLine | DoneLine] = TypeAdapter(PackageLine)
