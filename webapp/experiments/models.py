"""An experiment: a RunSpec that a team keeps, edits and launches."""

import uuid

from django.db import models

from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User
from webapp.catalog.models import Dataset, Environment


class Experiment(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="experiments")
    name = models.CharField(max_length=100)
    description = models.TextField(blank=True)
    spec = models.JSONField()
    """``engine.spec.run.RunSpec``; what a launch copies into the run."""
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, null=True, related_name="experiments")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, null=True, related_name="experiments")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.name

    @property
    def run_spec(self) -> RunSpec:
        return RunSpec.model_validate(self.spec)
