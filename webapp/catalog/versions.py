"""How versions of a model begin, whatever they come from, and how much room a team's versions may take.

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
from webapp.catalog.models import (
    OPEN,
    UNFINISHED,
    DatasetVersion,
    Model,
    ModelVersion,
    PackageVersion,
    TaskSetVersion,
    Upload,
    VersionState,
)
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


def refuse_name(name: str, what: str = "model", example: str = "qwen3-4b") -> None:
    """Raises Invalid."""
    if not _NAME.fullmatch(name):
        message = f"a {what}'s name has 1 to 100 letters, digits and . _ -, and begins with no dot"
        raise Invalid.field("name", name, message, f"choose another name, such as {example}")


def refuse_beyond_room(team: Team, size_bytes: int) -> None:
    """Raises Refused where the team's versions and uploads would take more of the disk than it may have."""
    most, used = settings.PALESTRA_MODEL_BYTES_PER_TEAM, bytes_of(team)
    if used + size_bytes > most:
        message = f"your team's models, datasets and tasks take {used} bytes, and may take {most}"
        problem = Problem("bytes", size_bytes, message, "delete versions that nobody needs")
        raise Refused("there is no room for it", [problem])


def bytes_of(team: Team) -> int:
    """What the team's versions take of the disk, or will take when they are stored, and its uploads."""
    stored = ModelVersion.objects.filter(model__team=team, state__in=UNFINISHED | {VersionState.READY})
    versions = stored.aggregate(total=Sum("bytes"))["total"] or 0
    # A version that failed keeps its files, so that it can be prepared in another way.
    datasets = DatasetVersion.objects.filter(dataset__team=team).exclude(state__in=["cancelled", "same"])
    datasets = datasets.exclude(state="failed", source_report__isnull=True)
    versions += datasets.aggregate(total=Sum("bytes"))["total"] or 0
    for kind in (TaskSetVersion, PackageVersion):
        kept = kind.objects.filter(**{f"{kind.of_family}__team": team}, state__in=kind.keeps_content)
        versions += kept.aggregate(total=Sum("bytes"))["total"] or 0
    uploads = Upload.objects.filter(OPEN, team=team).values_list("files", flat=True)
    return int(versions) + sum(int(file["bytes"]) for files in uploads for file in files)
