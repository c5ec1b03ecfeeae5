"""The door to environments, datasets, and models with their versions and uploads."""

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.catalog.models import Dataset, Environment, Model, ModelVersion, Upload


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


def models_of(who: Who) -> QuerySet[Model]:
    return Model.objects.select_related("team").filter(team__in=readable_memberships_of(who).values("team_id"))


def versions_of(who: Who) -> QuerySet[ModelVersion]:
    """For lists: without the text of their licences."""
    teams = readable_memberships_of(who).values("team_id")
    rows = ModelVersion.objects.select_related("model__team", "created_by").defer("licence_text")
    return rows.filter(model__team__in=teams)


def uploads_of(who: Who) -> QuerySet[Upload]:
    """Those on their way."""
    teams = readable_memberships_of(who).values("team_id")
    return Upload.objects.select_related("team").filter(team__in=teams, version=None)


def model_for(who: Who, model_id: int, *, to: Action = "read") -> Model:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    model = Model.objects.select_related("team").filter(id=model_id).first()
    if model is None:
        raise Http404
    allowed(who, model.team, to)
    return model


def version_for(who: Who, version_id: int, *, to: Action = "read") -> ModelVersion:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    rows = ModelVersion.objects.select_related("model__team", "created_by", "parent__model", "same_as__model")
    version = rows.filter(id=version_id).first()
    if version is None:
        raise Http404
    allowed(who, version.model.team, to)
    return version


def upload_for(who: Who, upload_id: UUID, *, to: Action = "read") -> Upload:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    upload = Upload.objects.select_related("team", "version").filter(id=upload_id).first()
    if upload is None:
        raise Http404
    allowed(who, upload.team, to)
    return upload
