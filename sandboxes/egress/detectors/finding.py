"""What a detector says, and what it is: its rule, told once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from sandboxes.egress.connection_attempt import Frozen, Label, printable
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.record import EgressRecord

Severity = Literal["info", "warning", "critical"]
Category = Literal["Safety & Security", "Controllability", "Trustworthiness"]
"""The three of ALE (arXiv:2512.24873), section 3.1.4."""

EVIDENCE_LINES = 8
EVIDENCE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """docs/egress.md's table is made of these (``python -m sandboxes.egress.detectors``)."""

    id: str
    title: str
    severity: Severity
    """The highest that the rule gives; some findings of it are less, and those of text alone at most a warning."""
    category: Category
    attack: str
    """MITRE ATT&CK technique id."""
    catches: str
    misses: str
    tune: str


class Finding(Frozen):
    rule: str
    severity: Severity
    category: Category
    attack: str
    title: str
    sandbox: Label
    at: float
    """When the event happened that completed the evidence."""
    label: Label | None
    """The tool call of that event."""
    subject: Label
    """What it is about (a destination, a program): findings of one rule and subject are the same story."""
    evidence: tuple[str, ...] = Field(max_length=EVIDENCE_LINES)
    seq: int | None = None
    """Number of the record that completed it; None for a command."""


Deed = ExecEvent | ObservedAction
"""What a process was told to do, or did; an ``EgressRecord`` is what the network saw of it."""
DetectorEvent = EgressRecord | ExecEvent | ObservedAction


def finding(
    rule: RuleInfo, event: DetectorEvent, subject: str, evidence: Iterable[str], severity: Severity | None = None
) -> Finding:
    """Text is a hint: of an ``ExecEvent``, which says what somebody wrote and not what ran, no finding is critical."""
    lines = [printable(line, EVIDENCE_CHARACTERS) for _, line in zip(range(EVIDENCE_LINES), evidence, strict=False)]
    grade = severity or rule.severity
    return Finding(
        rule=rule.id,
        severity="warning" if grade == "critical" and isinstance(event, ExecEvent) else grade,
        category=rule.category,
        attack=rule.attack,
        title=rule.title,
        sandbox=event.attempt.sandbox if isinstance(event, EgressRecord) else event.sandbox,
        at=event.last_at if isinstance(event, EgressRecord) else event.at,
        label=event.label,
        subject=subject,
        evidence=tuple(lines),
        seq=event.seq if isinstance(event, EgressRecord) else None,
    )
