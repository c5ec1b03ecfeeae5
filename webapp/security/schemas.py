"""Alerts, records, quarantines and review decisions as the API shows them."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from ninja import Schema
from pydantic import Field

from engine.spec.security import ReviewVerdict
from webapp.runs.models import Run
from webapp.security.decisions import Decision
from webapp.security.effects import Effect, TrainingEffect, release_within, training_effect
from webapp.security.groups import AlertGroup
from webapp.security.models import (
    Alert,
    AlertedTurn,
    AlertState,
    EgressRecord,
    Quarantine,
    QuarantineState,
    ReviewDecision,
    Severity,
)

MOST_NAMED = 200
"""Alerts or groups that one decision names."""


class AlertOut(Schema):
    id: int
    alert_id: str = Field(description="As the engine named it: `<sandbox>/<n>`, unique in the run")
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
    sandbox: str
    label: str
    record_seq: int | None = Field(
        description="The record of the sandbox that completed the evidence; null for a command"
    )
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


class TurnOut(Schema):
    """The turn of an alert as far as it has come; the trajectory has all of it at the end of its step."""

    wrote: str = Field(description="All that the policy wrote; each of these texts is cut at 4,000 characters")
    call: str
    output: str | None = Field(description="null while the call is under way")
    error_class: str | None

    @classmethod
    def of(cls, turn: AlertedTurn) -> "TurnOut":
        return cls(wrote=turn.wrote, call=turn.call, output=turn.output, error_class=turn.error_class or None)


class AlertPage(Schema):
    items: list[AlertOut]
    next_cursor: str | None


class AlertGroupOut(Schema):
    """Alike alerts: same run, same rule, same destination or command."""

    like: int = Field(description="Names the group in a decision: the id of its newest alert")
    run: UUID
    team: str
    rule: str
    severity: Severity = Field(description="The worst")
    subject: str = Field(description="The destination, or the command")
    title: str
    count: int = Field(
        description="Of the alerts that meet the conditions given; so are undecided, first_at and last_at"
    )
    undecided: int
    first_at: datetime
    last_at: datetime
    trajectories: dict[QuarantineState, int] = Field(description="How many of those that they quarantined stand how")

    @classmethod
    def of(cls, group: AlertGroup) -> "AlertGroupOut":
        newest = group.newest
        return cls(
            like=newest.id, run=newest.run_id, team=newest.team.slug, rule=newest.rule, severity=group.severity,
            subject=newest.subject, title=newest.title, count=group.count, undecided=group.undecided,
            first_at=group.first, last_at=group.last, trajectories=group.trajectories,
        )  # fmt: skip


class AlertGroupPage(Schema):
    items: list[AlertGroupOut]
    next_cursor: str | None


AlertId = Annotated[int, Field(ge=1, lt=2**63)]


class DecisionRequest(Schema):
    model_config = {"extra": "forbid"}
    decision: Decision
    note: str = ""
    alerts: list[AlertId] = Field([], max_length=MOST_NAMED, description="These alerts")
    like: list[AlertId] = Field([], max_length=MOST_NAMED, description="All alerts alike to one of these")
    through: AlertId | None = Field(
        None, description="Leave alerts with a higher id alone: those that came since somebody looked"
    )


class DecisionOut(Schema):
    alerts: int = Field(description="That nobody had decided before")
    trajectories: int = Field(description="Decided on now")
    unchanged: int = Field(description="Trajectories that were decided so before")
    held_back: int = Field(
        description="Trajectories not found benign, because an undecided alert beside these quarantined them too"
    )
    without_effect: int = Field(description="Of the trajectories decided on now, those of runs that have ended")


class EffectOut(Schema):
    """What a review decision did to training, or why it did nothing."""

    effect: Effect
    text: str
    step: int | None = Field(description="In which it was certain")
    advantage: float | None = Field(description="The mean over its tokens, where it was trained on")

    @classmethod
    def of(cls, effect: TrainingEffect) -> "EffectOut":
        return cls(effect=effect.effect, text=effect.text, step=effect.step, advantage=effect.advantage)


class EgressOut(Schema):
    sandbox: str
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
        made = ("trajectory", "opening_up_hex", "opening_down_hex")
        own = {name: getattr(record, name) for name in cls.model_fields if name not in made}
        return cls(
            **own,
            trajectory=record.trajectory_id or None,
            opening_up_hex=bytes(record.opening_up).hex(),
            opening_down_hex=bytes(record.opening_down).hex(),
        )


class EgressPage(Schema):
    items: list[EgressOut]
    next_cursor: str | None


class ReviewDecisionOut(Schema):
    number: int
    trajectory: str
    verdict: ReviewVerdict
    note: str
    who: str
    at: datetime

    @classmethod
    def of(cls, review_decision: ReviewDecision) -> "ReviewDecisionOut":
        own = {name: getattr(review_decision, name) for name in cls.model_fields if name != "trajectory"}
        return cls(**own, trajectory=review_decision.trajectory_id)


class QuarantineOut(Schema):
    trajectory: str
    state: QuarantineState
    since: datetime
    review_decision: int | None = Field(
        description="The number of the review decision that holds; null while it is pending"
    )
    decided_by: str | None
    decided_at: datetime | None
    note: str
    effect: EffectOut

    @classmethod
    def of(cls, one: Quarantine, run: Run) -> "QuarantineOut":
        within = release_within(run.spec["environment"].get("response"))
        return cls(
            trajectory=one.trajectory_id, state=QuarantineState(one.state), since=one.since, review_decision=one.number,
            decided_by=one.decided_by.email if one.decided_by else None, decided_at=one.decided_at, note=one.note,
            effect=EffectOut.of(training_effect(one, run, within=within)),
        )  # fmt: skip


class AlertDetail(AlertOut):
    turn_text: TurnOut | None = Field(description="What happened in its turn, known at once; null where no turn ran")
    quarantine: QuarantineOut | None = Field(description="Of its trajectory; null where nothing quarantined it")


class QuarantineDetail(QuarantineOut):
    history: list[ReviewDecisionOut] = Field(description="Every review decision about it, the newest first")


class QuarantinePage(Schema):
    items: list[QuarantineOut]
    next_cursor: str | None


class ReviewDecisionRequest(Schema):
    model_config = {"extra": "forbid"}
    verdict: ReviewVerdict
    note: str = ""
