"""The door to environments, datasets, task sets, and models with their versions and uploads."""

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.catalog.models import (
    OPEN,
    Dataset,
    DatasetVersion,
    Environment,
    EnvironmentPackage,
    Measurement,
    Model,
    ModelVersion,
    PackageVersion,
    StoredDataset,
    TaskSet,
    TaskSetVersion,
    Upload,
    UploadKind,
)


def environments_of(who: Who) -> QuerySet[Environment]:
    return (
        Environment.objects.select_related("team")
        .filter(deleted_at=None, team__in=readable_memberships_of(who).values("team_id"))
        .order_by("name", "-version")
    )


def environment_for(who: Who, environment_id: int, *, to: Action = "read") -> Environment:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    environment = (
        Environment.objects.select_related("team", "created_by").filter(id=environment_id, deleted_at=None).first()
    )
    if environment is None:
        raise Http404
    allowed(who, environment.team, to)
    return environment


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


def uploads_of(who: Who, kind: str = UploadKind.MODEL) -> QuerySet[Upload]:
    """Those on their way."""
    teams = readable_memberships_of(who).values("team_id")
    return Upload.objects.select_related("team").filter(OPEN, team__in=teams, kind=kind)


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


def stored_datasets_of(who: Who) -> QuerySet[StoredDataset]:
    teams = readable_memberships_of(who).values("team_id")
    return StoredDataset.objects.select_related("team").filter(team__in=teams)


def dataset_versions_of(who: Who) -> QuerySet[DatasetVersion]:
    """For lists: without what their sources and their preparations reported."""
    teams = readable_memberships_of(who).values("team_id")
    rows = DatasetVersion.objects.select_related("dataset__team", "created_by").defer("source_report", "report")
    return rows.filter(dataset__team__in=teams)


def stored_dataset_for(who: Who, dataset_id: int, *, to: Action = "read") -> StoredDataset:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    dataset = StoredDataset.objects.select_related("team").filter(id=dataset_id).first()
    if dataset is None:
        raise Http404
    allowed(who, dataset.team, to)
    return dataset


def dataset_version_for(who: Who, version_id: int, *, to: Action = "read") -> DatasetVersion:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    rows = DatasetVersion.objects.select_related("dataset__team", "created_by", "same_as__dataset")
    version = rows.filter(id=version_id).first()
    if version is None:
        raise Http404
    allowed(who, version.dataset.team, to)
    return version


def measurement_for(who: Who, measurement_id: int, *, to: Action = "read") -> Measurement:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    rows = Measurement.objects.select_related("version__dataset__team", "model__model", "before__dataset")
    found = rows.filter(id=measurement_id).first()
    if found is None:
        raise Http404
    allowed(who, found.version.dataset.team, to)
    return found


def task_sets_of(who: Who) -> QuerySet[TaskSet]:
    teams = readable_memberships_of(who).values("team_id")
    return TaskSet.objects.select_related("team").filter(team__in=teams)


def task_versions_of(who: Who) -> QuerySet[TaskSetVersion]:
    """For lists: without what is wrong with them."""
    teams = readable_memberships_of(who).values("team_id")
    rows = TaskSetVersion.objects.select_related("task_set__team", "created_by").defer("problems")
    return rows.filter(task_set__team__in=teams)


def task_set_for(who: Who, task_set_id: int, *, to: Action = "read") -> TaskSet:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    task_set = TaskSet.objects.select_related("team").filter(id=task_set_id).first()
    if task_set is None:
        raise Http404
    allowed(who, task_set.team, to)
    return task_set


def task_version_for(who: Who, version_id: int, *, to: Action = "read") -> TaskSetVersion:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    rows = TaskSetVersion.objects.select_related("task_set__team", "created_by", "same_as__task_set")
    version = rows.filter(id=version_id).first()
    if version is None:
        raise Http404
    allowed(who, version.task_set.team, to)
    return version


def tasks_upload_for(who: Who, upload_id: UUID, *, to: Action = "read") -> Upload:
    """Raises Http404 for strangers and for an upload of another kind, PermissionDenied for a role too low."""
    return _upload_for(who, upload_id, UploadKind.TASKS, to)


def packages_of(who: Who) -> QuerySet[EnvironmentPackage]:
    teams = readable_memberships_of(who).values("team_id")
    return EnvironmentPackage.objects.select_related("team").filter(team__in=teams)


def package_versions_of(who: Who) -> QuerySet[PackageVersion]:
    """For lists: without what is wrong with them."""
    teams = readable_memberships_of(who).values("team_id")
    rows = PackageVersion.objects.select_related("package__team", "created_by").defer("problems", "report")
    return rows.filter(package__team__in=teams)


def package_for(who: Who, package_id: int, *, to: Action = "read") -> EnvironmentPackage:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    package = EnvironmentPackage.objects.select_related("team").filter(id=package_id).first()
    if package is None:
        raise Http404
    allowed(who, package.team, to)
    return package


def package_version_for(who: Who, version_id: int, *, to: Action = "read") -> PackageVersion:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    rows = PackageVersion.objects.select_related("package__team", "created_by", "same_as__package")
    version = rows.filter(id=version_id).first()
    if version is None:
        raise Http404
    allowed(who, version.package.team, to)
    return version


def package_upload_for(who: Who, upload_id: UUID, *, to: Action = "read") -> Upload:
    """Raises Http404 for strangers and for an upload of another kind, PermissionDenied for a role too low."""
    return _upload_for(who, upload_id, UploadKind.PACKAGE, to)


def dataset_upload_for(who: Who, upload_id: UUID, *, to: Action = "read") -> Upload:
    """Raises Http404 for strangers and for an upload of a model, PermissionDenied for a role too low."""
    return _upload_for(who, upload_id, UploadKind.DATASET, to)


def upload_for(who: Who, upload_id: UUID, *, to: Action = "read") -> Upload:
    """Raises Http404 for strangers and for an upload of a dataset, PermissionDenied for a role too low."""
    return _upload_for(who, upload_id, UploadKind.MODEL, to)


def _upload_for(who: Who, upload_id: UUID, kind: str, to: Action) -> Upload:
    rows = Upload.objects.select_related("team", "version", "dataset_version", "task_version", "package_version")
    upload = rows.filter(id=upload_id, kind=kind).first()
    if upload is None:
        raise Http404
    allowed(who, upload.team, to)
    return upload
