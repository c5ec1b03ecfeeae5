"""Environment packages on their way into the catalog: stored, and played by a job on the cluster."""

from collections.abc import Sequence

from engine.spec.package_check import PACKAGE_LINE, PackageCheckJob, ReportLine
from engine.spec.package_files import PACKAGE_MANIFEST, PackageManifest
from webapp import queue
from webapp.catalog.models import PackageVersion
from workers.app import app
from workers.checked_store import CheckedStore
from workers.checks import Check
from workers.version_work import PACKAGE_LOCK


def _job(version: PackageVersion) -> PackageCheckJob:
    manifest = version.manifest()
    path = str(version.folder / manifest.source)
    return PackageCheckJob(path=path, digest=manifest.digest, check=version.check_wanted)


def _keep_report(version: PackageVersion, reports: Sequence[ReportLine]) -> None:
    for line in reports:
        version.report = line.report.model_dump(mode="json")


def _keep_name(version: PackageVersion, manifest: PackageManifest) -> None:
    version.calls_itself = f"{manifest.name} {manifest.version}"


PACKAGE_CHECKS = Check(PackageVersion, ("environment", "trial"), PACKAGE_LINE, _job, _keep_report)
PACKAGE_STORE = CheckedStore(
    check=PACKAGE_CHECKS,
    lock=PACKAGE_LOCK,
    reader="engine.environments.process",
    manifest_file=PACKAGE_MANIFEST,
    manifest=PackageManifest.model_validate_json,
    keep=_keep_name,
    divide="make it smaller",
)


@app.task(name=queue.STORE_PACKAGE, soft_time_limit=200, time_limit=240)
def store_package(version_id: str, progress_mark: str) -> None:
    """Do what is next for the version.  A late message, and a second one at the same time, do nothing."""
    PACKAGE_STORE.carry_out(version_id, progress_mark)
