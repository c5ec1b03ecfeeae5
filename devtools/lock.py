"""``./dev lock``: write the lock files from pyproject.toml and what is installed.

A lock is the closure of the declared requirements over the installed distributions, pinned.  It
names no index, so it serves behind any mirror.
"""

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYTHONS: tuple[dict[str, str], ...] = ({}, {"python_full_version": "3.11.0"})
"""The lock serves this Python and the oldest one allowed; Debian's 3.11.2 needs more than 3.11.7."""


def write_locks() -> list[Path]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime = project["dependencies"]
    test = runtime + project["optional-dependencies"]["test"]
    return [_write("requirements.lock", runtime), _write("requirements-test.lock", test)]


def _write(name: str, declared: list[str]) -> Path:
    path = ROOT / name
    pins = sorted(f"{name}=={version}" for name, version in closure(declared).items())
    path.write_text("# Written by `./dev lock`.\n" + "\n".join(pins) + "\n")
    return path


def closure(declared: list[str]) -> dict[str, str]:
    """Every distribution that the requirements need here, with its installed version.

    Raises ``PackageNotFoundError`` for one that is not installed and ``ValueError`` for one whose
    installed version does not fit.
    """
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in declared]
    while waiting:
        requirement, wanted_by = waiting.pop()
        name = canonicalize_name(requirement.name)
        distribution = importlib.metadata.distribution(name)
        version = distribution.version.split("+")[0]
        if not requirement.specifier.contains(version, prereleases=True):
            raise ValueError(f"{name} {version} is installed, but {wanted_by or 'pyproject.toml'} wants {requirement}")
        versions[name] = version
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(needed, name) for needed in _needed_by(distribution, extra)]
    return versions


def _needed_by(distribution: importlib.metadata.Distribution, extra: str) -> list[Requirement]:
    requirements = [Requirement(line) for line in distribution.requires or []]
    return [requirement for requirement in requirements if _applies(requirement.marker, extra)]


def _applies(marker: Marker | None, extra: str) -> bool:
    """With ``extra`` only what the extra adds; what a distribution always needs is asked for with ``""``."""
    if marker is None:
        return extra == ""
    always = _holds(marker, "")
    return always if extra == "" else _holds(marker, extra) and not always


def _holds(marker: Marker, extra: str) -> bool:
    return any(marker.evaluate({"extra": extra} | python) for python in PYTHONS)
