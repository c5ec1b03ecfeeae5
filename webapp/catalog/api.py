"""Settings of generated tasks over REST, and the form of what has versions in the catalog."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Router, Schema
from ninja.params.functions import Query

from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.catalog.access import datasets_of
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


class VersionPage(Schema):
    items: list[VersionOut]
    next_cursor: str | None


@router.get("/procedural-datasets", response=VersionPage, operation_id="list_procedural_datasets")
def datasets(
    request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> VersionPage:
    """Settings of generated tasks; the most recently published ones first."""
    return version_page(datasets_of(request), limit, cursor)


def version_page(rows: QuerySet[Any], limit: int, cursor: str | None) -> VersionPage:
    page, next_cursor = page_of(rows, (("id", int),), limit=limit, cursor=cursor)
    return VersionPage(items=[VersionOut.of(row) for row in page], next_cursor=next_cursor)
