"""The door to environments and datasets: lists only, since nothing acts on a single one."""

from django.db.models import QuerySet

from webapp.accounts.access import Who, readable_memberships_of
from webapp.catalog.models import Dataset, Environment


def environments_of(who: Who) -> QuerySet[Environment]:
    return (
        Environment.objects.select_related("team")
        .filter(team__in=readable_memberships_of(who).values("team_id"))
        .order_by("name", "-version")
    )


def datasets_of(who: Who) -> QuerySet[Dataset]:
    return (
        Dataset.objects.select_related("team")
        .filter(team__in=readable_memberships_of(who).values("team_id"))
        .order_by("name", "-version")
    )
