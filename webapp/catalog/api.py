"""Environments, and settings of generated tasks, over REST."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.environment import Environment as EnvironmentSpec
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere
from webapp.api.idempotency import once
from webapp.api.requests import Request, Text
from webapp.catalog import environment_versions
from webapp.catalog.access import datasets_of, environment_for, environments_of
from webapp.catalog.models import Dataset, Environment
from webapp.catalog.services import LONGEST_DESCRIPTION, LONGEST_NAME, publish_environment

router = Router(tags=["catalog"])


class VersionOut(Schema):
    id: int
    team: str
    name: str
    version: int
    description: str
    spec: dict[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, row: Environment | Dataset) -> "VersionOut":
        own = {name: getattr(row, name) for name in cls.model_fields if name != "team"}
        return cls(**own, team=row.team.slug)


class VersionPage(Schema):
    items: list[VersionOut]
    next_cursor: str | None


@router.get("/environments", response=VersionPage, operation_id="list_environments")
def environments(
    request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> VersionPage:
    """The most recently published ones first."""
    return _page(environments_of(request), limit, cursor)


class EnvironmentCheckRequest(Request):
    environment: Annotated[EnvironmentSpec, Field(discriminator="id")]


class EnvironmentRequest(EnvironmentCheckRequest):
    name: str = Field(min_length=1, max_length=LONGEST_NAME, description="A new version where there is one of the name")
    description: str = Field(default="", max_length=LONGEST_DESCRIPTION)


class EnvironmentCheckOut(Schema):
    environment: dict[str, Any]
    toml: str


class ChangedFieldOut(Schema):
    field: str
    before: Any
    after: Any


class EnvironmentDifferences(Schema):
    items: list[ChangedFieldOut]


@router.post(
    "/environments/check",
    response=EnvironmentCheckOut,
    operation_id="check_environment",
    auth=somewhere("read"),
)
def check_environment(request: HttpRequest, wanted: EnvironmentCheckRequest) -> EnvironmentCheckOut:
    """The environment with every field, if the service would run it.  Nothing is kept."""
    document = wanted.environment.model_dump(mode="json")
    environment_versions.environment_of({"environment": document})
    return EnvironmentCheckOut(environment=document, toml=environment_versions.text_of(document))


@router.post("/environments", response={201: VersionOut}, operation_id="publish_environment", auth=somewhere("launch"))
def publish(request: HttpRequest, wanted: EnvironmentRequest, team: Text | None = None) -> Status[object]:
    """The next version of the name; it never changes."""
    owner, user = team_to_act_in(request, team, to="launch"), caller_of(request).user

    def published() -> tuple[int, VersionOut]:
        row = publish_environment(
            owner, wanted.name, wanted.environment, acting_user=user, description=wanted.description
        )
        return 201, VersionOut.of(row)

    return once(request, owner, published)


@router.get("/environments/{int:environment_id}", response=VersionOut, operation_id="get_environment")
def get_environment(request: HttpRequest, environment_id: int) -> VersionOut:
    return VersionOut.of(environment_for(request, environment_id))


@router.get(
    "/environments/{int:environment_id}/differences",
    response=EnvironmentDifferences,
    operation_id="compare_environments",
)
def environment_differences(
    request: HttpRequest,
    environment_id: int,
    before: Annotated[int, Query(ge=1, lt=2**63, description="The version with which this one is compared")],
) -> EnvironmentDifferences:
    """The fields that two versions say differently."""
    earlier, this = environment_for(request, before), environment_for(request, environment_id)
    changed = environment_versions.changed_fields(earlier, this)
    return EnvironmentDifferences(items=[ChangedFieldOut(**asdict(field)) for field in changed])


@router.get("/procedural-datasets", response=VersionPage, operation_id="list_procedural_datasets")
def datasets(
    request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> VersionPage:
    """Settings of generated tasks; the most recently published ones first."""
    return _page(datasets_of(request), limit, cursor)


def _page(rows: QuerySet[Any], limit: int, cursor: str | None) -> VersionPage:
    page, next_cursor = page_of(rows, (("id", int),), limit=limit, cursor=cursor)
    return VersionPage(items=[VersionOut.of(row) for row in page], next_cursor=next_cursor)
