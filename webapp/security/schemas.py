"""Alerts, records, quarantines and rulings as the API shows them."""

from datetime import datetime
from uuid import UUID

from ninja import Schema
from pydantic import Field

from engine.spec.security import Verdict
from webapp.security.models import Alert, AlertState, EgressRecord, Quarantine, QuarantineState, Ruling, Severity


class AlertOut(Schema):
    id: int
    alert_id: str = Field(description="As the engine named it: `<box>/<n>`, unique in the run")
    team: str
    run: UUID
    rule: str
    severity: Severity
    category: str
    attack: str = Field(description="MITRE ATT&CK technique")
    title: str
    subject: str
    evidence: list[str]
    trajectory: str | None
    turn: int | None = Field(description="Counted from 0, as in the trajectory's `turns`")
    box: str
    label: str
    record_seq: int | None = Field(description="The record of the box that completed the evidence; null for a command")
    event_seq: int
    at: datetime
    stored_at: datetime
    quarantined: bool
    state: AlertState
    acknowledged_at: datetime | None

    @classmethod
    def of(cls, alert: Alert) -> "AlertOut":
        own = {name: getattr(alert, name) for name in cls.model_fields if name not in ("team", "run", "trajectory")}
        return cls(**own, team=alert.team.slug, run=alert.run_id, trajectory=alert.trajectory_id or None)


class AlertPage(Schema):
    items: list[AlertOut]
    next_cursor: str | None


class EgressOut(Schema):
    box: str
    seq: int
    event_seq: int
    trajectory: str | None
    turn: int | None
    at: datetime
    last_at: datetime
    phase: str
    attempt: int
    stage: str
    protocol: str
    family: str
    address: str
    port: int | None
    name: str
    query_type: str
    sni: str
    host: str
    method: str
    allowed: bool
    policy: str
    rule: str
    reason: str
    label: str
    count: int
    spread: dict[str, int] | None
    bytes_up: int
    bytes_down: int
    packets_up: int
    ended: str
    opening_up_hex: str
    opening_down_hex: str

    @classmethod
    def of(cls, record: EgressRecord) -> "EgressOut":
        made = {
            "trajectory": record.trajectory_id or None,
            "opening_up_hex": bytes(record.opening_up).hex(),
            "opening_down_hex": bytes(record.opening_down).hex(),
        }
        return cls(**{name: getattr(record, name) for name in cls.model_fields if name not in made}, **made)


class EgressPage(Schema):
    items: list[EgressOut]
    next_cursor: str | None


class RulingOut(Schema):
    number: int
    trajectory: str
    verdict: Verdict
    note: str
    who: str
    at: datetime

    @classmethod
    def of(cls, ruling: Ruling) -> "RulingOut":
        own = {name: getattr(ruling, name) for name in cls.model_fields if name != "trajectory"}
        return cls(**own, trajectory=ruling.trajectory_id)


class QuarantineOut(Schema):
    trajectory: str
    state: QuarantineState
    since: datetime
    ruling: int | None = Field(description="The number of the ruling that holds; null while it is pending")
    ruled_by: str | None
    ruled_at: datetime | None
    note: str

    @classmethod
    def of(cls, one: Quarantine) -> "QuarantineOut":
        return cls(
            trajectory=one.trajectory_id, state=one.state, since=one.since, ruling=one.number,
            ruled_by=one.ruled_by.email if one.ruled_by else None, ruled_at=one.ruled_at, note=one.note,
        )  # fmt: skip


class QuarantineDetail(QuarantineOut):
    history: list[RulingOut] = Field(description="Every ruling about it, the newest first")


class QuarantinePage(Schema):
    items: list[QuarantineOut]
    next_cursor: str | None


class RulingRequest(Schema):
    model_config = {"extra": "forbid"}
    verdict: Verdict
    note: str = ""
