"""What checking an environment package means, and what a check reports.

A worker writes a ``PackageCheckJob``; the engine installs the package, plays it, and appends a ``PACKAGE_LINE`` to the
job's log with what it found.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from engine.spec.check_log import LONGEST_NOTE, DoneLine, RefusedLine, UnavailableLine
from engine.spec.environment import ImportPath, JsonObject, ProcessLimits
from engine.spec.package_files import PackageDigest
from engine.spec.strict import Strict

MOST_NOTES = 100
Note = Annotated[str, StringConstraints(max_length=LONGEST_NOTE)]


class PackageCheck(Strict):
    """How a version is played before it may be published."""

    entry: ImportPath | None = None
    """``package.module:Name``; by default the package's only entry point of the group ``palestra.environments``."""
    options: JsonObject = "{}"
    """What the environment is called with, as a JSON object."""
    process: ProcessLimits = ProcessLimits()
    """What its process may take."""


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
