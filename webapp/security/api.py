"""Alerts, egress records, quarantines and review decisions over REST."""

from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from sandboxes.egress.address import normalised
from sandboxes.egress.connection_attempt import Protocol
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, decode_cursor, encode_cursor
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Text
from webapp.refusals import Invalid
from webapp.runs.access import run_for
from webapp.security import services
from webapp.security.access import alert_for, alerts_of, chosen_alerts, quarantine_for
from webapp.security.decisions import decide
from webapp.security.groups import filled, grouped
from webapp.security.models import AlertState, Quarantine, QuarantineState, ReviewDecision, Severity
from webapp.security.queries import alerts_where, quarantines_where, records_where
from webapp.security.schemas import (
    AlertDetail,
    AlertGroupOut,
    AlertGroupPage,
    AlertOut,
    AlertPage,
    DecisionOut,
    DecisionRequest,
    EgressOut,
    EgressPage,
    QuarantineDetail,
    QuarantineOut,
    QuarantinePage,
    ReviewDecisionOut,
    ReviewDecisionRequest,
    TurnOut,
)
from webapp.security.turns import turn_of

router = Router(tags=["security"])


@router.get("/alerts", response=AlertPage, operation_id="list_alerts")
def list_alerts(
    request: HttpRequest,
    state: AlertState | None = None,
    severity: Severity | None = None,
    run: UUID | None = None,
    rule: Annotated[Text | None, Query(max_length=60, description="Its id, e.g. mining-stratum")] = None,
    limit: int = Query(50, ge=1, le=MOST_PER_PAGE),
    cursor: str | None = None,
) -> AlertPage:
    """The alerts of the caller's teams, newest first."""
    found = alerts_where(alerts_of(request), state=state, severity=severity, run=run, rule=rule)
    return _alert_page(found, limit, cursor)


@router.get("/runs/{uuid:run_id}/alerts", response=AlertPage, operation_id="list_alerts_of_run")
def list_alerts_of_run(
    request: HttpRequest,
    run_id: UUID,
    state: AlertState | None = None,
    severity: Severity | None = None,
    rule: Annotated[Text | None, Query(max_length=60)] = None,
    trajectory: Annotated[Text | None, Query(max_length=100)] = None,
    limit: int = Query(50, ge=1, le=MOST_PER_PAGE),
    cursor: str | None = None,
) -> AlertPage:
    """Newest first."""
    run = run_for(request, run_id)
    found = alerts_where(
        alerts_of(request), state=state, severity=severity, run=run.id, rule=rule, trajectory=trajectory
    )
    return _alert_page(found, limit, cursor)


def _alert_page(found: Any, limit: int, cursor: str | None) -> AlertPage:
    if cursor is not None:
        found = found.filter(id__lt=decode_cursor(cursor, (int,))[0])
    page = list(found[: limit + 1])
    items = [AlertOut.of(alert) for alert in page[:limit]]
    return AlertPage(items=items, next_cursor=encode_cursor(items[-1].id) if len(page) > limit else None)


@router.get("/alerts/groups", response=AlertGroupPage, operation_id="list_alert_groups")
def list_alert_groups(
    request: HttpRequest,
    state: AlertState | None = None,
    severity: Severity | None = None,
    run: UUID | None = None,
    rule: Annotated[Text | None, Query(max_length=60)] = None,
    limit: int = Query(50, ge=1, le=MOST_PER_PAGE),
    cursor: str | None = None,
) -> AlertGroupPage:
    """Alike alerts (run, rule, destination) of the caller's teams as one, the group with the newest alert first."""
    found = grouped(alerts_where(alerts_of(request), state=state, severity=severity, run=run, rule=rule))
    if cursor is not None:
        found = found.filter(newest__lt=decode_cursor(cursor, (int,))[0])
    page = list(found[: limit + 1])
    items = [AlertGroupOut.of(group) for group in filled(page[:limit])]
    return AlertGroupPage(items=items, next_cursor=encode_cursor(items[-1].like) if len(page) > limit else None)


@router.post(
    "/alerts/decisions",
    response=DecisionOut,
    operation_id="decide_alerts",
    auth=somewhere("review"),
)
def decide_alerts(
    request: HttpRequest,
    decision: DecisionRequest,
    team: Annotated[Text | None, Query(description="Its slug; needed by those who are in several")] = None,
) -> Any:
    """Decide about many alerts of one team at once: those named, and all alike to others that are named.

    ``benign`` and ``malicious`` rule on the trajectories that these alerts quarantined, as ``rule`` does;
    ``acknowledge`` only takes the alerts off the open ones.  All of it happens or nothing; what was decided so before
    stays as it is.
    """
    acting = team_to_act_in(request, team, to="review")
    if not decision.alerts and not decision.like:
        raise Invalid.field("alerts", [], "no alert is named", "name alerts, or groups of them in like")
    chosen = chosen_alerts(request, acting, alerts=decision.alerts, like=decision.like)
    user = caller_of(request).user

    def act() -> tuple[int, DecisionOut]:
        decided = decide(acting, chosen, decision.decision, decision.note, acting_user=user, through=decision.through)
        return 200, DecisionOut(**asdict(decided))

    return once(request, acting, act)


@router.get("/alerts/{int:alert_id}", response=AlertDetail, operation_id="get_alert")
def get_alert(request: HttpRequest, alert_id: int) -> AlertDetail:
    """Show an alert with its turn, also before the trajectory is there, and with what a decision about it did."""
    alert = alert_for(request, alert_id)
    turn = turn_of(alert)
    held = (
        Quarantine.objects.select_related("decided_by").filter(run=alert.run, trajectory_id=alert.trajectory_id).first()
    )
    return AlertDetail(
        **AlertOut.of(alert).dict(),
        turn_text=TurnOut.of(turn) if turn else None,
        quarantine=QuarantineOut.of(held, alert.run) if held else None,
    )


@router.post(
    "/alerts/{int:alert_id}/acknowledge",
    response=AlertOut,
    operation_id="acknowledge_alert",
    auth=to_one(alert_for, "alert_id", "review"),
)
@without_body
def acknowledge(request: HttpRequest, alert_id: int) -> Any:
    """Take it off the list of open alerts.  What it quarantined stays so until it is decided on."""
    alert = alert_for(request, alert_id, to="review")
    user = caller_of(request).user
    return once(request, alert.team, lambda: (200, AlertOut.of(services.acknowledge_alert(alert, acting_user=user))))


class EgressFilter(Schema):
    """What a list of records can be narrowed to."""

    trajectory: Text | None = Field(None, max_length=100)
    turn: int | None = Field(None, ge=0, lt=2**31, description="Counted from 0")
    decision: Literal["allowed", "denied"] | None = None
    protocol: Protocol | None = None
    name: Text | None = Field(None, max_length=255, description="A part of the name asked for, of SNI or of Host")
    address: str | None = Field(None, max_length=64, description="An IPv4 or IPv6 address")
    sandbox: Text | None = Field(None, max_length=200)


@router.get("/runs/{uuid:run_id}/egress", response=EgressPage, operation_id="list_egress")
def list_egress(
    request: HttpRequest,
    run_id: UUID,
    chosen: Annotated[EgressFilter, Query()],
    limit: int = Query(50, ge=1, le=MOST_PER_PAGE),
    cursor: str | None = None,
) -> EgressPage:
    """List what the run's sandboxes tried to reach, newest first."""
    run = run_for(request, run_id)
    where = _address(chosen.address) if chosen.address is not None else None
    found = records_where(run, **chosen.model_dump() | {"address": where})
    if cursor is not None:
        found = found.extra(where=["(event_seq, seq) < (%s, %s)"], params=decode_cursor(cursor, (int, int)))
    page = list(found[: limit + 1])
    items = [EgressOut.of(record) for record in page[:limit]]
    last = items[-1] if len(page) > limit else None
    return EgressPage(items=items, next_cursor=encode_cursor(last.event_seq, last.seq) if last else None)


def _address(given: str) -> str:
    """Return the address in the one spelling that records have."""
    try:
        return normalised(given)
    except ValueError:
        remedy = "give an IPv4 or IPv6 address, or use name"
        raise Invalid.field("address", given, "this is no address", remedy) from None


@router.get("/runs/{uuid:run_id}/quarantines", response=QuarantinePage, operation_id="list_quarantines")
def list_quarantines(
    request: HttpRequest,
    run_id: UUID,
    state: QuarantineState | None = None,
    limit: int = Query(50, ge=1, le=MOST_PER_PAGE),
    cursor: str | None = None,
) -> QuarantinePage:
    """The run's trajectories that alerts have quarantined, by name."""
    run = run_for(request, run_id)
    found = quarantines_where(run, state=state).order_by("trajectory_id")
    if cursor is not None:
        found = found.filter(trajectory_id__gt=decode_cursor(cursor, (str,))[0])
    page = list(found[: limit + 1])
    items = [QuarantineOut.of(quarantine, run) for quarantine in page[:limit]]
    return QuarantinePage(items=items, next_cursor=encode_cursor(items[-1].trajectory) if len(page) > limit else None)


QUARANTINE = "/runs/{uuid:run_id}/quarantines/{trajectory_id}"


@router.get(QUARANTINE, response=QuarantineDetail, operation_id="get_quarantine")
def get_quarantine(request: HttpRequest, run_id: UUID, trajectory_id: str) -> QuarantineDetail:
    quarantine = quarantine_for(request, run_id, trajectory_id)
    history = ReviewDecision.objects.filter(run=quarantine.run, trajectory_id=trajectory_id).order_by("-number")
    return QuarantineDetail(
        **QuarantineOut.of(quarantine, quarantine.run).dict(),
        history=[ReviewDecisionOut.of(review_decision) for review_decision in history],
    )


@router.post(
    QUARANTINE + "/review-decisions",
    response={201: ReviewDecisionOut},
    operation_id="rule",
    auth=to_one(run_for, "run_id", "review"),
)
def rule(
    request: HttpRequest, run_id: UUID, trajectory_id: str, review_decision: ReviewDecisionRequest
) -> Status[object]:
    """Say whether the trajectory was benign.  A later review decision replaces an earlier one; the engine hears it with
    its next batch.  Benign: trained on at the next step, if at most `environment.response.release_within_steps` updates
    happened since it was sampled.  Malicious: never trained on."""
    quarantine = quarantine_for(request, run_id, trajectory_id, to="review")
    user = caller_of(request).user

    def act() -> tuple[int, ReviewDecisionOut]:
        made = services.review(
            quarantine.run, trajectory_id, review_decision.verdict, review_decision.note, acting_user=user
        )
        return 201, ReviewDecisionOut.of(made)

    return once(request, quarantine.run.team, act)
