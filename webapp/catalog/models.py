"""Environments, datasets and models of a team: named, with immutable versions."""

import uuid
from pathlib import Path
from typing import ClassVar

from django.db import models
from django.utils import timezone

from engine.spec.model_files import CatalogFolder
from webapp.accounts.models import Team, User
from webapp.catalog.origin import ORIGIN, CheckpointOrigin, FolderOrigin, UploadOrigin
from webapp.catalog.storage import content_folder


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


class Model(models.Model):
    """A name under which a team keeps versions of a model."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="catalog_models")
    name = models.CharField(max_length=100)
    last_number = models.PositiveIntegerField(default=0)
    """Of its versions.  A deleted version's number is never given again: specs name it."""
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="model_name_is_unique")]

    def __str__(self) -> str:
        return self.name


class VersionState(models.TextChoices):
    IMPORTING = "importing"
    CHECKING = "checking"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SAME = "same"
    """Its files are those of ``same_as``, so it became no version of its own."""


UNFINISHED = frozenset({VersionState.IMPORTING, VersionState.CHECKING})


class ModelVersion(models.Model):
    """Files of a model, named by their content; from ``ready`` on nothing of it changes.

    The files are a folder in the form of Hugging Face with ``manifest.json``, whose own SHA-256 is ``sha256``.
    """

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField(null=True)
    """1, 2, 3 ... within the model, given when it becomes ready."""
    sha256 = models.CharField(max_length=64, blank=True)
    state = models.CharField(max_length=10, choices=VersionState.choices, default=VersionState.IMPORTING)
    state_since = models.DateTimeField(default=timezone.now)
    heartbeat_at = models.DateTimeField(default=timezone.now)
    """When a worker last did something for it; silent ones get their message again."""
    cancel_asked = models.BooleanField(default=False)
    problem = models.JSONField(null=True)
    """``engine.spec.problems.Problem`` of a version that failed."""
    same_as = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    origin = models.JSONField()
    """``webapp.catalog.origin.Origin``: the folder, the upload or the checkpoint that it is made of."""
    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="descendants")
    """The version that the run of its checkpoint began from."""
    bytes = models.BigIntegerField(default=0)
    """Of all files, as announced until it is ready."""
    bytes_done = models.BigIntegerField(default=0)
    architecture = models.CharField(max_length=200, blank=True)
    parameters = models.BigIntegerField(null=True)
    context_tokens = models.BigIntegerField(null=True)
    """The positions that the model was made for; absent where its config does not say."""
    dtype = models.CharField(max_length=20, blank=True)
    template_name = models.CharField(max_length=100, blank=True)
    """How the model writes its tool calls."""
    licence_text = models.TextField(blank=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

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

    def __str__(self) -> str:
        return f"{self.model.name}@{self.number}" if self.number else f"{self.model.name} ({self.state})"

    @property
    def folder(self) -> Path:
        """Where the files of a ready version lie."""
        return content_folder(self.model.team_id, self.sha256)

    @property
    def pinned(self) -> CatalogFolder:
        """Which files the ready version means; an engine compares them with their manifest before it begins."""
        return CatalogFolder(version=str(self), team=str(self.model.team_id), sha256=self.sha256)

    @property
    def progress_mark(self) -> str:
        """Which work is next.  A message that names another one is late, and does nothing."""
        return f"{self.state}-{self.bytes_done}"

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED

    @property
    def made_from(self) -> FolderOrigin | UploadOrigin | CheckpointOrigin:
        return ORIGIN.validate_python(self.origin)


class Upload(models.Model):
    """Files on their way from a program or a browser, in parts; they become a version when all are there."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=100)
    """Of the model."""
    files = models.JSONField()
    """``[{"name": "model.safetensors", "bytes": 123}, ...]``: announced first, so that there is room for all."""
    version = models.OneToOneField(ModelVersion, on_delete=models.CASCADE, null=True, related_name="upload")
    """What it was completed to."""
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(default=timezone.now)
    """When the last part came."""


class UploadPart(models.Model):
    """A part that is on the disk.  The first that came under a number is the part; another content is refused."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    file = models.PositiveIntegerField()
    """The place in ``Upload.files``, from 0."""
    number = models.PositiveIntegerField()
    """Of the part in its file, from 0."""
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["upload", "file", "number"], name="upload_part_is_unique")
        ]
