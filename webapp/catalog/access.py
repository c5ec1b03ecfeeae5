"""The door to environments and datasets."""

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
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


def environment_for(who: Who, environment_id: int, *, to: Action = "read") -> Environment:
    environment = Environment.objects.select_related("team").filter(id=environment_id).first()
    if environment is None:
        raise Http404
    allowed(who, environment.team, to)
    return environment


def dataset_for(who: Who, dataset_id: int, *, to: Action = "read") -> Dataset:
    dataset = Dataset.objects.select_related("team").filter(id=dataset_id).first()
    if dataset is None:
        raise Http404
    allowed(who, dataset.team, to)
    return dataset
