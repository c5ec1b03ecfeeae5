"""From what a version is made of to its folder: stored piece by piece, checked by the engine, published whole.

A task works for some seconds and sends itself again, so that runs are launched in between.  What a kill -9 leaves is
mended by ``reconcile``, which sends the message of a version for which nobody does anything:

* between two pieces: the journal names the pieces that are on the disk, and the next task goes on behind them.
* before the row says ``checking``: the manifest is written again, from the same journal.
* after the folder has its name, before the row says ``ready``: the check finds it there, and goes on with it.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from pydantic import ValidationError

from engine.spec.model_files import MANIFEST, PIECE_BYTES, ModelManifest, StoredFile
from engine.spec.model_report import ModelReport
from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.file_names import is_licence
from webapp.catalog.models import UNFINISHED, ModelVersion, UploadPart, VersionState
from webapp.catalog.storage import content_folder, partial_folder, upload_folder
from webapp.catalog.versions import refuse_beyond_room
from webapp.refusals import Refused
from workers.app import app
from workers.model_sources import SourceFile, SourceRefused, source_files

SLICE_S = 20.0
"""How long a task stores pieces before others have their turn."""
CHECK_S, CHECK_BYTES = 120, 8 * 2**30
"""What the engine's check may take: time by the clock, and address space."""
JOURNAL = ".journal.json"
_LOCK = 0x6D6F646C
_NOT_FOR_THE_ENGINE = ("PALESTRA_SECRET_KEY", "DATABASE_URL", "REDIS_URL")
_LONGEST_LICENCE_BYTES = 2**17

log = structlog.get_logger(__name__)


class Cancelled(Exception):
    """Somebody asked for it."""


@app.task(name=queue.STORE_MODEL, soft_time_limit=200, time_limit=240)
def store_model(version_id: str, progress_mark: str) -> None:
    """Do what is next for the version.  A late message, and a second one at the same time, do nothing."""
    with _alone(int(version_id)) as alone:
        version = ModelVersion.objects.select_related("model").filter(id=int(version_id)).first() if alone else None
        if version is None or not version.is_unfinished or version.progress_mark != progress_mark:
            return
        try:
            _next_step(version)
        except Cancelled:
            _end(version, VersionState.CANCELLED)
        except SourceRefused as refused:
            _fail(version, refused.problem)
        except (OSError, SoftTimeLimitExceeded) as error:
            _fail(version, _out_of_order(version, error))
        version.refresh_from_db(fields=["state", "bytes_done"])
        if version.is_unfinished:
            queue.send(queue.STORE_MODEL, version_id, version.progress_mark)


@contextmanager
def _alone(version_id: int) -> Iterator[bool]:
    """Whether nobody else works for this version.  The lock goes with the connection if the process dies."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [_LOCK, version_id])
        alone = cursor.fetchone()[0]
    try:
        yield alone
    finally:
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [_LOCK, version_id])


def _next_step(version: ModelVersion) -> None:
    if version.cancel_asked:
        raise Cancelled
    if version.state == VersionState.CHECKING:
        _check(version)
        return
    files = source_files(version)
    _announce(version, sum(file.size for file in files))
    if _store(version, files, until=time.monotonic() + SLICE_S):
        _seal(version)


def _announce(version: ModelVersion, size_bytes: int) -> None:
    """A tar's files, and a folder that has grown, are known only now."""
    if size_bytes > version.bytes:
        try:
            refuse_beyond_room(version.model.team, size_bytes - version.bytes)
        except Refused as refused:
            problem = refused.problems[0]
            raise SourceRefused(problem.field, str(problem.value), problem.message, problem.remedy) from refused
    if size_bytes != version.bytes:
        version.bytes = size_bytes
        version.save(update_fields=["bytes"])


# Storing
def _store(version: ModelVersion, files: list[SourceFile], *, until: float) -> bool:
    """Store pieces that are not stored yet; return whether all are.  Raises Cancelled and SourceRefused."""
    folder = _partial(version)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stored = _journal(folder)
    sizes = {file.name: file.size for file in files}
    if changed := [name for name, file in stored.items() if sizes.get(name) != file.bytes]:
        raise SourceRefused("files", changed[0], f"{changed[0]} has changed while it was stored", "import it again")
    for file in files:
        for number in range(len(stored[file.name].pieces) if file.name in stored else 0, _pieces(file.size)):
            if time.monotonic() > until:
                return False
            digest = _store_piece(folder / file.name, file, number)
            before = stored[file.name].pieces if file.name in stored else []
            stored[file.name] = StoredFile(bytes=file.size, pieces=[*before, digest])
            _write_journal(folder, stored)
            _report(version, sum(_stored_bytes(name) for name in stored.values()))
        if file.size == 0:
            (folder / file.name).touch(mode=0o600)
            stored[file.name] = StoredFile(bytes=0, pieces=[])
    _write_journal(folder, stored)
    return True


def _pieces(size: int) -> int:
    return -(-size // PIECE_BYTES)


def _stored_bytes(file: StoredFile) -> int:
    return min(file.bytes, len(file.pieces) * PIECE_BYTES)


def _store_piece(path: Path, file: SourceFile, number: int) -> str:
    """The piece's SHA-256, once the piece is on the disk."""
    offset = number * PIECE_BYTES
    data = file.read(offset, min(PIECE_BYTES, file.size - offset))
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as opened:
        opened.seek(offset)
        opened.write(data)
        opened.truncate()
        opened.flush()
        os.fsync(opened.fileno())
    return hashlib.sha256(data).hexdigest()


def _journal(folder: Path) -> dict[str, StoredFile]:
    try:
        written = json.loads((folder / JOURNAL).read_bytes())
    except FileNotFoundError:
        return {}
    return {name: StoredFile.model_validate(file) for name, file in written.items()}


def _write_journal(folder: Path, stored: dict[str, StoredFile]) -> None:
    _write_durably(folder / JOURNAL, json.dumps({name: file.model_dump() for name, file in stored.items()}))


def _write_durably(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _fsync(path.parent)


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _report(version: ModelVersion, bytes_done: int) -> None:
    """Raises Cancelled where somebody has asked for it in the meantime."""
    version.bytes_done = bytes_done
    rows = ModelVersion.objects.filter(id=version.id)
    rows.update(bytes_done=bytes_done, heartbeat_at=timezone.now())
    if not rows.filter(cancel_asked=False).exists():
        raise Cancelled


def _seal(version: ModelVersion) -> None:
    folder = _partial(version)
    text = ModelManifest(files=_journal(folder)).text()
    _write_durably(folder / MANIFEST, text)
    version.sha256 = hashlib.sha256(text.encode()).hexdigest()
    version.state, version.state_since = VersionState.CHECKING, timezone.now()
    version.heartbeat_at = version.state_since
    version.save(update_fields=["sha256", "state", "state_since", "heartbeat_at"])


# Checking
def _check(version: ModelVersion) -> None:
    """Raises SourceRefused for what the engine would refuse."""
    ModelVersion.objects.filter(id=version.id).update(heartbeat_at=timezone.now())
    partial, published = _partial(version), content_folder(version.model.team_id, version.sha256)
    folder = partial if partial.is_dir() else published
    (folder / JOURNAL).unlink(missing_ok=True)
    report = engine_report(folder)
    if report.problem is not None:
        problem = report.problem
        raise SourceRefused(problem.field, str(problem.value), problem.message, problem.remedy)
    _publish(version, report, folder)


def engine_report(folder: Path) -> ModelReport:
    """What the engine says of the folder, in a process that may die of it.  Raises SourceRefused if it does."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_THE_ENGINE}
    command = [sys.executable, "-m", "engine", "model-check", str(folder), "--json"]
    process = subprocess.Popen(
        command, cwd=settings.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=_limit, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=CHECK_S)
        return ModelReport.model_validate_json(output)
    except subprocess.TimeoutExpired:
        how = f"took more than {CHECK_S} s"
    except ValidationError:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
        how = f"failed: {last[0][:300]}"
    finally:
        _kill(process)
    message = f"the engine's check of the model {how}"
    raise SourceRefused("folder", folder.name[:12], message, "use the model's own files")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """It and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CHECK_S, CHECK_S))
    resource.setrlimit(resource.RLIMIT_AS, (CHECK_BYTES, CHECK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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
            version.save()
        else:
            _put_in_place(folder, version.folder)
            _make_ready(version, report, licence_text)
    _clear(version)


def _put_in_place(folder: Path, published: Path) -> None:
    """Another model of the team may have the same content, and share its folder."""
    if folder != published and not published.exists():
        for file in folder.iterdir():
            file.chmod(0o400)
        folder.rename(published)
        _fsync(published.parent)


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
    value = problem.value if isinstance(problem.value, int) else str(problem.value)[:500].replace("\0", "")
    kept = {"field": problem.field, "message": problem.message[:2000].replace("\0", ""), "remedy": problem.remedy}
    version.problem = kept | {"value": value}
    _end(version, VersionState.FAILED)
    log.info("model version failed", version=version.id, problem=kept["message"])


def _out_of_order(version: ModelVersion, error: Exception) -> Problem:
    reason = error.strerror if isinstance(error, OSError) else "it took too long"
    return Problem("files", version.model.name, f"it could not be stored: {reason or error}", "try it again")


def _end(version: ModelVersion, state: VersionState) -> None:
    version.state, version.state_since = state, timezone.now()
    rows = ModelVersion.objects.filter(id=version.id, state__in=UNFINISHED)
    rows.update(state=state, state_since=version.state_since, problem=version.problem)
    _clear(version)


def _clear(version: ModelVersion) -> None:
    """Remove what a finished version needs no more."""
    shutil.rmtree(_partial(version), ignore_errors=True)
    if version.origin["kind"] == "upload":
        shutil.rmtree(upload_folder(version.origin["upload"]), ignore_errors=True)
        UploadPart.objects.filter(upload__version=version).delete()


def _partial(version: ModelVersion) -> Path:
    return partial_folder(version.model.team_id, version.id)
