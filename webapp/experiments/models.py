"""An experiment: a RunSpec that a team keeps, edits and launches."""

import uuid

from django.db import models

from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User


class Experiment(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="experiments")
    name = models.CharField(max_length=100)
    description = models.TextField(blank=True)
    spec = models.JSONField()
    """``engine.spec.run.RunSpec``; what a launch copies into the run."""
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.name

    @property
    def run_spec(self) -> RunSpec:
        return RunSpec.model_validate(self.spec)
