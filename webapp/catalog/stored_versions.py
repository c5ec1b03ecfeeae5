"""What can be done to versions of every kind that a worker stores: cancel one, find a ready one by its name."""

import re
from typing import TypeVar

from django.db import transaction

from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.version_models import StoredVersion
from webapp.refusals import Invalid, Refused

Version = TypeVar("Version", bound=StoredVersion)
READY = "ready"


def locked(version: Version) -> Version:
    """The row as it is now, until the transaction ends."""
    rows = type(version)._default_manager.select_for_update(of=("self",))
    return rows.select_related(f"{version.of_family}__team").get(pk=version.pk)


@transaction.atomic
def cancel_stored(version: Version, *, acting_user: User) -> Version:
    """Ask the worker to stop; what it has stored is removed.  Raises Refused for a version that is finished."""
    version = locked(version)
    if not version.is_unfinished:
        raise Refused(f"the version is {version.state}, and cannot be cancelled")
    if not version.cancel_asked:
        version.cancel_asked = True
        version.save(update_fields=["cancel_asked"])
        audit(version, "cancel", acting_user, name=version.family.name)
        queue.send(version.store_message, str(version.pk), version.progress_mark)
    return version


def audit(version: StoredVersion, verb: str, acting_user: User, **details: object) -> None:
    record(version.team, acting_user, f"{version.noun}.{verb}", f"{version.noun}-version {version.pk}", **details)


def is_number(text: str) -> bool:
    """Whether a version may have this number: written as its name has it, by which others look for it."""
    return re.fullmatch(r"[1-9][0-9]{0,8}", text) is not None


def ready_stored(kind: type[Version], team: Team, named: str, field: str) -> Version:
    """The team's version ``name@number``, its row locked until the transaction ends.  Raises Invalid at ``field``."""
    name, _, number = named.rpartition("@")
    found = None
    if is_number(number):
        rows = kind._default_manager.select_for_update(of=("self",)).select_related(kind.of_family)
        of_name = {f"{kind.of_family}__team": team, f"{kind.of_family}__name": name}
        found = rows.filter(number=int(number), **of_name).first()
    if found is None or not found.is_ready:
        raise _not_there(kind, team, named, field)
    return found


def _not_there(kind: type[StoredVersion], team: Team, named: str, field: str) -> Invalid:
    rows = kind._default_manager.filter(**{f"{kind.of_family}__team": team, "state": READY})
    ready, name, noun = rows.select_related(kind.of_family), named.rpartition("@")[0], kind.noun.replace("-", " ")
    own = [str(version) for version in ready.filter(**{f"{kind.of_family}__name": name}).order_by("-number")[:5]]
    others = own or [str(version) for version in ready.order_by("-pk")[:5]]
    remedy = f"use one of: {', '.join(others)}" if others else f"import a {noun} first"
    message = f"your team has no such version of a {noun} that is ready"
    return Invalid(f"there is no such {noun}", [Problem(field, named, message, remedy)])
