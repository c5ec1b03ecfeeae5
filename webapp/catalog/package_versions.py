"""What can be done to versions of a package beside what every version that is checked has: publish, compare."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction

from engine.spec.package_files import PackageManifest
from engine.spec.problems import Problem
from webapp.accounts.models import User
from webapp.catalog.checked_versions import lock_to_publish, publish_checked
from webapp.catalog.models import PackageVersion
from webapp.refusals import Invalid, Refused

PACKAGE_FILES = (".whl", ".tar")
"""A wheel, and a tar of a package's folder."""


def problem_with_package_file(name: str, field: str) -> Problem | None:
    """Why a file of this name cannot be a package; None where it can."""
    if "/" in name or "\\" in name or not name.isprintable():
        return Problem(field, name, f"{name!r} is no name of a file", "name it with letters, digits and . _ -")
    if not name.lower().endswith(PACKAGE_FILES):
        remedy = "give a wheel (python -m pip wheel --no-deps FOLDER), or make: tar -cf package.tar -C FOLDER ."
        return Problem(field, name, f"{name} is no package of an environment", remedy)
    return None


@transaction.atomic
def publish_package(version: PackageVersion, *, acting_user: User) -> PackageVersion:
    """Give the version its number, by which runs name it.  Raises Refused until a check found no fault."""
    version = lock_to_publish(version)
    return publish_checked(
        version, [] if version.is_ready else faults_of(version), "a run could not use it", acting_user=acting_user
    )


def faults_of(version: PackageVersion) -> list[Problem]:
    """Why the version is not published."""
    if version.found is None:
        return [Problem("check", "", "nobody has played it", "check the version first")]
    return [
        Problem("package", fault[:200], fault, "mend it, and bring it as another version")
        for fault in version.found.faults
    ]


@dataclass(frozen=True)
class PackageDifference:
    """What differs between two versions."""

    added: list[str]
    """Files, dependencies (``needs NAME``) and environments (``environment NAME``)."""
    removed: list[str]
    changed: list[str]
    same: int
    """How many are the same."""


def compare_packages(version: PackageVersion, before: PackageVersion) -> PackageDifference:
    """Raises Invalid for a version of another team, or one that is not stored, and Refused where files are missing."""
    for named in (version, before):
        if named.package.team_id != version.package.team_id or not named.has_content:
            remedy = "name another version of the same team that is stored"
            raise Invalid.field("before", before.pk, "these two cannot be compared", remedy)
    try:
        new, old = _parts_of(version.manifest()), _parts_of(before.manifest())
    except OSError as error:
        raise Refused("the files of one of them are not on this machine; bring it again") from error
    both = new.keys() & old.keys()
    changed = sorted(name for name in both if new[name] != old[name])
    return PackageDifference(sorted(new.keys() - old), sorted(old.keys() - new), changed, len(both) - len(changed))


def _parts_of(manifest: PackageManifest) -> Mapping[str, str]:
    files = {file.path.removeprefix("package/"): file.sha256 for file in manifest.files}
    needed = {f"needs {dependency}": "" for dependency in manifest.dependencies}
    return files | needed | {f"environment {name}": entry for name, entry in manifest.entries.items()}
