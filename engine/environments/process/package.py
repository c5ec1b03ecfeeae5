"""From what a spec says of an environment package to the environment."""

from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from engine.environments.contract import EnvironmentProcessLost, VerifierFailed
from engine.environments.imported import UnusableEnvironment
from engine.environments.process.answers import MisfitAnswer
from engine.environments.process.connection import EnvironmentProgram, RaisedInProcess
from engine.environments.process.environment import ProcessEnvironment
from engine.environments.process.installation import InstalledPackage, entry_of, installed
from engine.environments.process.source import PackageRefused, package_at
from engine.spec.foreign_environments import Gem, Package, ProcessLimits, VerifiersTaskset
from engine.spec.problems import Problem
from sandboxes.interface import SandboxUnavailable
from sandboxes.spec import SandboxSpec

FACADE = "/environment-facade"


class Limits(TypedDict):
    spec: SandboxSpec
    start_timeout_s: float
    call_timeout_s: float


def package_environment(described: Package) -> ProcessEnvironment:
    """Install the package where it is not, and start its process.  Raises UnusableEnvironment."""
    try:
        program = program_of(described)
    except PackageRefused as refused:
        first, *others = refused.problems
        more = f" (and {len(others)} more: {'; '.join(map(str, others[:5]))})" if others else ""
        raise UnusableEnvironment(
            Problem("environment.path", described.path, f"{first}{more}", "mend the package")
        ) from refused
    return running(program, "environment.path", str(described.path))


def running(program: EnvironmentProgram, field: str, value: str) -> ProcessEnvironment:
    """Raises UnusableEnvironment with what the process printed, where it does not come to answering."""
    try:
        return ProcessEnvironment(program)
    except (EnvironmentProcessLost, RaisedInProcess, MisfitAnswer, VerifierFailed) as failure:
        remedy = "mend it; python -m engine environment check FOLDER plays it"
        raise UnusableEnvironment(Problem(field, value, f"it does not start: {failure}", remedy)) from failure
    except SandboxUnavailable as unavailable:
        remedy = "an environment process runs behind the walls of a sandbox, and never without"
        raise UnusableEnvironment(Problem(field, value, str(unavailable), remedy)) from unavailable


def package_of(described: Package | Gem | VerifiersTaskset) -> InstalledPackage:
    """Install it where it is not.  Raises PackageRefused."""
    if described.path is None:
        message, remedy = "there is no catalog of packages here: the service has it", "set environment.path"
        raise PackageRefused([Problem("environment.catalog", described.catalog, message, remedy)])
    source = package_at(Path(described.path))
    if described.digest is not None and described.digest != source.digest:
        problem = f"the package is {source.digest}"
        raise PackageRefused([Problem("environment.digest", described.digest, problem, "set that, or leave it out")])
    return installed(source, described.python)


def program_of(described: Package) -> EnvironmentProgram:
    """Raises PackageRefused."""
    package = package_of(described)
    entry = entry_of(package.source, described.entry)
    return EnvironmentProgram(
        name=f"{package.source.name} {package.source.version}",
        python=package.python,
        folders=(*package.folders, facade_folder()),
        facade=FACADE,
        path=(package.modules,),
        entry=entry,
        options=described.options,
        **limits_of(described.process),
    )


def limits_of(limits: ProcessLimits) -> Limits:
    return {
        "spec": limits.sandbox,
        "start_timeout_s": limits.start_timeout_s,
        "call_timeout_s": limits.call_timeout_s,
    }


def facade_folder() -> tuple[str, str]:
    """Where ``palestra_env`` is here, and inside."""
    found = find_spec("palestra_env")
    assert found is not None, "palestra_env stands beside the engine"
    return str(Path(str(found.origin)).parent), f"{FACADE}/palestra_env"
