"""Keys that open a model or a checkpoint outside of training, and what each has used, day by day.

The rows are the truth.  ``workers/serving.py`` writes from them the file that the server of models reads, and reads the
lines that it writes.
"""

import hashlib
import secrets
import uuid
from typing import ClassVar

from django.db import models

from webapp.accounts.models import Team, User
from webapp.catalog.models import ModelVersion
from webapp.runs.models import Run


class ServingKey(models.Model):
    """``pst-...`` is shown once; the row keeps its SHA-256, which is enough for 256 random bits."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="serving_keys")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True)
    ending = models.CharField(max_length=4)
    """The last characters of the key, by which its owner knows it again."""
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, related_name="serving_keys")
    step = models.PositiveIntegerField(null=True)
    """The step of the run's checkpoint."""
    model_version = models.ForeignKey(ModelVersion, on_delete=models.SET_NULL, null=True, related_name="serving_keys")
    model_name = models.CharField(max_length=200)
    """What callers ask for; it stays when the model is deleted."""
    expires_at = models.DateTimeField(null=True)
    requests_per_minute = models.PositiveIntegerField(default=60)
    parallel = models.PositiveIntegerField(default=4)
    tokens_per_day = models.BigIntegerField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["team", "-created_at"], name="serving_key_by_team")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(run=None) | models.Q(model_version=None), name="serving_key_opens_one_model"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} (pst-…{self.ending})"

    @property
    def model_is_gone(self) -> bool:
        return self.run_id is None and self.model_version_id is None

    @staticmethod
    def generate() -> tuple[str, str]:
        """A new key and its digest."""
        text = f"pst-{secrets.token_hex(32)}"
        return text, hashlib.sha256(text.encode()).hexdigest()


class ServingUsage(models.Model):
    """What a key has used on one day (UTC), by outcome."""

    key = models.ForeignKey(ServingKey, on_delete=models.CASCADE, related_name="usage")
    day = models.DateField()
    outcome = models.CharField(max_length=40)
    """``answered``, ``hung-up``, or why requests were refused."""
    calls = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    sampled_tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["key", "day", "outcome"], name="serving_usage_is_unique")
        ]


class UsageFile(models.Model):
    """How far a file of usage lines has been read, written with what was read."""

    name = models.CharField(max_length=40, primary_key=True)
    offset = models.BigIntegerField(default=0)
