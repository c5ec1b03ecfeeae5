"""Uploading a model, a dataset or tasks in parts, so that a cut upload goes on where it stopped.

    announce   the files and their sizes            -> an upload, and how large a part is
    put        part n of a file with its SHA-256    -> kept, or the same part again
    ask        which parts are there
    complete   when all are                         -> a version, which a worker stores

A part's file is on the disk before its row is, so a kill -9 loses at most the part that was on its way.  The first
content of a part stays; another one under its number is refused.  Nothing of an upload is read here but its bytes.
"""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from django.db import transaction
from django.utils import timezone

from engine.spec.dataset_preparation import Preparation
from engine.spec.problems import Problem
from engine.spec.strict import Strict
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.checked_models import CheckedVersion
from webapp.catalog.checked_versions import begin_checked, refuse_checked_name
from webapp.catalog.dataset_file_names import problem_with_dataset_file
from webapp.catalog.dataset_versions import begin_dataset, refuse_dataset_name
from webapp.catalog.file_names import MOST_FILES, problem_with
from webapp.catalog.models import (
    OPEN,
    DatasetVersion,
    ModelVersion,
    PackageVersion,
    TaskSetVersion,
    Upload,
    UploadKind,
    UploadPart,
)
from webapp.catalog.origin import UploadOrigin
from webapp.catalog.package_versions import problem_with_package_file
from webapp.catalog.storage import part_file, upload_folder
from webapp.catalog.task_versions import problem_with_tasks_file
from webapp.catalog.versions import begin_version, refuse_beyond_room, refuse_name
from webapp.refusals import Invalid, Refused

PART_BYTES = 16 * 2**20
MOST_OPEN = 20
"""Uploads of a team that are on their way."""
LARGEST_FILE_BYTES = 2**40
KEPT_FOR = timedelta(days=7)
"""After its last part; then an upload that was not completed is removed."""
_CHUNK_BYTES = 2**20
Checked = TypeVar("Checked", bound=CheckedVersion)
CHECKED: Mapping[str, type[CheckedVersion]] = {UploadKind.TASKS: TaskSetVersion, UploadKind.PACKAGE: PackageVersion}
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Body(Protocol):
    """What a request is read from."""

    def read(self, size: int) -> bytes: ...


@transaction.atomic
def begin_upload(
    team: Team, name: str, files: Sequence[Mapping[str, Any]], *, acting_user: User, kind: str = UploadKind.MODEL
) -> Upload:
    """Raises Invalid for files that no version may have, and Refused where there is no room for them."""
    if kind == UploadKind.DATASET:
        refuse_dataset_name(name)
    elif kind in CHECKED:
        refuse_checked_name(CHECKED[kind], name)
    else:
        refuse_name(name)
    _refuse_files(files, kind)
    Team.objects.select_for_update().get(id=team.id)
    if Upload.objects.filter(OPEN, team=team).count() >= MOST_OPEN:
        raise Refused(f"your team has {MOST_OPEN} uploads on their way; complete or delete one")
    refuse_beyond_room(team, sum(int(file["bytes"]) for file in files))
    announced = [{"name": file["name"], "bytes": file["bytes"]} for file in files]
    upload = Upload.objects.create(team=team, kind=kind, name=name, files=announced, created_by=acting_user)
    record(team, acting_user, "upload.begin", f"upload {upload.id}", name=name, kind=kind)
    return upload


def _refuse_files(files: Sequence[Mapping[str, Any]], kind: str) -> None:
    if not 1 <= len(files) <= MOST_FILES:
        remedy = f"announce 1 to {MOST_FILES} files, or one .tar"
        raise Invalid.field("files", len(files), f"an upload has 1 to {MOST_FILES} files", remedy)
    found = (_problem_with(file, f"files.{number}", kind) for number, file in enumerate(files))
    problems = [problem for problem in found if problem]
    names = [file["name"] for file in files]
    for number, name in enumerate(names):
        if name in names[:number]:
            problems.append(Problem(f"files.{number}.name", name, "there are two files of this name", "leave one out"))
    archives = [name for name in names if name.lower().endswith(".tar")]
    if archives and len(files) > 1:
        problems.append(Problem("files", archives[0], f"a tar holds the whole {kind}", "announce it alone"))
    elif kind in CHECKED and len(files) > 1:
        remedy = f"put them into one tar: tar -cf {kind}.tar -C FOLDER ."
        problems.append(Problem("files", len(files), f"{CHECKED[kind].plural} come as one file each", remedy))
    if problems:
        raise Invalid(f"these files cannot be a version of a {kind}", problems)


def _problem_with(file: Mapping[str, Any], field: str, kind: str) -> Problem | None:
    name, size = file["name"], file["bytes"]
    if not 1 <= size <= LARGEST_FILE_BYTES:
        message = f"{name} has 1 to {LARGEST_FILE_BYTES} bytes"
        return Problem(f"{field}.bytes", size, message, "announce its size, and leave empty files out")
    if kind == UploadKind.DATASET:
        return problem_with_dataset_file(name, size, f"{field}.name")
    if kind == UploadKind.TASKS:
        return problem_with_tasks_file(name, f"{field}.name")
    if kind == UploadKind.PACKAGE:
        return problem_with_package_file(name, f"{field}.name")
    is_tar = name.lower().endswith(".tar")
    return problem_with(name.lower().removesuffix(".tar") + ".safetensors" if is_tar else name, size, f"{field}.name")


def parts_of(size: int) -> int:
    return -(-size // PART_BYTES)


def part_bytes(upload: Upload, file: int, number: int) -> int:
    """How long the part must be.  Raises Invalid for one that the upload does not have."""
    if not 0 <= file < len(upload.files):
        raise Invalid.field("file", file, f"the upload has {len(upload.files)} files", "count them from 0")
    size = int(upload.files[file]["bytes"])
    if not 0 <= number < parts_of(size):
        message = f"{upload.files[file]['name']} has {parts_of(size)} parts of {PART_BYTES} bytes"
        raise Invalid.field("number", number, message, "count them from 0")
    return min(PART_BYTES, size - number * PART_BYTES)


def put_part(upload: Upload, file: int, number: int, sha256: str, body: Body) -> UploadPart:
    """Keep a part.  The same part again changes nothing.

    Raises Invalid for another length or digest, and Refused for another content than the part has and for an upload
    that is complete.
    """
    expected = part_bytes(upload, file, number)
    if not _SHA256.fullmatch(sha256):
        raise Invalid.field("sha256", sha256, "it is no SHA-256", "give the part's as 64 hexadecimal digits")
    _refuse_completed(upload)
    arriving = upload_folder(upload.id) / f".arriving-{secrets.token_hex(8)}"
    arriving.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _receive(body, arriving, expected, sha256)
        return _kept(upload, file, number, sha256, arriving)
    except FileNotFoundError:  # its folder went away meanwhile
        raise Refused("the upload was completed or deleted while the part came") from None
    finally:
        arriving.unlink(missing_ok=True)


def _receive(body: Body, path: Path, expected: int, sha256: str) -> None:
    digest, length = hashlib.sha256(), 0
    with path.open("xb") as file:
        while chunk := body.read(_CHUNK_BYTES):
            length += len(chunk)
            if length > expected:
                raise Invalid.field("body", length, f"the part has {expected} bytes", "send no more than that")
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if length != expected:
        raise Invalid.field("body", length, f"the part has {expected} bytes", "send all of it")
    if digest.hexdigest() != sha256:
        raise Invalid.field("sha256", sha256, "that is not what has arrived", "send the part again")


def _kept(upload: Upload, file: int, number: int, sha256: str, arriving: Path) -> UploadPart:
    """The row decides which content a part has; a file without a row is nobody's."""
    arriving.rename(part_file(upload.id, file, number, sha256))
    with transaction.atomic():
        upload = Upload.objects.select_for_update().get(id=upload.id)
        _refuse_completed(upload)
        part, _ = upload.parts.get_or_create(file=file, number=number, defaults={"sha256": sha256})
        upload.used_at = timezone.now()
        upload.save(update_fields=["used_at"])
    if part.sha256 != sha256:
        part_file(upload.id, file, number, sha256).unlink(missing_ok=True)
        raise Refused(f"part {number} of file {file} is there with another content; begin a new upload for it")
    return part


def _refuse_completed(upload: Upload) -> None:
    if upload.is_complete:
        raise Refused("the upload is complete, and takes no more parts")


def _whole(upload: Upload) -> Upload:
    """The upload with its row locked.  Raises Refused while a part is missing, unless it was completed before."""
    upload = Upload.objects.select_for_update(of=("self",)).select_related("team").get(id=upload.id)
    parts = () if upload.is_complete else range(len(upload.files))
    if missing := [problem for number in parts if (problem := _missing(upload, number))]:
        raise Refused("the upload has not all of its parts", missing[:20])
    return upload


@transaction.atomic
def complete_upload(upload: Upload, *, acting_user: User) -> ModelVersion:
    """The version that it becomes; the second time the same one.  Raises Refused while a part is missing."""
    upload = _whole(upload)
    if upload.version is not None:
        return upload.version
    size_bytes = sum(int(file["bytes"]) for file in upload.files)
    upload.version = begin_version(
        upload.team,
        upload.name,
        UploadOrigin(upload=str(upload.id), files=[file["name"] for file in upload.files]),
        acting_user=acting_user,
        size_bytes=size_bytes,
        released_bytes=size_bytes,
    )
    upload.save(update_fields=["version"])
    return upload.version


@transaction.atomic
def complete_dataset_upload(
    upload: Upload, preparation: Preparation | None = None, *, acting_user: User
) -> DatasetVersion:
    """The version that it becomes; the second time the same one.  Raises Refused while a part is missing."""
    upload = _whole(upload)
    if upload.dataset_version is None:
        size_bytes = sum(int(file["bytes"]) for file in upload.files)
        upload.dataset_version = begin_dataset(
            upload.team,
            upload.name,
            UploadOrigin(upload=str(upload.id), files=[file["name"] for file in upload.files]),
            acting_user=acting_user,
            size_bytes=size_bytes,
            released_bytes=size_bytes,
            preparation=preparation,
        )
        upload.save(update_fields=["dataset_version"])
    return upload.dataset_version


@transaction.atomic
def complete_checked_upload(
    kind: type[Checked], upload: Upload, check: Strict | None = None, *, acting_user: User
) -> Checked:
    """The version that it becomes; the second time the same one.  Raises Refused while a part is missing."""
    upload = _whole(upload)
    version: Checked | None = getattr(upload, kind.of_upload)
    if version is None:
        size_bytes = sum(int(file["bytes"]) for file in upload.files)
        version = begin_checked(
            kind,
            upload.team,
            upload.name,
            UploadOrigin(upload=str(upload.id), files=[file["name"] for file in upload.files]),
            acting_user=acting_user,
            size_bytes=size_bytes,
            released_bytes=size_bytes,
            check=check,
        )
        setattr(upload, kind.of_upload, version)
        upload.save(update_fields=[kind.of_upload])
    return version


def _missing(upload: Upload, file: int) -> Problem | None:
    there = set(upload.parts.filter(file=file).values_list("number", flat=True))
    missing = [number for number in range(parts_of(int(upload.files[file]["bytes"]))) if number not in there]
    if not missing:
        return None
    shown = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
    name = upload.files[file]["name"]
    return Problem(f"files.{file}", name, f"{len(missing)} parts of {name} are missing", f"send the parts {shown}")


@transaction.atomic
def delete_upload(upload: Upload, *, acting_user: User) -> None:
    """Raises Refused for one that was completed: its version has it."""
    upload = Upload.objects.select_for_update(of=("self",)).select_related("team").get(id=upload.id)
    if upload.is_complete:
        raise Refused("the upload is complete; cancel or delete its version")
    record(upload.team, acting_user, "upload.delete", f"upload {upload.id}", name=upload.name, kind=upload.kind)
    _forget(upload)


def expires_at(upload: Upload) -> datetime:
    return upload.used_at + KEPT_FOR


def forget_old_uploads() -> int:
    """Remove what nobody went on with; how many there were."""
    old = list(Upload.objects.filter(OPEN, used_at__lt=timezone.now() - KEPT_FOR))
    for upload in old:
        with transaction.atomic():
            still = Upload.objects.select_for_update().filter(OPEN, id=upload.id, used_at=upload.used_at)
            if (unused := still.first()) is not None:
                _forget(unused)
    return len(old)


def _forget(upload: Upload) -> None:
    folder = upload_folder(upload.id)
    upload.delete()
    transaction.on_commit(lambda: shutil.rmtree(folder, ignore_errors=True))
