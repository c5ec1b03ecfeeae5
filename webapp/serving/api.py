"""Serving keys over REST: make, list, look at what they have used, revoke."""

from datetime import date, datetime
from typing import Self
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field, model_validator

from engine.spec.impossible import impossible
from engine.spec.strict import Strict
from webapp.accounts.access import caller_of
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.catalog.access import version_for
from webapp.runs.access import run_for
from webapp.serving import services
from webapp.serving.access import serving_key_for, serving_keys_of
from webapp.serving.models import ServingKey

router = Router(tags=["serving"])
PATH = "/serving-keys/{uuid:key_id}"


class ServingKeyRequest(Strict):
    name: str = Field(max_length=1000)
    """What will use the key."""
    run: UUID | None = None
    """With one of whose checkpoints the key is answered."""
    step: int | None = Field(default=None, ge=0, lt=2**31)
    """The step of the checkpoint; absent: the newest now."""
    model_version: int | None = Field(default=None, ge=1, lt=2**63)
    """In place of a run: the id of a version of a model."""
    requests_per_minute: int = Field(default=60, ge=1, le=100_000)
    parallel: int = Field(default=4, ge=1, le=256)
    """Answers that are sampled at once."""
    tokens_per_day: int | None = Field(default=None, ge=1, le=10**12)
    """Tokens read and sampled from midnight to midnight UTC; absent: no limit."""
    expires_in_days: int | None = Field(default=None, ge=1, le=services.LONGEST_DAYS)

    @model_validator(mode="after")
    def _names_one_model(self) -> Self:
        if (self.run is None) == (self.model_version is None):
            raise impossible("run", self.run, "a key opens one model", "name either a run or a model_version")
        if self.run is None and self.step is not None:
            raise impossible("step", self.step, "a version of a model has no steps", "remove step")
        return self

    @property
    def limits(self) -> services.KeyLimits:
        return services.KeyLimits(self.requests_per_minute, self.parallel, self.tokens_per_day, self.expires_in_days)


class ServingKeyOut(Schema):
    id: UUID
    team: str
    name: str
    ending: str = Field(description="The last characters of the key")
    model: str = Field(description="What callers name as the model")
    run: UUID | None
    step: int | None
    model_version: int | None
    requests_per_minute: int
    parallel: int
    tokens_per_day: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, key: ServingKey) -> "ServingKeyOut":
        return cls(
            id=key.id, team=key.team.slug, name=key.name, ending=key.ending, model=key.model_name, run=key.run_id,
            step=key.step, model_version=key.model_version_id, requests_per_minute=key.requests_per_minute,
            parallel=key.parallel, tokens_per_day=key.tokens_per_day, created_at=key.created_at,
            expires_at=key.expires_at, revoked_at=key.revoked_at,
        )  # fmt: skip


class CreatedServingKeyOut(Schema):
    key: str = Field(description="The key itself, which is shown in this answer only")
    serving_key: ServingKeyOut


class ServingKeyPage(Schema):
    items: list[ServingKeyOut]
    next_cursor: str | None


class UsageOut(Schema):
    day: date
    calls: int
    prompt_tokens: int
    sampled_tokens: int
    refused: dict[str, int] = Field(description="Requests that were not answered, by why")

    @classmethod
    def of(cls, used: services.UsageDay) -> "UsageOut":
        return cls(
            day=used.day, calls=used.calls, prompt_tokens=used.prompt_tokens, sampled_tokens=used.sampled_tokens,
            refused=used.refused,
        )  # fmt: skip


class UsagePage(Schema):
    items: list[UsageOut]


@router.post(
    "/serving-keys", response={201: CreatedServingKeyOut}, operation_id="create_serving_key", auth=somewhere("launch")
)
def create(request: HttpRequest, wanted: ServingKeyRequest) -> Status[object]:
    """An ``Idempotency-Key`` has no effect here: what would be answered again is stored nowhere."""
    user = caller_of(request).user
    if wanted.model_version is not None:
        version = version_for(request, wanted.model_version, to="launch")
        created = services.serve_version(version, wanted.name, wanted.limits, acting_user=user)
    else:
        assert wanted.run is not None  # the request names one of the two
        run = run_for(request, wanted.run, to="launch")
        created = services.serve_checkpoint(run, wanted.step, wanted.name, wanted.limits, acting_user=user)
    return Status(201, CreatedServingKeyOut(key=created.text, serving_key=ServingKeyOut.of(created.key)))


@router.get("/serving-keys", response=ServingKeyPage, operation_id="list_serving_keys")
def list_serving_keys(
    request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> ServingKeyPage:
    fields = (("created_at", datetime), ("id", UUID))
    page, next_cursor = page_of(serving_keys_of(request), fields, limit=limit, cursor=cursor)
    return ServingKeyPage(items=[ServingKeyOut.of(key) for key in page], next_cursor=next_cursor)


@router.get(PATH, response=ServingKeyOut, operation_id="get_serving_key")
def get_serving_key(request: HttpRequest, key_id: UUID) -> ServingKeyOut:
    return ServingKeyOut.of(serving_key_for(request, key_id))


@router.get(f"{PATH}/usage", response=UsagePage, operation_id="get_serving_usage")
def usage(request: HttpRequest, key_id: UUID, days: int = Query(31, ge=1, le=400)) -> UsagePage:
    """The days on which something was asked, the newest first."""
    found = serving_key_for(request, key_id)
    return UsagePage(items=[UsageOut.of(used) for used in services.usage_by_day(found, days)])


@router.post(
    f"{PATH}/revoke", response={200: ServingKeyOut}, operation_id="revoke_serving_key",
    auth=to_one(serving_key_for, "key_id", "launch"),
)  # fmt: skip
@without_body
def revoke(request: HttpRequest, key_id: UUID) -> ServingKeyOut:
    """Within a second the key opens nothing any more.  Revoking a revoked key changes nothing."""
    services.revoke_serving_key(serving_key_for(request, key_id, to="launch"), acting_user=caller_of(request).user)
    return ServingKeyOut.of(serving_key_for(request, key_id))
