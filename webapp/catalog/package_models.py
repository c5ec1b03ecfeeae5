"""Environment packages: named, with versions that are played before they are published."""

from functools import reduce
from operator import or_
from typing import ClassVar

from django.db import models

from engine.spec.package_check import PackageCheck, PackageReport
from engine.spec.package_files import PACKAGE_MANIFEST, PackageManifest
from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.checked_models import CheckedVersion, checked_constraints
from webapp.catalog.storage import PACKAGES
from webapp.catalog.version_models import Named


class EnvironmentPackage(Named):
    """A name under which a team keeps versions of an environment package."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="packages")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="package_name_is_unique")]


class PackageVersion(CheckedVersion):
    """The files are those of ``engine/spec/package_files.py``; ``package.json`` is the manifest."""

    storage = PACKAGES
    noun, of_family, store_message = "package", "package", queue.STORE_PACKAGE
    plural, example, check_form = "packages", "guessing-game", PackageCheck
    remove_message, checked_as, of_upload = queue.REMOVE_PACKAGE, "package-check", "package_version"

    package = models.ForeignKey(EnvironmentPackage, on_delete=models.CASCADE, related_name="versions")
    calls_itself = models.CharField(max_length=401, blank=True, default="")
    """The name and the version that stand in the package."""
    report = models.JSONField(null=True)
    """``engine.spec.package_check.PackageReport`` of the last check; None while it was not played."""

    class Meta:
        constraints: ClassVar = checked_constraints("package")

    @property
    def family(self) -> EnvironmentPackage:  # type: ignore[override]
        return self.package

    @property
    def found(self) -> PackageReport | None:
        return None if self.report is None else PackageReport.model_validate(self.report)

    def forget_check(self) -> None:
        self.report = None

    def manifest(self) -> PackageManifest:
        """Raises OSError where the files are not here."""
        return PackageManifest.model_validate_json((self.folder / PACKAGE_MANIFEST).read_bytes())

    def file_sizes(self) -> dict[str, int]:
        """The files with their bytes.  Raises OSError where they are not here."""
        return self.manifest().sizes | {PACKAGE_MANIFEST: (self.folder / PACKAGE_MANIFEST).stat().st_size}

    @staticmethod
    def named_in(environment: str, name: str) -> models.Q:
        """Rows whose document names the version ``name`` there; ``environment`` is where an environment stands."""
        kinds = ("package", "gem", "verifiers")
        return reduce(or_, (models.Q(**{f"{environment}__contains": {"id": kind, "catalog": name}}) for kind in kinds))
