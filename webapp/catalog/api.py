"""Environments and datasets over REST."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from webapp.catalog.access import datasets_of, environments_of
from webapp.catalog.models import Dataset, Environment

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


@router.get("/environments", response=list[VersionOut], operation_id="list_environments")
def environments(request: HttpRequest) -> list[VersionOut]:
    return [VersionOut.of(row) for row in environments_of(request)]


@router.get("/datasets", response=list[VersionOut], operation_id="list_datasets")
def datasets(request: HttpRequest) -> list[VersionOut]:
    return [VersionOut.of(row) for row in datasets_of(request)]
