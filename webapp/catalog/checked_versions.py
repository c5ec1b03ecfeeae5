"""What can be done to versions that are checked: begin one, check it, publish it.

The files are a worker's business (``workers/checked_store.py``), and so are checks (``workers/checks.py``); this module
writes rows and sends messages.
"""

from typing import Any, TypeVar
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from engine.spec.problems import Problem
from engine.spec.strict import Strict
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.checked_models import CheckedState, CheckedVersion
from webapp.catalog.origin import FolderOrigin, UploadOrigin
from webapp.catalog.stored_versions import audit, locked
from webapp.catalog.versions import refuse_beyond_room, refuse_name
from webapp.refusals import Refused

Version = TypeVar("Version", bound=CheckedVersion)
MOST_UNFINISHED = 20
"""Versions of a kind that a team stores or checks at the same time."""


def refuse_checked_name(kind: type[CheckedVersion], name: str) -> None:
    """Raises Invalid."""
    refuse_name(name, kind.noun.replace("-", " "), kind.example)


@transaction.atomic
def begin_checked(
    kind: type[Version],
    team: Team,
    name: str,
    origin: FolderOrigin | UploadOrigin,
    *,
    acting_user: User,
    size_bytes: int,
    released_bytes: int = 0,
    check: Strict | None = None,
) -> Version:
    """Queue the storing of a version's files.  With ``check`` they are then checked, without it they wait for one.

    ``released_bytes`` are counted for the upload that it is made of, and no more from now on.  Raises Invalid and
    Refused.
    """
    refuse_checked_name(kind, name)
    Team.objects.select_for_update().get(id=team.id)  # two who begin at once share the room that is left
    refuse_beyond_room(team, size_bytes - released_bytes)
    _refuse_too_many(kind, team)
    families: Any = kind._meta.get_field(kind.of_family).related_model
    family, _ = families.objects.get_or_create(team=team, name=name, defaults={"created_by": acting_user})
    version = kind._default_manager.create(
        **{kind.of_family: family},
        origin=origin.model_dump(),
        check_settings=None if check is None else check.model_dump(mode="json"),
        bytes=size_bytes,
        created_by=acting_user,
    )
    verb = "import" if origin.kind == "folder" else "upload"
    record(team, acting_user, f"{kind.noun}.{verb}", f"{kind.noun}-version {version.pk}", name=name)
    queue.send(kind.store_message, str(version.pk), version.progress_mark)
    return version


def _refuse_too_many(kind: type[CheckedVersion], team: Team) -> None:
    unfinished = kind._default_manager.filter(**{f"{kind.of_family}__team": team}, state__in=kind.unfinished)
    if unfinished.count() >= MOST_UNFINISHED:
        raise Refused(f"your team imports and checks {MOST_UNFINISHED} {kind.plural} already; wait for one")


@transaction.atomic
def check_version(version: Version, check: Strict, *, acting_user: User) -> Version:
    """Queue a check, which forgets the last one.  Raises Refused where there is nothing to check."""
    Team.objects.select_for_update().get(id=version.team.id)
    version = locked(version)
    if version.state == CheckedState.CHECKING and version.check_settings == check.model_dump(mode="json"):
        return version
    if version.state != CheckedState.STORED:
        raise Refused(f"the version is {version.state}; only one that is stored and not published is checked")
    _refuse_too_many(type(version), version.team)
    begin_check(version, check)
    audit(version, "check", acting_user, name=version.family.name)
    return version


def begin_check(version: CheckedVersion, check: Strict) -> None:
    """Forget the last check, and send the message of another one.  The version's row is the caller's."""
    version.forget_check()
    now = timezone.now()
    version.state, version.state_since, version.heartbeat_at = CheckedState.CHECKING, now, now
    version.check_settings, version.check_id = check.model_dump(mode="json"), uuid4()
    version.check_jobs, version.log_bytes, version.waiting_for, version.problem = 0, 0, "", None
    version.problems, version.faults, version.cancel_asked = [], 0, False
    version.save()
    queue.send(version.store_message, str(version.pk), version.progress_mark)


def lock_to_publish(version: Version) -> Version:
    """The row as it is now, until the transaction ends.  Raises Refused for one that is not stored."""
    Team.objects.select_for_update().get(id=version.team.id)
    version = locked(version)
    if not version.is_ready and version.state != CheckedState.STORED:
        raise Refused(f"the version is {version.state}; only one that is stored is published")
    return version


def publish_checked(version: Version, faults: list[Problem], refusal: str, *, acting_user: User) -> Version:
    """Give a version that was locked for it its number, by which runs name it.  Raises Refused where it has faults."""
    if version.is_ready:
        return version
    if faults:
        raise Refused(refusal, faults[:100])
    family = version.family
    family.last_number += 1
    family.save(update_fields=["last_number"])
    version.number, version.state, version.state_since = family.last_number, CheckedState.READY, timezone.now()
    version.save(update_fields=["number", "state", "state_since"])
    audit(version, "publish", acting_user, name=str(version), sha256=version.sha256)
    return version
