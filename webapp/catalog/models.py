"""Environments, datasets and models of a team: named, with immutable versions."""

import uuid
from typing import ClassVar

from django.db import models
from django.utils import timezone

from engine.spec.dataset_files import DATASET_MANIFEST, DatasetManifest
from engine.spec.model_files import MANIFEST, ModelManifest
from webapp import queue
from webapp.accounts.models import Team, User
from webapp.catalog.checked_models import CheckedState
from webapp.catalog.package_models import EnvironmentPackage, PackageVersion
from webapp.catalog.storage import DATASETS, MODELS
from webapp.catalog.task_models import StoredTask, TaskSet, TaskSetVersion, TaskTrial
from webapp.catalog.version_models import Named, StoredVersion

__all__ = [
    "OPEN", "UNFINISHED", "CheckedState", "Dataset", "DatasetState", "DatasetVersion", "Environment",
    "EnvironmentPackage", "Measurement", "MeasurementKind", "Model", "ModelVersion", "PackageVersion", "StoredDataset",
    "StoredTask", "TaskSet", "TaskSetVersion", "TaskTrial", "Upload", "UploadKind", "UploadPart", "VersionState",
]  # fmt: skip


class _Versioned(models.Model):
    """A row is one version and never changes; a change is a new row with the next version."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="%(class)ss")
    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField(default=1)
    description = models.TextField(blank=True)
    spec = models.JSONField()
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Environment(_Versioned):
    """``spec`` is ``engine.spec.environment.Environment``."""

    deleted_at = models.DateTimeField(null=True)
    """Since when nobody is shown it; its row keeps its number from being given again."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["team", "name", "version"], name="environment_version_is_unique")
        ]


class Dataset(_Versioned):
    """``spec`` is ``engine.spec.run.Dataset``."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["team", "name", "version"], name="dataset_version_is_unique")
        ]


class Model(Named):
    """A name under which a team keeps versions of a model."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="catalog_models")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="model_name_is_unique")]


class StoredDataset(Named):
    """A name under which a team keeps versions of a dataset of its own."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="stored_datasets")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="stored_dataset_name_is_unique")]


class VersionState(models.TextChoices):
    IMPORTING = "importing"
    CHECKING = "checking"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SAME = "same"
    """Its files are those of ``same_as``, so it became no version of its own."""


UNFINISHED = frozenset({VersionState.IMPORTING, VersionState.CHECKING})


class ModelVersion(StoredVersion):
    """The files are a folder in the form of Hugging Face with ``manifest.json``, whose own SHA-256 is ``sha256``."""

    storage = MODELS
    noun, of_family, store_message = "model", "model", queue.STORE_MODEL
    unfinished = UNFINISHED
    keeps_content = unfinished | {VersionState.READY}

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="versions")
    state = models.CharField(max_length=10, choices=VersionState.choices, default=VersionState.IMPORTING)
    same_as = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="descendants")
    """The version that the run of its checkpoint began from."""
    architecture = models.CharField(max_length=200, blank=True)
    parameters = models.BigIntegerField(null=True)
    context_tokens = models.BigIntegerField(null=True)
    """The positions that the model was made for; absent where its config does not say."""
    dtype = models.CharField(max_length=20, blank=True)
    template_name = models.CharField(max_length=100, blank=True)
    """How the model writes its tool calls."""
    licence_text = models.TextField(blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "number"], name="model_version_is_unique"),
            models.UniqueConstraint(
                fields=["model", "sha256"], name="model_content_is_unique", condition=models.Q(state="ready")
            ),
            models.CheckConstraint(condition=models.Q(state__in=VersionState.values), name="version_state_is_known"),
            models.CheckConstraint(
                condition=~models.Q(state="ready") | models.Q(number__isnull=False, sha256__gt=""),
                name="ready_version_has_number_and_content",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["state"], name="version_unfinished", condition=models.Q(state__in=["importing", "checking"])
            )
        ]

    @property
    def family(self) -> Model:  # type: ignore[override]
        return self.model

    def file_sizes(self) -> dict[str, int]:
        """The ready version's files with their bytes.  Raises OSError where they are not here."""
        manifest = ModelManifest.model_validate_json((self.folder / MANIFEST).read_bytes())
        return {name: file.bytes for name, file in manifest.files.items()}


class DatasetState(models.TextChoices):
    IMPORTING = "importing"
    INSPECTING = "inspecting"
    MAPPING = "mapping"
    """Its files are here, and wait for somebody who says which column is what."""
    PREPARING = "preparing"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SAME = "same"
    """Its rows are those of ``same_as``, so it became no version of its own."""


class DatasetVersion(StoredVersion):
    """The files are those of ``engine/spec/dataset_files.py``; ``dataset.json`` is the manifest."""

    storage = DATASETS
    noun, of_family, store_message = "dataset", "dataset", queue.STORE_DATASET
    remove_message = queue.REMOVE_DATASET
    unfinished = frozenset({DatasetState.IMPORTING, DatasetState.INSPECTING, DatasetState.PREPARING})
    keeps_content = unfinished | {DatasetState.READY}

    dataset = models.ForeignKey(StoredDataset, on_delete=models.CASCADE, related_name="versions")
    state = models.CharField(max_length=10, choices=DatasetState.choices, default=DatasetState.IMPORTING)
    same_as = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    preparation = models.JSONField(null=True)
    """``engine.spec.dataset_preparation.Preparation``; absent until somebody has given one."""
    source_report = models.JSONField(null=True)
    """``engine.spec.dataset_report.SourceReport``: the first rows, and a guess."""
    report = models.JSONField(null=True)
    """``engine.spec.dataset_report.PreparationReport`` of the last preparation: faults and duplicates."""
    rows = models.BigIntegerField(default=0)
    """So far, or in all."""
    splits = models.JSONField(default=list)
    """``[{"name": "train", "rows": 123, "bytes": 4567}, ...]`` of a ready version."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["dataset", "number"], name="dataset_number_is_unique"),
            models.UniqueConstraint(
                fields=["dataset", "sha256"], name="dataset_content_is_unique", condition=models.Q(state="ready")
            ),
            models.CheckConstraint(condition=models.Q(state__in=DatasetState.values), name="dataset_state_is_known"),
            models.CheckConstraint(
                condition=~models.Q(state="ready") | models.Q(number__isnull=False, sha256__gt=""),
                name="ready_dataset_has_number_and_content",
            ),
        ]

    @property
    def family(self) -> StoredDataset:  # type: ignore[override]
        return self.dataset

    @property
    def may_be_prepared(self) -> bool:
        """Whether its files are here and wait for a preparation, the first or another one."""
        return bool(self.state == DatasetState.MAPPING or (self.state == DatasetState.FAILED and self.source_report))

    def file_sizes(self) -> dict[str, int]:
        """The ready version's files with their bytes.  Raises OSError where they are not here."""
        file = self.folder / DATASET_MANIFEST
        sizes = DatasetManifest.model_validate_json(file.read_bytes()).sizes
        return sizes | {DATASET_MANIFEST: file.stat().st_size}


class MeasurementKind(models.TextChoices):
    LENGTHS = "lengths"
    DIFFERENCE = "difference"


class Measurement(models.Model):
    """What a worker computes of a ready version: lengths under a model's tokenizer, or what differs from another."""

    version = models.ForeignKey(DatasetVersion, on_delete=models.CASCADE, related_name="measurements")
    kind = models.CharField(max_length=10, choices=MeasurementKind.choices)
    model = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, null=True, related_name="+")
    """Whose tokenizer counts."""
    before = models.ForeignKey(DatasetVersion, on_delete=models.CASCADE, null=True, related_name="+")
    """With which the version is compared."""
    rows_done = models.BigIntegerField(default=0)
    report = models.JSONField(null=True)
    """``LengthsReport`` or ``DifferenceReport`` when it is done."""
    problem = models.JSONField(null=True)
    heartbeat_at = models.DateTimeField(default=timezone.now)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["version", "kind", "model", "before"], name="measurement_is_unique", nulls_distinct=False
            )
        ]

    @property
    def is_unfinished(self) -> bool:
        return self.report is None and self.problem is None


class UploadKind(models.TextChoices):
    MODEL = "model"
    DATASET = "dataset"
    TASKS = "tasks"
    PACKAGE = "package"


OPEN = models.Q(version=None, dataset_version=None, task_version=None, package_version=None)
"""Uploads on their way."""


class Upload(models.Model):
    """Files on their way from a program or a browser, in parts; they become a version when all are there."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=7, choices=UploadKind.choices, default=UploadKind.MODEL)
    name = models.CharField(max_length=100)
    """The name of the model, the dataset, the task set or the package."""
    files = models.JSONField()
    """``[{"name": "model.safetensors", "bytes": 123}, ...]``: announced first, so that there is room for all."""
    version = models.OneToOneField(ModelVersion, on_delete=models.CASCADE, null=True, related_name="upload")
    """The model's version that it was completed to."""
    dataset_version = models.OneToOneField(DatasetVersion, on_delete=models.CASCADE, null=True, related_name="upload")
    """The dataset's version that it was completed to."""
    task_version = models.OneToOneField(TaskSetVersion, on_delete=models.CASCADE, null=True, related_name="upload")
    """The task set's version that it was completed to."""
    package_version = models.OneToOneField(PackageVersion, on_delete=models.CASCADE, null=True, related_name="upload")
    """The package's version that it was completed to."""
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(default=timezone.now)
    """When the last part came."""

    @property
    def completed_to(self) -> ModelVersion | DatasetVersion | TaskSetVersion | PackageVersion | None:
        return self.version or self.dataset_version or self.task_version or self.package_version

    @property
    def is_complete(self) -> bool:
        keys = (self.version_id, self.dataset_version_id, self.task_version_id, self.package_version_id)
        return any(key is not None for key in keys)


class UploadPart(models.Model):
    """A part that is on the disk.  The first that came under a number is the part; another content is refused."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    file = models.PositiveIntegerField()
    """The place in ``Upload.files``, from 0."""
    number = models.PositiveIntegerField()
    """The number of the part in its file, from 0."""
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["upload", "file", "number"], name="upload_part_is_unique")
        ]
