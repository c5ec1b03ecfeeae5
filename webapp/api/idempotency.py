"""``Idempotency-Key``: a POST that is sent twice acts once and answers the same twice.

The answer is stored in the transaction that did the work, so after any crash either both exist or
neither.  Answers are kept for a day, per team.
"""

import hashlib
from collections.abc import Callable
from datetime import timedelta

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from ninja import Status
from pydantic import BaseModel

from webapp.accounts.models import IdempotentResponse, Team
from webapp.refusals import Invalid, Refused

KEPT_FOR = timedelta(hours=24)


def once(request: HttpRequest, team: Team, act: Callable[[], tuple[int, BaseModel]]) -> Status[object]:
    """Answer with ``act()``, or with what it answered the first time.  Raises Refused for a key with another body."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return Status(*act())
    if not 1 <= len(key) <= 200:
        raise Invalid.field("Idempotency-Key", key, "a key has 1 to 200 characters", "use e.g. a UUID")
    fingerprint = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode() + request.body).hexdigest()
    with transaction.atomic():
        stored, is_first = _claimed(team, key, fingerprint)
        if stored.fingerprint != fingerprint:
            raise Refused("this Idempotency-Key was used for another request; take a new one")
        if is_first:
            status, answer = act()
            stored.status, stored.body = status, answer.model_dump(mode="json")
            stored.save(update_fields=["status", "body"])
        return Status(stored.status, stored.body)


def _claimed(team: Team, key: str, fingerprint: str) -> tuple[IdempotentResponse, bool]:
    """The key's row, and whether it is new.  A second request waits here until the first has committed."""
    IdempotentResponse.objects.filter(team=team, key=key, created_at__lt=timezone.now() - KEPT_FOR).delete()
    return IdempotentResponse.objects.get_or_create(team=team, key=key, defaults={"fingerprint": fingerprint})


def forget_old_answers() -> int:
    return IdempotentResponse.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).delete()[0]
