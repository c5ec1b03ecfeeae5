"""From what a version is made of to its folder: stored piece by piece, checked by the engine, published whole.

A task works for some seconds and sends itself again, so that runs are launched in between.  What a kill -9 leaves is
mended by ``reconcile``, which sends the message of a version for which nobody does anything:

* between two pieces: the journal names the pieces that are on the disk, and the next task goes on behind them.
* before the row says ``checking``: the manifest is written again, from the same journal.
* after the folder has its name, before the row says ``ready``: the check finds it there, and goes on with it.
"""

import hashlib
import shutil
import time
from functools import partial
from pathlib import Path

from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from engine.disk import write_durably
from engine.spec.model_files import MANIFEST, ModelManifest
from engine.spec.model_report import ModelReport
from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.file_names import is_licence
from webapp.catalog.models import ModelVersion, VersionState
from workers.app import app
from workers.engine_process import EngineFailed, output_of
from workers.sources import SourceRefused, source_files
from workers.stored_pieces import JOURNAL, journal, store_pieces
from workers.version_work import (
    MODEL_LOCK,
    Cancelled,
    announce,
    carried_out,
    fail,
    forget_upload,
    put_in_place,
    report_progress,
)

SLICE_S = 20.0
"""How long a task stores pieces, or reads weights, before others have their turn."""
CHECK_S, CHECK_BYTES = 180, 32 * 2**30
"""What the engine's check may take, a slice of reading weights included: time by the clock, and address space."""
_LONGEST_LICENCE_BYTES = 2**17


@app.task(name=queue.STORE_MODEL, soft_time_limit=200, time_limit=240)
def store_model(version_id: str, progress_mark: str) -> None:
    carried_out(
        ModelVersion, MODEL_LOCK, version_id, progress_mark, next_step=_next_step, clear=_clear, give_up=_fail
    )  # fmt: skip


def _next_step(version: ModelVersion) -> None:
    if version.cancel_asked:
        raise Cancelled
    if version.state == VersionState.CHECKING:
        _check(version)
        return
    files = source_files(version)
    announce(version, sum(file.size for file in files))
    report = partial(report_progress, version)
    if store_pieces(version.partial_folder, files, until=time.monotonic() + SLICE_S, report=report):
        _seal(version)


def _seal(version: ModelVersion) -> None:
    folder = version.partial_folder
    text = ModelManifest(files=journal(folder)).text()
    write_durably(folder / MANIFEST, text.encode())
    version.sha256 = hashlib.sha256(text.encode()).hexdigest()
    version.state, version.state_since = VersionState.CHECKING, timezone.now()
    version.heartbeat_at, version.bytes_done = version.state_since, 0
    version.save(update_fields=["sha256", "state", "state_since", "heartbeat_at", "bytes_done"])


# Checking
def _check(version: ModelVersion) -> None:
    """A slice of it, for all weights are read.  Raises SourceRefused for what the engine would refuse."""
    ModelVersion.objects.filter(id=version.id).update(heartbeat_at=timezone.now())
    folder = version.partial_folder if version.partial_folder.is_dir() else version.folder
    (folder / JOURNAL).unlink(missing_ok=True)
    report = engine_report(folder, after_bytes=version.bytes_done)
    if report.problem is not None:
        problem, others = report.problem, [other.message for other in report.more_problems]
        raise SourceRefused(problem.field, str(problem.value), "; ".join([problem.message, *others]), problem.remedy)
    if report.bytes_read < report.weight_bytes:
        report_progress(version, report.bytes_read)
        return
    _publish(version, report, folder)


def engine_report(folder: Path, *, after_bytes: int = 0) -> ModelReport:
    """What the engine says of the folder, in a process that may die of it.  Raises SourceRefused if it does."""
    try:
        command = ["engine", "model-check", str(folder), "--json"]
        command += ["--seconds", str(int(SLICE_S)), "--after-bytes", str(after_bytes)]
        return ModelReport.model_validate_json(output_of(command, seconds=CHECK_S, most_bytes=CHECK_BYTES))
    except EngineFailed as failed:
        how = str(failed)
    except ValidationError:
        how = "failed: it printed no report"
    message = f"the engine's check of the model {how}"
    raise SourceRefused("folder", folder.name[:12], message, "use the model's own files")


def _publish(version: ModelVersion, report: ModelReport, folder: Path) -> None:
    """Give the version its number and its folder, unless its model has the content already."""
    licence_text = _licence(folder)
    with transaction.atomic():
        Team.objects.select_for_update().get(id=version.model.team_id)
        version = ModelVersion.objects.select_for_update(of=("self",)).select_related("model").get(id=version.id)
        if version.cancel_asked:
            raise Cancelled
        same = version.model.versions.filter(sha256=version.sha256, state=VersionState.READY).first()
        if same is not None:
            version.same_as, version.state, version.state_since = same, VersionState.SAME, timezone.now()
            version.bytes_done = version.bytes
            version.save()
        else:
            put_in_place(folder, version.folder)
            _make_ready(version, report, licence_text)
    _clear(version)


def _make_ready(version: ModelVersion, report: ModelReport, licence_text: str) -> None:
    version.model.last_number += 1
    version.model.save(update_fields=["last_number"])
    version.number, version.state, version.state_since = version.model.last_number, VersionState.READY, timezone.now()
    version.architecture, version.parameters = report.architecture, report.parameters
    version.context_tokens, version.dtype = report.context_tokens, report.dtype
    version.template_name, version.licence_text = report.template, licence_text
    version.bytes_done = version.bytes
    version.save()


def _licence(folder: Path) -> str:
    """The text of the model's licence; of several files the first by name.  Empty where none is there."""
    names = sorted(path.name for path in folder.iterdir() if is_licence(path.name))
    if not names:
        return ""
    with (folder / names[0]).open("rb") as file:
        return file.read(_LONGEST_LICENCE_BYTES).decode("utf-8", "replace").replace("\0", "")


# Ending
def _fail(version: ModelVersion, problem: Problem) -> None:
    fail(version, problem)
    _clear(version)


def _clear(version: ModelVersion) -> None:
    """Remove what a finished version needs no more."""
    shutil.rmtree(version.partial_folder, ignore_errors=True)
    forget_upload(version)
