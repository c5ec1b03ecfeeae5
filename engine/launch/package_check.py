"""``python -m engine environment trial FILE``: the check of a version of the catalog, as a job on the cluster."""

import asyncio
from dataclasses import asdict
from pathlib import Path

from engine.environments.contract import EnvironmentProcessLost, VerifierFailed
from engine.environments.process.answers import MisfitAnswer
from engine.environments.process.checking import CheckReport, checked
from engine.environments.process.connection import RaisedInProcess
from engine.environments.process.libraries import program_for
from engine.environments.process.source import PackageRefused
from engine.launch.check_log import CheckLog
from engine.spec.check_log import (
    CHECK_LOG,
    LONGEST_NOTE,
    MOST_PROBLEMS,
    DoneLine,
    FoundProblem,
    RefusedLine,
    UnavailableLine,
    storable,
)
from engine.spec.package_check import MOST_NOTES, PackageCheckJob, PackageReport, ReportLine
from sandboxes.interface import SandboxUnavailable


def run_check(file: Path) -> int:
    """Play the package that the job file names; the exit code is 0 whatever came of it."""
    job = PackageCheckJob.model_validate_json(file.read_bytes())
    with CheckLog(file.with_name(CHECK_LOG)) as log:
        try:
            log.write(ReportLine(report=_report(job)))
        except PackageRefused as refused:
            log.write(RefusedLine(problems=[FoundProblem.of(problem) for problem in refused.problems[:MOST_PROBLEMS]]))
        except SandboxUnavailable as unavailable:
            log.write(UnavailableLine(reason=storable(str(unavailable), LONGEST_NOTE)))
        else:
            log.write(DoneLine())
    return 0


def _report(job: PackageCheckJob) -> PackageReport:
    """Raises PackageRefused and SandboxUnavailable."""
    program = program_for(job.check.environment(path=job.path, digest=job.digest))
    try:
        found = asyncio.run(checked(program))
    except (EnvironmentProcessLost, RaisedInProcess, MisfitAnswer, VerifierFailed) as failure:
        found = CheckReport(faults=[f"it does not start: {failure}"])
    listed = {
        name: [storable(text, LONGEST_NOTE) for text in getattr(found, name)[:MOST_NOTES]]
        for name in ("tools", "faults", "notes")
    }
    return PackageReport.model_validate(asdict(found) | listed)
