"""A conversation of a team with a checkpoint or a version of a model: a log that pages follow and a process answers.

The rows are the truth: a process that samples reads from them what was said and writes to them what it says; when it
is gone, another one begins with the same log.
"""

import uuid
from typing import ClassVar

from django.db import models
from django.utils import timezone

from webapp.accounts.models import Team, User
from webapp.catalog.models import ModelVersion
from webapp.runs.models import Run


class State(models.TextChoices):
    RESTING = "resting"
    """No process has it; the next message starts one."""
    WAITING = "waiting"
    """A message waits for a process."""
    LOADING = "loading"
    READY = "ready"
    ANSWERING = "answering"
    FAILED = "failed"
    """Its process has ended without being asked to; ``reason`` says how."""


WITH_PROCESS = frozenset({State.LOADING, State.READY, State.ANSWERING})


class Conversation(models.Model):
    """A talk with a step of a run, or with a version of a model."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="conversations")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, null=True, related_name="conversations")
    step = models.PositiveIntegerField(null=True)
    """The step of the run's checkpoint."""
    model_version = models.ForeignKey(ModelVersion, on_delete=models.SET_NULL, null=True, related_name="conversations")
    version_name = models.CharField(max_length=120, blank=True)
    """``name@number`` of the version; it stays when the version is deleted."""
    with_tools = models.BooleanField(default=False)
    """Whether the tools of the run's environment answer its calls, in sandboxes under the run's egress policy."""
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(default=timezone.now)
    """When somebody last said something."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.RESTING)
    reason = models.TextField(blank=True)
    last_seq = models.BigIntegerField(default=0)
    asked_seq = models.BigIntegerField(default=0)
    """The last entry of a person's."""
    handled_seq = models.BigIntegerField(default=0)
    """The last entry of a person's that the host has read."""

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["team", "-used_at"], name="conversation_by_team"),
            models.Index(
                fields=["used_at"],
                name="conversation_unread",
                condition=models.Q(handled_seq__lt=models.F("asked_seq")),
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(state__in=State.values), name="conversation_state_is_known"),
            models.CheckConstraint(
                condition=models.Q(run__isnull=False, step__isnull=False, model_version=None, version_name="")
                | models.Q(run=None, step=None, version_name__gt=""),
                name="conversation_is_with_a_step_or_a_version",
            ),
        ]

    def __str__(self) -> str:
        return self.version_name if self.run is None else f"step {self.step} of run #{self.run.number}"

    @property
    def version_is_gone(self) -> bool:
        """Whether nobody can answer any more, since the version was deleted."""
        return self.run_id is None and self.model_version_id is None


class Entry(models.Model):
    """One thing that was said: by a person (``send``, ``stop``, ``new``, ``retry``), or by the process (the kinds of
    ``engine.spec.chat``), or about the process (``ended``)."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="entries")
    seq = models.BigIntegerField()
    """1, 2, 3 ... without holes."""
    kind = models.CharField(max_length=20)
    body = models.JSONField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["conversation", "seq"], name="entry_seq_is_unique")]
