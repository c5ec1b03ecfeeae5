"""Pages of alerts: the inbox, one alert, the rules, a run's security, and the buttons."""

from collections.abc import Iterable
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import may
from webapp.pages.answers import redirect_with, tell
from webapp.refusals import Refused
from webapp.runs.access import run_for, runs_of
from webapp.runs.models import Run
from webapp.security import services
from webapp.security.access import alert_for, alerts_of, quarantine_for
from webapp.security.models import Alert, AlertState, EgressRecord, EgressTotals, Quarantine, QuarantineState
from webapp.security.queries import (
    PROTOCOLS,
    SEVERITIES,
    STATES,
    VERDICTS,
    alerts_where,
    quarantines_where,
    records_where,
)
from webapp.security.rules import rule_texts
from webapp.security.standing import release_within, standing_of
from webapp.trajectories.models import Trajectory

ROWS = 50
AROUND = 10
"""Records of the same box before and after the one that completed the evidence."""
ALERTS_OF_RUN = 20
HELD_OF_RUN = 50


@login_required
@require_GET
def inbox(request: HttpRequest) -> HttpResponse:
    """Open alerts first of all: without any filter in the address, only those."""
    chosen = {name: _text(request, name) for name in ("severity", "rule", "run")}
    chosen["state"] = _text(request, "state") if "state" in request.GET else AlertState.OPEN
    found = alerts_where(
        alerts_of(request),
        state=chosen["state"] if chosen["state"] in STATES else None,
        severity=chosen["severity"] if chosen["severity"] in SEVERITIES else None,
        rule=chosen["rule"],
        run=_uuid(chosen["run"]),
    )
    page = Paginator(found, ROWS).get_page(request.GET.get("page", "1"))
    alerts = _with_standing(page.object_list)
    context = {
        "section": "alerts",
        "page": page,
        "alerts": alerts,
        "reviewed_teams": {team for team in {alert.team_id for alert in alerts} if may(request, team, "review")},
        "chosen": chosen,
        "chosen_run": runs_of(request).filter(id=_uuid(chosen["run"])).first(),
        "is_filtered": any(chosen[name] for name in ("severity", "rule", "run")) or chosen["state"] != AlertState.OPEN,
        "states": STATES,
        "severities": SEVERITIES,
        "rules": rule_texts(),
        "here": request.get_full_path(),
    }
    if request.htmx and not request.htmx.history_restore_request:
        return render(request, "security/list.html", context)
    return render(request, "security/inbox.html", context)


def _with_standing(alerts: Iterable[Alert]) -> list[Alert]:
    """With ``held``, how the trajectory of each stands or None, and ``within``, how long a release is in time."""
    alerts = list(alerts)
    places = [(alert.run_id, alert.trajectory_id) for alert in alerts if alert.trajectory_id]
    found = Quarantine.objects.filter(
        run__in={run for run, _ in places}, trajectory_id__in={trajectory for _, trajectory in places}
    )
    states = {(one.run_id, one.trajectory_id): one.state for one in found}
    runs = Run.objects.filter(id__in={alert.run_id for alert in alerts})
    responses = dict(runs.values_list("id", "spec__environment__response"))
    for alert in alerts:
        alert.held = states.get((alert.run_id, alert.trajectory_id))
        alert.within = release_within(responses[alert.run_id])
    return alerts


@login_required
@require_GET
def detail(request: HttpRequest, alert_id: int) -> HttpResponse:
    alert = alert_for(request, alert_id)
    run = alert.run
    row = Trajectory.objects.filter(run=run, trajectory_id=alert.trajectory_id).first() if alert.trajectory_id else None
    mine = alerts_of(request)
    context = {
        "section": "alerts",
        "alert": alert,
        "run": run,
        "rule": rule_texts().get(alert.rule),
        "row": row,
        "turn_address": turn_address(alert) if row else None,
        "standing": standing_of(request, run, alert.trajectory_id) if alert.trajectory_id else None,
        "records": _around(alert),
        "others": mine.filter(run=run, trajectory_id=alert.trajectory_id).exclude(id=alert.id)[:20]
        if alert.trajectory_id
        else [],
        "newer": mine.filter(id__gt=alert.id).order_by("id").first(),
        "older": mine.filter(id__lt=alert.id).first(),
        "may_review": may(request, alert.team, "review"),
        "here": request.path,
    }
    return render(request, "security/detail.html", context)


def turn_address(alert: Alert) -> str:
    """The page of the trajectory, at the very turn."""
    page = reverse("trajectories:detail", args=[alert.run_id, alert.trajectory_id])
    return f"{page}#turn-{(alert.turn or 0) + 1}"


def _around(alert: Alert) -> QuerySet[EgressRecord]:
    """The records of the same box around the evidence; for a command, those of its turn."""
    records = EgressRecord.objects.filter(run=alert.run_id, box=alert.box).order_by("seq")
    if alert.record_seq is not None:
        return records.filter(seq__gte=alert.record_seq - AROUND, seq__lte=alert.record_seq + AROUND)
    return records.filter(trajectory_id=alert.trajectory_id, turn=alert.turn)[: 2 * AROUND]


@login_required
@require_GET
def rules(request: HttpRequest) -> HttpResponse:
    """What each rule catches and how it is tuned, as docs/egress.md has it."""
    return render(request, "security/rules.html", {"section": "alerts", "rules": rule_texts().values()})


@login_required
@require_GET
def of_run(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """What a run's boxes tried to reach; a tab of its page, and a page of its own without scripts."""
    run = run_for(request, run_id)
    names = ("verdict", "protocol", "name", "address", "trajectory", "turn", "box")
    chosen = {name: _text(request, name) for name in names}
    for name, known in (("verdict", VERDICTS), ("protocol", PROTOCOLS)):
        chosen[name] = chosen[name] if chosen[name] in known else ""
    chosen["turn"] = chosen["turn"] if _is_count(chosen["turn"]) else ""
    turn = int(chosen["turn"]) - 1 if chosen["turn"] else None
    found = records_where(run, **chosen | {"turn": turn})
    before = _place_in(_text(request, "before"))
    if before:
        found = found.extra(where=["(event_seq, seq) < (%s, %s)"], params=before)
    page = list(found[: ROWS + 1])
    alerts = Alert.objects.filter(run=run).select_related("run").order_by("-id")
    quarantines = list(quarantines_where(run)[:HELD_OF_RUN])
    held = [one.trajectory_id for one in quarantines]
    told = set(Trajectory.objects.filter(run=run, trajectory_id__in=held).values_list("trajectory_id", flat=True))
    counted = Quarantine.objects.filter(run=run).aggregate(
        all=Count("state"), pending=Count("state", filter=Q(state=QuarantineState.PENDING))
    )
    context = {
        "section": "runs",
        "run": run,
        "totals": EgressTotals.objects.filter(run=run).first(),
        "alerts": _with_standing(alerts[:ALERTS_OF_RUN]),
        "alert_count": alerts.count(),
        "open_count": alerts.filter(state=AlertState.OPEN).count(),
        "quarantines": quarantines,
        "told": told,
        "counted": counted,
        "records": page[:ROWS],
        "older": f"{page[ROWS - 1].event_seq}-{page[ROWS - 1].seq}" if len(page) > ROWS else None,
        "before": "-".join(map(str, before)),
        "chosen": chosen,
        "is_filtered": any(chosen.values()),
        "verdicts": VERDICTS,
        "protocols": PROTOCOLS,
        "here": f"{request.path}?{urlencode({name: value for name, value in chosen.items() if value})}",
    }
    if request.htmx and not request.htmx.history_restore_request:
        return render(request, "security/run.html", context)
    return render(request, "security/run_page.html", context)


@login_required
@require_POST
def acknowledge(request: HttpRequest, alert_id: int) -> HttpResponse:
    alert = alert_for(request, alert_id, to="review")
    services.acknowledge_alert(alert, acting_user=request.user)
    return redirect_with(request, "Acknowledged.", _back(request, reverse("security:alert", args=[alert.id])))


@login_required
@require_POST
def rule(request: HttpRequest, run_id: UUID, trajectory_id: str) -> HttpResponse:
    one = quarantine_for(request, run_id, trajectory_id, to="review")
    back = _back(request, reverse("trajectories:detail", args=[run_id, trajectory_id]))
    verdict, note = request.POST.get("verdict", ""), request.POST.get("note", "")
    try:
        made = services.rule(one.run, trajectory_id, verdict, note, acting_user=request.user)  # type: ignore[arg-type]
    except Refused as refusal:
        tell(request, refusal)
        return redirect(back)
    text = f"{trajectory_id} is ruled {made.verdict} (ruling {made.number}). To change your mind, rule again."
    return redirect_with(request, text, back)


def _back(request: HttpRequest, default: str) -> str:
    """Where the form stood, if that is one of our pages."""
    given = request.POST.get("back", "")
    is_ours = url_has_allowed_host_and_scheme(given, allowed_hosts=None) and given.startswith("/")
    return given if is_ours else default


def _text(request: HttpRequest, name: str) -> str:
    return request.GET.get(name, "").strip().replace("\0", "")[:255]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0


def _place_in(text: str) -> list[int]:
    """``<event seq>-<record seq>``, or nothing."""
    parts = text.split("-")
    return [int(part) for part in parts] if len(parts) == 2 and all(_is_count(part) for part in parts) else []


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
