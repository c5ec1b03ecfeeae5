"""What can be done to versions of a model, whatever they come from: begin one, cancel it, find it by its name.

The files are a worker's business (``workers/model_store.py``); this module writes rows and sends messages.
"""

import re

from django.conf import settings
from django.db import transaction
from django.db.models import Sum

from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import UNFINISHED, Model, ModelVersion, Upload, VersionState
from webapp.catalog.origin import CheckpointOrigin, FolderOrigin, UploadOrigin
from webapp.refusals import Invalid, Refused

MOST_UNFINISHED = 20
"""Imports of a team at the same time; each waits for the workers that launch everybody's runs."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@transaction.atomic
def begin_version(
    team: Team,
    name: str,
    origin: FolderOrigin | UploadOrigin | CheckpointOrigin,
    *,
    acting_user: User,
    size_bytes: int,
    released_bytes: int = 0,
    parent: ModelVersion | None = None,
) -> ModelVersion:
    """Queue the making of a version; a worker stores its files after the commit.

    ``released_bytes`` are counted for the upload that it is made of, and no more from now on.  Raises Invalid and
    Refused.
    """
    refuse_name(name)
    Team.objects.select_for_update().get(id=team.id)  # two who begin at once share the room that is left
    refuse_beyond_room(team, size_bytes - released_bytes)
    if ModelVersion.objects.filter(model__team=team, state__in=UNFINISHED).count() >= MOST_UNFINISHED:
        raise Refused(f"your team imports {MOST_UNFINISHED} versions already; wait for one, or cancel one")
    model, _ = Model.objects.get_or_create(team=team, name=name, defaults={"created_by": acting_user})
    version = ModelVersion.objects.create(
        model=model, origin=origin.model_dump(), parent=parent, bytes=size_bytes, created_by=acting_user
    )
    record(team, acting_user, f"model.{_VERBS[origin.kind]}", f"model-version {version.id}", name=name)
    queue.send(queue.STORE_MODEL, str(version.id), version.progress_mark)
    return version


_VERBS = {"folder": "import", "upload": "upload", "checkpoint": "promote"}


def refuse_name(name: str) -> None:
    """Raises Invalid."""
    if not _NAME.fullmatch(name):
        message = "a model's name has 1 to 100 letters, digits and . _ -, and begins with no dot"
        raise Invalid.field("name", name, message, "choose another name, such as qwen3-4b")


def refuse_beyond_room(team: Team, size_bytes: int) -> None:
    """Raises Refused where the team's versions and uploads would take more of the disk than it may have."""
    most, used = settings.PALESTRA_MODEL_BYTES_PER_TEAM, bytes_of(team)
    if used + size_bytes > most:
        message = f"your team's models take {used} bytes, and may take {most}"
        problem = Problem("bytes", size_bytes, message, "delete versions that nobody needs")
        raise Refused("there is no room for it", [problem])


def bytes_of(team: Team) -> int:
    """What the team's versions take of the disk, or will take when they are stored, and its uploads."""
    stored = ModelVersion.objects.filter(model__team=team, state__in=UNFINISHED | {VersionState.READY})
    versions = stored.aggregate(total=Sum("bytes"))["total"] or 0
    uploads = Upload.objects.filter(team=team, version=None).values_list("files", flat=True)
    return int(versions) + sum(int(file["bytes"]) for files in uploads for file in files)


@transaction.atomic
def cancel_version(version: ModelVersion, *, acting_user: User) -> ModelVersion:
    """Ask the worker to stop; what it has stored is removed.  Raises Refused for a version that is finished."""
    version = ModelVersion.objects.select_for_update(of=("self",)).select_related("model__team").get(id=version.id)
    if version.state not in UNFINISHED:
        raise Refused(f"the version is {version.state}, and cannot be cancelled")
    if not version.cancel_asked:
        version.cancel_asked = True
        version.save(update_fields=["cancel_asked"])
        record(version.model.team, acting_user, "model.cancel", f"model-version {version.id}", name=version.model.name)
        queue.send(queue.STORE_MODEL, str(version.id), version.progress_mark)
    return version


def ready_version(team: Team, named: str) -> ModelVersion:
    """The team's version ``name@number``, its row locked until the transaction ends.  Raises Invalid."""
    name, _, number = named.rpartition("@")
    found = None
    if number.isascii() and number.isdigit() and len(number) < 10:
        rows = ModelVersion.objects.select_for_update(of=("self",)).select_related("model")
        found = rows.filter(model__team=team, model__name=name, number=int(number)).first()
    if found is None or found.state != VersionState.READY:
        raise _not_there(team, named, name)
    return found


def _not_there(team: Team, named: str, name: str) -> Invalid:
    ready = ModelVersion.objects.filter(model__team=team, state=VersionState.READY).select_related("model")
    own = [str(version) for version in ready.filter(model__name=name).order_by("-number")[:5]]
    others = own or [str(version) for version in ready.order_by("-id")[:5]]
    remedy = f"use one of: {', '.join(others)}" if others else "import a model first"
    message = "your team has no such version of a model that is ready"
    return Invalid("there is no such model to begin from", [Problem("model.catalog", named, message, remedy)])
