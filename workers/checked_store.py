"""From what a checked version is made of to its folder: stored piece by piece, read by the engine, kept by its content.

    importing   an upload's file comes into ``importing/`` of the partial folder; a server's folder stays where it is
    reading     the engine unpacks and reads everything as hostile input, and seals it or names all faults
    stored      the folder has its name, which is the SHA-256 of its manifest; no run may name it yet
    checking    a job on the cluster tries it (``workers/checks.py``)
    ready       somebody has published it, which the service refuses until the check found nothing wrong

What reads the files is a process of its own, with bounded memory and time.  A kill -9 leaves rows for which nobody does
anything; ``reconcile`` sends their messages again, and the work goes on.
"""

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from engine.spec.check_log import ReadReport
from engine.spec.problems import Problem
from webapp.accounts.models import Team
from webapp.catalog.checked_models import CheckedState, CheckedVersion
from webapp.catalog.checked_versions import begin_check
from webapp.catalog.origin import FolderOrigin
from webapp.catalog.stored_versions import locked
from workers import ray_jobs
from workers.checks import Check
from workers.engine_process import EngineFailed, output_of
from workers.ray_jobs import RayUnreachable
from workers.sources import SourceRefused, checked_files
from workers.stored_pieces import store_pieces
from workers.version_work import (
    Cancelled,
    announce,
    carried_out,
    fail,
    forget_upload,
    put_in_place,
    report_progress,
)

SLICE_S = 20.0
"""How long a task stores pieces before others have their turn."""
READ_S, READER_BYTES = 170.0, 2 * 2**30
"""What reading all files may take: time by the clock, and address space."""
_KEPT = CheckedVersion.keeps_content - {CheckedState.IMPORTING, CheckedState.READING}
Version = TypeVar("Version", bound=CheckedVersion)

log = structlog.get_logger(__name__)


class Manifest(Protocol):
    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file but the manifest."""
        ...


ManifestT = TypeVar("ManifestT", bound=Manifest)


@dataclass(frozen=True)
class CheckedStore(Generic[Version, ManifestT]):
    """How versions of a kind are stored."""

    check: Check[Version]
    lock: int
    reader: str
    """The engine's module that reads and seals them: ``python -m READER SOURCE TARGET``."""
    manifest_file: str
    manifest: Callable[[bytes], ManifestT]
    """From the manifest's text."""
    keep: Callable[[Version, ManifestT], None]
    """Writes what is shown of the files as rows, or into the version's own, which is saved afterwards."""
    divide: str
    """What to do with files that take the reader too long, or that it dies of."""

    def carry_out(self, version_id: str, progress_mark: str) -> None:
        """Do what is next for the version.  A late message, and a second one at the same time, do nothing."""
        kind, step = self.check.kind, self._next_step
        carried_out(kind, self.lock, version_id, progress_mark, next_step=step, clear=_clear, give_up=_fail)

    def _next_step(self, version: Version) -> None:
        """Raises SourceRefused and Cancelled."""
        if version.state == CheckedState.CHECKING:
            self._follow(version)
        elif version.cancel_asked:
            raise Cancelled
        elif version.state == CheckedState.IMPORTING:
            self._import(version)
        else:
            self._read(version)

    def _follow(self, version: Version) -> None:
        try:
            self.check.follow(version, ray_jobs.connect())
        except RayUnreachable as error:
            log.warning("Ray cannot be reached; reconcile follows the check", version=version.pk, error=str(error))

    def _import(self, version: Version) -> None:
        files = checked_files(version)
        if files:
            announce(version, sum(file.size for file in files))
            report = partial(report_progress, version)
            folder = version.partial_folder / "importing"
            if not store_pieces(folder, files, until=time.monotonic() + SLICE_S, report=report):
                return
            forget_upload(version)
        else:
            version.partial_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = timezone.now()
        rows = self.check.kind._default_manager.filter(pk=version.pk, state=CheckedState.IMPORTING)
        rows.update(state=CheckedState.READING, state_since=now, heartbeat_at=now, bytes_done=0)

    def _read(self, version: Version) -> None:
        """Raises SourceRefused where the files have faults, after they are kept."""
        self.check.kind._default_manager.filter(pk=version.pk).update(heartbeat_at=timezone.now())
        report = self._engine_report(version)
        if report.faults:
            version.faults, version.problems = report.faults, [problem.model_dump() for problem in report.problems]
            version.save(update_fields=["faults", "problems"])
            first = report.problems[0]
            more = f"; and {report.faults - 1} more faults" if report.faults > 1 else ""
            raise SourceRefused(
                "files", str(report.faults), f"{first.field}: {first.message}{more}", "mend them and try again"
            )
        self._take_over(version)

    def _engine_report(self, version: Version) -> ReadReport:
        """What the engine says of the files, in a process that may die of them.  Raises SourceRefused if it does."""
        target = version.partial_folder
        arguments = [self.reader, str(self._source(version)), str(target)]
        try:
            return ReadReport.model_validate_json(output_of(arguments, seconds=READ_S, most_bytes=READER_BYTES))
        except EngineFailed as failed:
            how = str(failed)
        except ValidationError:
            how = "failed: it printed no report"
        raise SourceRefused("files", "", f"reading it {how}", self.divide)

    def _source(self, version: Version) -> Path:
        match version.made_from:
            case FolderOrigin(path=path) if (folder := Path(settings.PALESTRA_IMPORTS) / path).is_dir():
                return folder
            case _:
                stored = version.partial_folder / "importing"
                return next(file for file in stored.iterdir() if not file.name.startswith("."))

    def _take_over(self, version: Version) -> None:
        """Give the files their folder and rows, unless another version of the name has them already."""
        sealed = version.partial_folder / "sealed"
        text = (sealed / self.manifest_file).read_bytes()
        manifest = self.manifest(text)
        announce(version, sum(manifest.sizes.values()) + len(text))
        with transaction.atomic():
            Team.objects.select_for_update().get(id=version.team.id)
            version = locked(version)
            if version.cancel_asked:
                raise Cancelled
            version.sha256 = hashlib.sha256(text).hexdigest()
            version.state_since = timezone.now()
            of_name = {version.of_family: version.family}
            same = self.check.kind._default_manager.filter(**of_name, sha256=version.sha256, state__in=_KEPT).first()
            if same is not None:
                version.same_as, version.state = same, CheckedState.SAME
                version.save()
            else:
                put_in_place(sealed, version.folder)
                self.keep(version, manifest)
                version.state, version.bytes_done = CheckedState.STORED, version.bytes
                version.save()
                if (check := version.check_wanted) is not None:
                    begin_check(version, check)
        _clear(version)


def _fail(version: CheckedVersion, problem: Problem) -> None:
    fail(version, problem)
    _clear(version)


def _clear(version: CheckedVersion) -> None:
    """Remove what the version needs no more."""
    shutil.rmtree(version.partial_folder, ignore_errors=True)
    forget_upload(version)
