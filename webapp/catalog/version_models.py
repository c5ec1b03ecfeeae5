"""What every kind of the catalog has: names of a team, and versions of files that a worker stores."""

from pathlib import Path
from typing import ClassVar

from django.db import models
from django.utils import timezone

from engine.spec.model_files import CatalogFolder
from webapp.accounts.models import Team, User
from webapp.catalog.archive import Archive
from webapp.catalog.origin import ORIGIN, CheckpointOrigin, FolderOrigin, UploadOrigin
from webapp.catalog.storage import Storage


class Named(models.Model):
    """A name under which a team keeps versions."""

    name = models.CharField(max_length=100)
    last_number = models.PositiveIntegerField(default=0)
    """The number of the latest of its versions.  A deleted version's number is never given again: specs name it."""
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.name


class StoredVersion(models.Model):
    """Files that a worker stores, named by their content; from ``ready`` on nothing of it changes."""

    storage: ClassVar[Storage]
    noun: ClassVar[str]
    """The name of what it is a version."""
    store_message: ClassVar[str]
    """The name of the task that does what is next for it (``webapp/queue.py``)."""
    of_family: ClassVar[str]
    """The field that names what it is a version of."""
    unfinished: ClassVar[frozenset[str]]
    """The states in which a worker has something to do for it."""
    keeps_content: ClassVar[frozenset[str]]
    """The states in which its content's folder is needed."""

    number = models.PositiveIntegerField(null=True)
    """1, 2, 3 ... within its name, given when it becomes ready."""
    sha256 = models.CharField(max_length=64, blank=True)
    """The digest of its manifest."""
    state = models.CharField(max_length=10)
    """One of the kind's own."""
    state_since = models.DateTimeField(default=timezone.now)
    heartbeat_at = models.DateTimeField(default=timezone.now)
    """When a worker last did something for it; silent ones get their message again."""
    cancel_asked = models.BooleanField(default=False)
    problem = models.JSONField(null=True)
    """``engine.spec.problems.Problem`` of a version that failed."""
    origin = models.JSONField()
    """``webapp.catalog.origin.Origin``: the folder, the upload or the checkpoint that it is made of."""
    bytes = models.BigIntegerField(default=0)
    """The size of all files, as announced until it is ready."""
    bytes_done = models.BigIntegerField(default=0)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    family: Named
    """What it is a version of."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.family.name}@{self.number}" if self.number else f"{self.family.name} ({self.state})"

    @property
    def team(self) -> Team:
        return self.family.team  # type: ignore[attr-defined, no-any-return]

    @property
    def folder(self) -> Path:
        """Where the files of a ready version lie."""
        return self.storage.content_folder(self.team.id, self.sha256)

    @property
    def partial_folder(self) -> Path:
        """Where they lie before it is ready."""
        return self.storage.partial_folder(self.team.id, self.pk)

    @property
    def pinned(self) -> CatalogFolder:
        """Which files the ready version means; an engine compares them with their manifest before it begins."""
        return CatalogFolder(version=str(self), team=str(self.team.id), sha256=self.sha256)

    @property
    def progress_mark(self) -> str:
        """Which work is next.  A message that names another one is late, and does nothing."""
        return f"{self.state}-{self.bytes_done}"

    @property
    def is_unfinished(self) -> bool:
        return self.state in self.unfinished

    @property
    def is_ready(self) -> bool:
        return bool(self.state == "ready")

    @property
    def made_from(self) -> FolderOrigin | UploadOrigin | CheckpointOrigin:
        return ORIGIN.validate_python(self.origin)

    def file_sizes(self) -> dict[str, int]:
        """The ready version's files with their bytes.  Raises OSError where they are not here."""
        raise NotImplementedError

    def archive(self, prefix: str) -> Archive:
        """Its files as a tar.  Raises OSError where they are not here."""
        return Archive(self.folder, self.file_sizes(), prefix=prefix)
