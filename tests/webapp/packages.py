"""Environment packages as workers leave them: sealed by the engine, and played."""

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from engine.environments.process.storing import store
from engine.spec.package_check import PackageCheck, PackageReport
from engine.spec.package_files import PACKAGE_MANIFEST
from tests.engine.environments.process.packages import CODE, write_package
from webapp.accounts.models import Team, User
from webapp.catalog.models import EnvironmentPackage, PackageVersion

GOOD = PackageReport(tasks={"train": 40, "heldout": 40}, episodes=16, start_s=0.1, call_s=0.001, memory_bytes=2**24)


def stored_package(
    team: Team, name: str = "game", *, report: PackageReport | None = None, version: str = "1.0", code: str = CODE,
    **fields: Any,
) -> PackageVersion:  # fmt: skip
    """A version that is stored, with what its check has found."""
    package, _ = EnvironmentPackage.objects.get_or_create(team=team, name=name)
    with tempfile.TemporaryDirectory() as root:
        found = store(write_package(Path(root, "source"), code, version), Path(root, "target"))
        assert found.faults == 0, found
        sealed = Path(root, "target", "sealed")
        text = (sealed / PACKAGE_MANIFEST).read_bytes()
        row = PackageVersion(
            package=package, state="stored", sha256=hashlib.sha256(text).hexdigest(), bytes=1234,
            origin={"kind": "folder", "path": "game"}, created_by=User.objects.filter(teams=team).first(),
            check_settings=PackageCheck().model_dump(mode="json"), calls_itself=f"guessing {version}",
            report=None if report is None else report.model_dump(mode="json"),
        )  # fmt: skip
        shutil.copytree(sealed, row.folder, dirs_exist_ok=True)
    for field, value in fields.items():
        setattr(row, field, value)
    row.save()
    return row


def published_package(team: Team, name: str = "game", **changes: Any) -> PackageVersion:
    version = stored_package(team, name, report=GOOD, **changes)
    version.package.last_number += 1
    version.package.save()
    version.number, version.state = version.package.last_number, "ready"
    version.save()
    return version
