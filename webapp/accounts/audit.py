"""The audit log's only writer."""

from collections.abc import Sequence
from typing import Any

from webapp.accounts.models import AuditEntry, Team, User


def record(team: Team, acting_user: User, verb: str, target: str, **details: Any) -> None:
    """Call it inside the transaction of what it records, so that neither exists without the other."""
    AuditEntry.objects.create(
        team=team, user=acting_user, who=acting_user.email, verb=verb, target=target, details=details
    )


def record_all(team: Team, acting_user: User, entries: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    """Several at once, each with verb, target and details; likewise inside the transaction of what they record."""
    AuditEntry.objects.bulk_create(
        AuditEntry(team=team, user=acting_user, who=acting_user.email, verb=verb, target=target, details=details)
        for verb, target, details in entries
    )
