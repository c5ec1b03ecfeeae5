"""What can be done to serving keys: make, revoke; and what each has used.

Callers have been through the door.  What is served follows the rows (``workers/serving.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import ModelVersion, VersionState
from webapp.refusals import Invalid, Refused, TooMany
from webapp.runs.models import Run
from webapp.serving.models import ServingKey, ServingUsage

MOST_KEYS = 200
"""The most keys of a team that open something."""
LONGEST_DAYS = 3650


@dataclass(frozen=True)
class KeyLimits:
    """As ``engine.spec.serving.ServedKey`` bounds them."""

    requests_per_minute: int = 60
    parallel: int = 4
    tokens_per_day: int | None = None
    expires_in_days: int | None = None


@dataclass(frozen=True)
class CreatedServingKey:
    key: ServingKey
    text: str
    """The whole key, shown once."""


@dataclass(frozen=True)
class UsageDay:
    day: date
    calls: int
    prompt_tokens: int
    sampled_tokens: int
    refused: dict[str, int]
    """Requests that were not answered, by why."""


@transaction.atomic
def serve_checkpoint(
    run: Run, step: int | None, name: str, limits: KeyLimits, *, acting_user: User
) -> CreatedServingKey:
    """A key for a checkpoint of the run, by default its newest.  Raises Refused and Invalid."""
    steps = sorted(checkpoint.step for checkpoint in run.checkpoints_on_disk)
    if not steps:
        raise Refused(f"run #{run.number} has no checkpoint on the disk to be served")
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        shown = ", ".join(map(str, steps))
        raise Invalid.field("step", chosen, "the run has no checkpoint of this step on the disk", f"use one of {shown}")
    model_name = f"{run.team.slug}/runs/{run.number}@{chosen}"  # no model of the catalog has a slash in its name
    return _create(run.team, name, limits, acting_user, model_name, run=run, step=chosen)


@transaction.atomic
def serve_version(version: ModelVersion, name: str, limits: KeyLimits, *, acting_user: User) -> CreatedServingKey:
    """A key for a version of a model.  Raises Refused for one that is not ready, and Invalid."""
    rows = ModelVersion.objects.select_for_update(of=("self",)).select_related("model__team")
    found = rows.filter(id=version.id).first()
    if found is None:
        raise Refused(f"{version} was deleted meanwhile")
    if found.state != VersionState.READY:
        raise Refused(f"the version is {found.state}; only a ready one can be served")
    model_name = f"{found.team.slug}/{found}"
    return _create(found.team, name, limits, acting_user, model_name, model_version=found)


def _create(
    team: Team, name: str, limits: KeyLimits, acting_user: User, model_name: str, **opens: Any
) -> CreatedServingKey:
    name = _checked_name(name)
    Team.objects.select_for_update().get(id=team.id)
    if ServingKey.objects.filter(team=team, revoked_at=None).count() >= MOST_KEYS:
        raise TooMany(f"the team has {MOST_KEYS} serving keys: revoke one that nobody uses")
    _check(limits)
    text, digest = ServingKey.generate()
    days = limits.expires_in_days
    key = ServingKey.objects.create(
        team=team, name=name, digest=digest, ending=text[-4:], model_name=model_name,
        requests_per_minute=limits.requests_per_minute, parallel=limits.parallel, tokens_per_day=limits.tokens_per_day,
        expires_at=None if days is None else timezone.now() + timedelta(days=days), created_by=acting_user, **opens,
    )  # fmt: skip
    record(team, acting_user, "serving-key.create", f"serving-key {key.id}", name=name, model=model_name)
    return CreatedServingKey(key, text)


@transaction.atomic
def revoke_serving_key(key: ServingKey, *, acting_user: User) -> None:
    """Revoking a revoked key changes nothing."""
    if ServingKey.objects.filter(id=key.id, revoked_at=None).update(revoked_at=timezone.now()):
        record(
            key.team, acting_user, "serving-key.revoke", f"serving-key {key.id}", name=key.name, model=key.model_name
        )


def usage_by_day(key: ServingKey, days: int = 31) -> list[UsageDay]:
    """The days on which something was asked, the newest first."""
    since = timezone.now().date() - timedelta(days=days)
    by_day: dict[date, list[ServingUsage]] = {}
    for row in key.usage.filter(day__gte=since).order_by("-day", "outcome"):
        by_day.setdefault(row.day, []).append(row)
    return [
        UsageDay(
            day,
            calls=sum(row.calls for row in rows),
            prompt_tokens=sum(row.prompt_tokens for row in rows),
            sampled_tokens=sum(row.sampled_tokens for row in rows),
            refused={row.outcome: row.calls for row in rows if row.outcome != "answered"},
        )
        for day, rows in by_day.items()
    ]


def totals_of(keys: Sequence[ServingKey]) -> dict[UUID, dict[str, int]]:
    """By key: calls, tokens read and sampled since it was made."""
    rows = (
        ServingUsage.objects.filter(key__in=keys)
        .values("key")
        .annotate(all_calls=Sum("calls"), read=Sum("prompt_tokens"), sampled=Sum("sampled_tokens"))
    )
    return {
        row["key"]: {"calls": row["all_calls"], "prompt_tokens": row["read"], "sampled_tokens": row["sampled"]}
        for row in rows
    }


def _checked_name(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= 100:
        raise Invalid.field("name", name, "a key needs a name of 1 to 100 characters", "say what will use it")
    if "\0" in name:
        raise Invalid.field("name", name, "it has a NUL character, which the database cannot keep", "leave it out")
    return name


def _check(limits: KeyLimits) -> None:
    """All faults at once."""
    bounds = {
        "requests_per_minute": 100_000,
        "parallel": 256,
        "tokens_per_day": 10**12,
        "expires_in_days": LONGEST_DAYS,
    }
    faults = [
        Invalid.field(field, value, "it is out of range", f"use 1 to {most}").problems
        for field, most in bounds.items()
        if (value := getattr(limits, field)) is not None and not 1 <= value <= most
    ]
    if faults:
        raise Invalid("the limits cannot be used", [problem for problems in faults for problem in problems])
