"""What can be done to environments and datasets: publish a version.  Versions never change."""

from typing import TypeVar

from django.db import transaction
from django.db.models import Max
from pydantic import BaseModel

from engine.spec.environment import Environment as EnvironmentSpec
from engine.spec.run import Dataset as DatasetSpec
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import Dataset, Environment
from webapp.foreign_code import refuse_code_to_import
from webapp.refusals import Invalid, Refused

LONGEST_NAME, LONGEST_DESCRIPTION = 100, 2000
Versioned = TypeVar("Versioned", Environment, Dataset)


@transaction.atomic
def publish_environment(
    team: Team, name: str, document: EnvironmentSpec, *, acting_user: User, description: str = ""
) -> Environment:
    """Publish the next version of the environment ``name``.

    Raises Invalid for code to be imported and for a name or a description of no fitting length, Refused where the
    newest version says the same.
    """
    if not 1 <= len(name) <= LONGEST_NAME:
        remedy = f"use 1 to {LONGEST_NAME} characters"
        raise Invalid.field("name", name[:LONGEST_NAME], f"a name of {len(name)} characters", remedy)
    if len(description) > LONGEST_DESCRIPTION:
        remedy = f"use at most {LONGEST_DESCRIPTION}"
        raise Invalid.field("description", len(description), f"a text of {len(description)} characters", remedy)
    refuse_code_to_import(document)
    Team.objects.select_for_update().get(id=team.id)  # two who publish the same at once publish it once
    newest = team.environments.filter(name=name, deleted_at=None).order_by("-version").first()
    if newest is not None and newest.spec == document.model_dump(mode="json"):
        raise Refused(f"nothing is published: {newest} says the same")
    return _publish(team, Environment, name, document, acting_user, description)


@transaction.atomic
def publish_dataset(
    team: Team, name: str, document: DatasetSpec, *, acting_user: User, description: str = ""
) -> Dataset:
    """Publish the next version of the dataset ``name``."""
    return _publish(team, Dataset, name, document, acting_user, description)


def _publish(
    team: Team, model: type[Versioned], name: str, document: BaseModel, acting_user: User, description: str
) -> Versioned:
    row = model.objects.create(
        team=team,
        name=name,
        version=_next_version(team, model, name),
        spec=document.model_dump(mode="json"),
        description=description,
        created_by=acting_user,
    )
    kind = model.__name__.lower()
    record(team, acting_user, f"{kind}.publish", f"{kind} {row}")
    return row


def _next_version(team: Team, model: type[Environment] | type[Dataset], name: str) -> int:
    Team.objects.select_for_update().get(id=team.id)  # two who publish at once get two numbers
    highest = model.objects.filter(team=team, name=name).aggregate(highest=Max("version"))["highest"]
    return (highest or 0) + 1
