"""Environments and datasets of a team: named, with immutable versions."""

from typing import ClassVar

from django.db import models

from webapp.accounts.models import Team, User


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
