"""What ``environment.catalog`` of an environment package means on this machine, found before a run begins."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from engine.launch.pinned_dataset import datasets_folder
from engine.launch.preflight import BadSpec
from engine.spec.environment import Environment
from engine.spec.foreign_environments import InPackage
from engine.spec.mixture import with_each
from engine.spec.model_files import CatalogFolder
from engine.spec.package_files import PACKAGE_MANIFEST, PackageManifest
from engine.spec.problems import Problem
from engine.spec.run import RunSpec


def with_pinned_packages(spec: RunSpec, *, named_in: Path, catalog: Sequence[CatalogFolder]) -> RunSpec:
    """A launch document's spec with the place of each environment package, and the digest that it must have.

    ``catalog`` is what the document says of each ``catalog``.  The package is compared with the digest when it is
    installed.  Raises BadSpec, also for a package of the run's own choosing.
    """
    known = {folder.version: folder for folder in catalog}

    def pinned(field: str, environment: Environment) -> Environment:
        if not isinstance(environment, InPackage):
            return environment
        folder = known.get(environment.catalog or "")
        if folder is None:
            message = "the service plays the packages of its catalog, and no others"
            raise _refused(named_in, field, environment.catalog, message, 'set it to "name@version"')
        place = datasets_folder().resolve() / "packages" / folder.team / folder.sha256
        manifest = _manifest(place, folder, field, named_in)
        found = {"catalog": None, "path": str(place / manifest.source), "digest": manifest.digest}
        return environment.model_copy(update=found)

    return spec.model_copy(update={"environment": with_each(spec.environment, pinned)})


def _manifest(place: Path, folder: CatalogFolder, field: str, named_in: Path) -> PackageManifest:
    """Raises BadSpec where it is not there, or not the one that was pinned."""
    try:
        text = (place / PACKAGE_MANIFEST).read_bytes()
        if hashlib.sha256(text).hexdigest() == folder.sha256:
            return PackageManifest.model_validate_json(text)
        message = "its manifest is not the one of this version"
    except (OSError, ValidationError) as error:
        message = f"its manifest cannot be read: {error}"
    raise _refused(named_in, field, folder.version, message, "bring the package again")


def _refused(named_in: Path, field: str, value: str | None, message: str, remedy: str) -> BadSpec:
    return BadSpec([f"{named_in}: {Problem(f'{field}.catalog', value, message, remedy)}"])
