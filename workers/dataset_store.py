"""From what a dataset is made of to its folder: stored piece by piece, read by the engine, published whole.

    importing    its files come into ``importing/`` of its partial folder, which becomes ``source/`` when all are there
    inspecting   the engine looks at the first rows, and guesses which column is what
    mapping      somebody says so; a version that came with a preparation skips this
    preparing    the engine reads every row, some seconds at a time, and seals the version or names all faults
    ready        the folder has its name, which is the SHA-256 of its manifest

What reads the files is a process of its own (``python -m engine.datasets``), with bounded memory and time.  A kill -9
leaves rows for which nobody does anything; ``reconcile`` sends their messages again, and the work goes on.
"""

import hashlib
import os
import shutil
import time
from functools import partial
from pathlib import Path

from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from engine.disk import fsync, write_durably
from engine.spec.dataset_files import DATASET_MANIFEST, DatasetManifest
from engine.spec.dataset_preparation import Preparation
from engine.spec.dataset_report import PreparationReport, SourceReport
from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.models import DatasetState, DatasetVersion
from workers.app import app
from workers.engine_process import EngineFailed, output_of
from workers.sources import SourceRefused, dataset_files
from workers.stored_pieces import JOURNAL, store_pieces
from workers.version_work import (
    DATASET_LOCK,
    Cancelled,
    announce,
    carried_out,
    fail,
    forget_upload,
    put_in_place,
    report_progress,
)

SLICE_S = 20.0
"""How long a task works before others have their turn."""
INSPECT_S = 60.0
PREPARE_S = 180.0
"""What a slice may take with its last commit, and sealing, which is done at one go."""
READER_BYTES = 2 * 2**30
"""Address space of the process that reads."""
_SHOWN_FAULTS = 3


@app.task(name=queue.STORE_DATASET, soft_time_limit=200, time_limit=240)
def store_dataset(version_id: str, progress_mark: str) -> None:
    carried_out(
        DatasetVersion, DATASET_LOCK, version_id, progress_mark, next_step=_next_step, clear=_clear, give_up=_fail
    )  # fmt: skip


def _next_step(version: DatasetVersion) -> None:
    if version.cancel_asked:
        raise Cancelled
    match version.state:
        case DatasetState.IMPORTING:
            _import(version)
        case DatasetState.INSPECTING:
            _inspect(version)
        case _:
            _prepare(version)


def _import(version: DatasetVersion) -> None:
    """A slice of it.  A kill at any line is made good by the next message: a ``source`` that is there is whole, and the
    upload is forgotten when the row no longer says ``importing``."""
    source = version.partial_folder / "source"
    if not source.is_dir():
        files = dataset_files(version)
        announce(version, sum(file.size for file in files))
        report = partial(report_progress, version)
        folder = version.partial_folder / "importing"
        if not store_pieces(folder, files, until=time.monotonic() + SLICE_S, report=report):
            return
        os.rename(folder, source)
        fsync(version.partial_folder)
    (source / JOURNAL).unlink(missing_ok=True)
    fsync(source)
    _move(version, DatasetState.INSPECTING)


def _inspect(version: DatasetVersion) -> None:
    forget_upload(version)
    arguments = ["engine.datasets", "inspect", str(version.partial_folder)]
    report = SourceReport.model_validate_json(_read_by_engine(arguments, INSPECT_S))
    DatasetVersion.objects.filter(id=version.id).update(source_report=report.model_dump(mode="json"))
    _move(version, DatasetState.MAPPING if version.preparation is None else DatasetState.PREPARING)


def _move(version: DatasetVersion, state: DatasetState) -> None:
    now = timezone.now()
    rows = DatasetVersion.objects.filter(id=version.id, state=version.state)
    rows.update(state=state, state_since=now, heartbeat_at=now, bytes_done=0)


def _read_by_engine(arguments: list[str], seconds: float) -> bytes:
    """Raises SourceRefused where the process dies of what it reads."""
    try:
        return output_of(arguments, seconds=seconds, most_bytes=READER_BYTES)
    except EngineFailed as failed:
        message = f"reading the files {failed}"
        remedy = "look for a row or a value of enormous size; write the file again, in smaller parts"
        raise SourceRefused("files", "", message, remedy) from failed


# Preparing
def _prepare(version: DatasetVersion) -> None:
    """A slice of it.  Raises SourceRefused where the rows have faults, after they are kept."""
    folder = version.partial_folder
    if version.bytes_done == 0 and version.rows == 0:
        _begin_preparation(version, folder)
    arguments = ["engine.datasets", "prepare", str(folder), "--seconds", str(SLICE_S)]
    output = _read_by_engine(arguments, PREPARE_S)
    try:
        report = PreparationReport.model_validate_json(output)
    except ValidationError as error:
        message = f"reading the files ended in the middle: {output[:100]!r}"
        raise SourceRefused("files", "", message, "try it again") from error
    # The mark of the next message has to be another one, also while rows are compared and no byte is read.
    done = max(report.bytes_done, version.bytes_done + 1)
    DatasetVersion.objects.filter(id=version.id).update(
        rows=report.rows, report=report.model_dump(mode="json"), heartbeat_at=timezone.now()
    )
    report_progress(version, done)
    if report.state == "refused":
        raise SourceRefused("files", str(report.faults), _faults_in_words(report), "mend them and upload it again")
    if report.state == "ready":
        _publish(version, report)


def _begin_preparation(version: DatasetVersion, folder: Path) -> None:
    """Remove what another mapping, or a slice whose end nobody saw, has left, and write down what is wanted."""
    (folder / "work.sqlite").unlink(missing_ok=True)
    (folder / "work.sqlite-journal").unlink(missing_ok=True)
    for name in ("staged", "sealed"):
        shutil.rmtree(folder / name, ignore_errors=True)
    preparation = Preparation.model_validate(version.preparation)
    write_durably(folder / "preparation.json", preparation.model_dump_json().encode())


def _faults_in_words(report: PreparationReport) -> str:
    first = [
        f"{fault.file}{'' if fault.line is None else f', line {fault.line}'}"
        f"{f', column {fault.column}' if fault.column else ''}: {fault.message}"
        for fault in report.shown_faults[:_SHOWN_FAULTS]
    ]
    more = f"; and {report.faults - len(first)} more" if report.faults > len(first) else ""
    return f"the files have {report.faults} fault{'' if report.faults == 1 else 's'}: {'; '.join(first)}{more}"


def _publish(version: DatasetVersion, report: PreparationReport) -> None:
    """Give the version its number and its folder, unless its dataset has the content already."""
    sealed = version.partial_folder / "sealed"
    text = (sealed / DATASET_MANIFEST).read_bytes()
    manifest = DatasetManifest.model_validate_json(text)
    with transaction.atomic():
        Team.objects.select_for_update().get(id=version.dataset.team_id)
        locked = DatasetVersion.objects.select_for_update(of=("self",)).select_related("dataset__team")
        version = locked.get(id=version.id)
        if version.cancel_asked:
            raise Cancelled
        version.sha256 = hashlib.sha256(text).hexdigest()
        ready = version.dataset.versions.filter(sha256=version.sha256, state=DatasetState.READY)
        if (same := ready.first()) is not None:
            version.same_as, version.state, version.state_since = same, DatasetState.SAME, timezone.now()
        else:
            put_in_place(sealed, version.folder)
            _make_ready(version, manifest)
        version.save()
    _clear(version)


def _make_ready(version: DatasetVersion, manifest: DatasetManifest) -> None:
    version.dataset.last_number += 1
    version.dataset.save(update_fields=["last_number"])
    version.number = version.dataset.last_number
    version.state, version.state_since = DatasetState.READY, timezone.now()
    version.rows = manifest.rows
    version.splits = [{"name": split.name, "rows": split.rows, "bytes": split.bytes} for split in manifest.splits]
    version.bytes = version.bytes_done = sum(version.file_sizes().values())


# Ending
def _fail(version: DatasetVersion, problem: Problem) -> None:
    """The files stay, so that they can be prepared in another way; those that never came whole do not."""
    came_whole = version.state != DatasetState.IMPORTING
    fail(version, problem)
    if not came_whole:
        _clear(version)


def _clear(version: DatasetVersion) -> None:
    shutil.rmtree(version.partial_folder, ignore_errors=True)
    forget_upload(version)
