"""A team's environments over REST: checked, published, compared, tried, deleted."""

from dataclasses import asdict
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.environment import Environment as EnvironmentSpec
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Request, Text
from webapp.catalog import environment_versions
from webapp.catalog.access import environment_for, environments_of
from webapp.catalog.api import VersionOut, VersionPage, version_page
from webapp.catalog.services import LONGEST_DESCRIPTION, LONGEST_NAME, publish_environment
from webapp.runs.api import RunOut
from webapp.runs.dependents import delete_environment
from webapp.runs.tries import EnvironmentTry, Tried, begin_try, tries_of

router = Router(tags=["catalog"])
TO_LAUNCH = to_one(environment_for, "environment_id", "launch")


@router.get("/environments", response=VersionPage, operation_id="list_environments")
def environments(
    request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> VersionPage:
    """The most recently published ones first."""
    return version_page(environments_of(request), limit, cursor)


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


class DraftTryRequest(EnvironmentCheckRequest):
    wanted: EnvironmentTry = EnvironmentTry()
    name: str = Field(default="an environment", min_length=1, max_length=80)


class PlayedOut(Schema):
    player: str
    success: float
    low: float = Field(description="Of the 95 % interval over tasks")
    high: float
    episodes: int


class TryOut(Schema):
    run: RunOut
    played: list[PlayedOut] = Field(description="Of each player, once the run is over")
    doubts: list[str] = Field(description="What is wrong with an environment that is tried so")

    @classmethod
    def of(cls, found: Tried) -> "TryOut":
        played = [PlayedOut(player=player, **rate) for player, _, rate in found.rates]
        return cls(run=RunOut.of(found.run), played=played, doubts=found.doubts)


class TriesOut(Schema):
    items: list[TryOut]


@router.post(
    "/environments/tries", response={201: RunOut}, operation_id="try_environment_draft", auth=somewhere("launch")
)
def try_draft(request: HttpRequest, wanted: DraftTryRequest, team: Text | None = None) -> Status[object]:
    """Play an environment that nobody has published; the run's trajectories show what came of it."""
    owner, user = team_to_act_in(request, team, to="launch"), caller_of(request).user
    environment = environment_versions.environment_of({"environment": wanted.environment.model_dump(mode="json")})

    def act() -> tuple[int, RunOut]:
        return 201, RunOut.of(begin_try(owner, environment, wanted.wanted, acting_user=user, name=wanted.name))

    return once(request, owner, act)


@router.post(
    "/environments/{int:environment_id}/tries",
    response={201: RunOut},
    operation_id="try_environment",
    auth=TO_LAUNCH,
)
def try_version(request: HttpRequest, environment_id: int, wanted: EnvironmentTry | None = None) -> Status[object]:
    """Play some of its tasks: by its own solution and by doing nothing, unless others are named."""
    version, user = environment_for(request, environment_id, to="launch"), caller_of(request).user
    environment = environment_versions.environment_of({"environment": version.spec})

    def act() -> tuple[int, RunOut]:
        run = begin_try(version.team, environment, wanted or EnvironmentTry(), acting_user=user, name=str(version))
        return 201, RunOut.of(run)

    return once(request, version.team, act)


@router.get("/environments/{int:environment_id}/tries", response=TriesOut, operation_id="list_environment_tries")
def tries(request: HttpRequest, environment_id: int) -> TriesOut:
    """The newest ones of just these settings, also from before they were published."""
    return TriesOut(items=[TryOut.of(found) for found in tries_of(environment_for(request, environment_id))])


@router.delete(
    "/environments/{int:environment_id}", response={204: None}, operation_id="delete_environment", auth=TO_LAUNCH
)
@without_body
def delete(request: HttpRequest, environment_id: int) -> Any:
    """Its number is never given again.  Refused, by their names, while runs go on or experiments have its settings."""
    version = environment_for(request, environment_id, to="launch")
    delete_environment(version, acting_user=caller_of(request).user)
    return Status(204, None)
