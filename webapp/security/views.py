"""Pages of alerts: the inbox, one alert, the rules, a run's security, and the buttons."""

from collections.abc import Iterable, Mapping
from typing import get_args
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import allowed, allowed_somewhere, may, teams_of
from webapp.accounts.models import Team
from webapp.accounts.requests import PageRequest
from webapp.pages.responses import redirect_with, show_refusal
from webapp.refusals import Invalid, Refused
from webapp.runs.access import run_for, runs_of
from webapp.runs.models import Run
from webapp.security import services
from webapp.security.access import alert_for, alerts_of, quarantine_for
from webapp.security.decisions import Decided, Decision, decide
from webapp.security.effects import release_within, training_effect
from webapp.security.groups import alike, filled, grouped
from webapp.security.models import Alert, AlertState, EgressRecord, EgressTotals, Quarantine, QuarantineState
from webapp.security.quarantine_status import quarantine_status_of
from webapp.security.queries import (
    DECISIONS,
    PROTOCOLS,
    SEVERITIES,
    STATES,
    alerts_where,
    quarantines_where,
    records_where,
)
from webapp.security.rules import rule_texts
from webapp.security.turns import turn_shown
from webapp.trajectories.models import Trajectory

ROWS = 50
AROUND = 10
"""Records of the same sandbox before and after the one that completed the evidence."""
ALERTS_OF_RUN = 20
"""Groups."""
RUNS_TO_CHOOSE = 50
HELD_OF_RUN = 10
"""As many as stand beside the groups of alerts, which is where all of them are decided."""


@login_required
@require_GET
def inbox(request: PageRequest) -> HttpResponse:
    """Open alerts first of all, alike ones as one: without any filter in the address, only those."""
    chosen = _chosen(request.GET)
    found = _alerts_in(request, chosen)
    page = Paginator(grouped(found), ROWS).get_page(request.GET.get("page", "1"))
    groups = filled(list(page.object_list))
    _with_quarantine_status([group.newest for group in groups])
    context = {
        "section": "alerts",
        "page": page,
        "groups": groups,
        "totals": found.order_by().aggregate(alerts=Count("id"), through=Max("id")),
        "reviewed_teams": {team for team in {group.newest.team_id for group in groups} if may(request, team, "review")},
        "chosen": chosen,
        "is_filtered": any(chosen[name] for name in ("severity", "rule", "run")) or chosen["state"] != AlertState.OPEN,
        "states": STATES,
        "severities": SEVERITIES,
        "rules": rule_texts(),
        "runs": _runs_to_choose(request, chosen["run"]),
        "here": request.get_full_path(),
        "query": _query_of(chosen),
    }
    if request.htmx and not request.htmx.history_restore_request:
        return render(request, "security/list.html", context)
    return render(request, "security/inbox.html", context)


def _chosen(given: Mapping[str, str]) -> dict[str, str]:
    chosen = {name: _clean(given.get(name, "")) for name in ("severity", "rule", "run")}
    return {"state": _clean(given["state"]) if "state" in given else str(AlertState.OPEN), **chosen}


def _query_of(chosen: Mapping[str, str]) -> str:
    """The address that chooses the same: without a state in it only open alerts are meant, with an empty one all."""
    return urlencode({name: value for name, value in chosen.items() if value or name == "state"})


def _alerts_in(request: PageRequest, chosen: dict[str, str]) -> QuerySet[Alert]:
    return alerts_where(
        alerts_of(request),
        state=chosen["state"] if chosen["state"] in STATES else None,
        severity=chosen["severity"] if chosen["severity"] in SEVERITIES else None,
        rule=chosen["rule"],
        run=_uuid(chosen["run"]),
    )


def _runs_to_choose(request: PageRequest, chosen: str) -> list[Run]:
    """The newest with alerts, and the one that is chosen."""
    runs = runs_of(request).order_by("-created_at", "-id").defer("spec")
    newest = list(runs.filter(Exists(Alert.objects.filter(run=OuterRef("pk"))))[:RUNS_TO_CHOOSE])
    asked = _uuid(chosen)
    if asked is None or any(run.id == asked for run in newest):
        return newest
    return [*newest, *runs.filter(id=asked)]


@login_required
@require_GET
def alike_alerts(request: PageRequest, alert_id: int) -> HttpResponse:
    """All of a group, newest first; a part of the inbox, and a page of its own without scripts."""
    alert = alert_for(request, alert_id)
    chosen = _chosen(request.GET)
    found = _alerts_in(request, chosen).filter(alike([alert.id]))
    page = Paginator(found, ROWS).get_page(request.GET.get("page", "1"))
    context = {
        "section": "alerts",
        "alert": alert,
        "alerts": _with_quarantine_status(page.object_list),
        "page": page,
        "query": _query_of(chosen),
    }
    return render(request, "security/alike.html" if request.htmx else "security/alike_page.html", context)


def _with_quarantine_status(alerts: Iterable[Alert]) -> list[Alert]:
    """With ``held``, how the trajectory of each stands or None, and ``within``, how long a release is in time."""
    alerts = list(alerts)
    named = [(alert.run_id, alert.trajectory_id) for alert in alerts if alert.trajectory_id]
    found = Quarantine.objects.filter(
        run__in={run for run, _ in named}, trajectory_id__in={trajectory for _, trajectory in named}
    )
    states = {(quarantine.run_id, quarantine.trajectory_id): quarantine.state for quarantine in found}
    runs = Run.objects.filter(id__in={alert.run_id for alert in alerts})
    responses = dict(runs.values_list("id", "spec__environment__response"))
    for alert in alerts:
        alert.held = states.get((alert.run_id, alert.trajectory_id))
        alert.within = release_within(responses[alert.run_id])
    return alerts


@login_required
@require_GET
def detail(request: PageRequest, alert_id: int) -> HttpResponse:
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
        "turn": turn_shown(alert, row),
        "turn_address": turn_address(alert) if row else None,
        "quarantine_status": quarantine_status_of(request, run, alert.trajectory_id) if alert.trajectory_id else None,
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
    """The records of the same sandbox around the evidence; for a command, those of its turn."""
    records = EgressRecord.objects.filter(run=alert.run_id, sandbox=alert.sandbox).order_by("seq")
    if alert.record_seq is not None:
        return records.filter(seq__gte=alert.record_seq - AROUND, seq__lte=alert.record_seq + AROUND)
    return records.filter(trajectory_id=alert.trajectory_id, turn=alert.turn)[: 2 * AROUND]


@login_required
@require_GET
def rules(request: PageRequest) -> HttpResponse:
    """Show what each rule catches and how it is tuned, as docs/egress.md has it."""
    return render(request, "security/rules.html", {"section": "alerts", "rules": rule_texts().values()})


@login_required
@require_GET
def of_run(request: PageRequest, run_id: UUID) -> HttpResponse:
    """Show what a run's sandboxes tried to reach; a tab of its page, and a page of its own without scripts."""
    run = run_for(request, run_id)
    names = ("decision", "protocol", "name", "address", "trajectory", "turn", "sandbox")
    chosen = {name: _text(request, name) for name in names}
    for name, known in (("decision", DECISIONS), ("protocol", PROTOCOLS)):
        chosen[name] = chosen[name] if chosen[name] in known else ""
    chosen["turn"] = chosen["turn"] if _is_count(chosen["turn"]) else ""
    turn = int(chosen["turn"]) - 1 if chosen["turn"] else None
    found = records_where(run, turn=turn, **{name: text for name, text in chosen.items() if name != "turn"})
    before = _position_in(_text(request, "before"))
    if before:
        found = found.extra(where=["(event_seq, seq) < (%s, %s)"], params=before)
    page = list(found[: ROWS + 1])
    alerts = Alert.objects.filter(run=run).select_related("run").order_by("-id")
    quarantines = list(quarantines_where(run).order_by("-state", "-since", "trajectory_id")[:HELD_OF_RUN])
    within = release_within(run.spec["environment"].get("response"))
    for quarantine in quarantines:
        quarantine.training = training_effect(quarantine, run, within=within).text
    held = [quarantine.trajectory_id for quarantine in quarantines]
    stored = set(Trajectory.objects.filter(run=run, trajectory_id__in=held).values_list("trajectory_id", flat=True))
    counted = Quarantine.objects.filter(run=run).aggregate(
        all=Count("state"), pending=Count("state", filter=Q(state=QuarantineState.PENDING))
    )
    context = {
        "section": "runs",
        "run": run,
        "totals": EgressTotals.objects.filter(run=run).first(),
        "groups": filled(list(grouped(alerts)[:ALERTS_OF_RUN])),
        "alert_count": alerts.count(),
        "open_count": alerts.filter(state=AlertState.OPEN).count(),
        "quarantines": quarantines,
        "stored": stored,
        "counted": counted,
        "records": page[:ROWS],
        "older": f"{page[ROWS - 1].event_seq}-{page[ROWS - 1].seq}" if len(page) > ROWS else None,
        "before": "-".join(map(str, before)),
        "chosen": chosen,
        "is_filtered": any(chosen.values()),
        "decisions": DECISIONS,
        "protocols": PROTOCOLS,
        "here": f"{request.path}?{urlencode({name: value for name, value in chosen.items() if value})}",
    }
    if request.htmx and not request.htmx.history_restore_request:
        return render(request, "security/run.html", context)
    return render(request, "security/run_page.html", context)


@login_required
@require_POST
def acknowledge(request: PageRequest, alert_id: int) -> HttpResponse:
    alert = alert_for(request, alert_id, to="review")
    services.acknowledge_alert(alert, acting_user=request.user)
    return redirect_with(request, "Acknowledged.", _back(request, reverse("security:alert", args=[alert.id])))


@login_required
@require_POST
def decide_many(request: PageRequest) -> HttpResponse:
    """About the groups that are marked, or about everything that the list was narrowed to."""
    allowed_somewhere(request, "review")
    back = _back(request, reverse("security:alerts"))
    try:
        decision, through = _decision_in(request.POST), _number_in(request.POST, "through")
        found = _alerts_marked(request)
        with transaction.atomic():
            decided = [
                decide(
                    team, found, decision, request.POST.get("note", ""),
                    acting_user=request.user, through=through,
                )
                for team in _teams_in(request, found)
            ]  # fmt: skip
    except Refused as refusal:
        show_refusal(request, refusal)
        return redirect(back)
    return redirect_with(request, _outcome(decision, sum(decided, start=Decided(0))), back)


def _alerts_marked(request: PageRequest) -> QuerySet[Alert]:
    if request.POST.get("matching"):
        reviewed = [team.id for team in teams_of(request) if may(request, team, "review")]
        return _alerts_in(request, _chosen(request.POST)).filter(team__in=reviewed)
    marked = [_number(text, "like") for text in request.POST.getlist("like")]
    if not marked:
        raise Invalid.field("like", [], "nothing is marked", "mark at least one row")
    mine = alerts_of(request)
    if mine.filter(id__in=marked).count() < len(set(marked)):
        raise Http404
    # A row stands for what its list showed: alike alerts that the filters left out are not decided with it.
    listed = _alerts_in(request, _chosen(request.POST)) if "state" in request.POST else mine
    return listed.filter(alike(marked))


def _teams_in(request: PageRequest, found: QuerySet[Alert]) -> list[Team]:
    """Through the door of each: raises PermissionDenied where the role in one of them is too low."""
    teams = Team.objects.filter(id__in=found.order_by().values("team_id")).order_by("id")
    return [allowed(request, team, "review").team for team in teams]


def _decision_in(given: Mapping[str, str]) -> Decision:
    known: dict[str, Decision] = {decision: decision for decision in get_args(Decision)}
    name = given.get("decision", "")
    if name not in known:
        raise Invalid.field("decision", name, "this is no decision", f"use one of: {', '.join(known)}")
    return known[name]


def _number_in(given: Mapping[str, str], name: str) -> int | None:
    return _number(given[name], name) if given.get(name) else None


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Invalid.field(name, text[:40], "this is no number of an alert", "mark rows of the list")
    return int(text)


def _outcome(decision: Decision, decided: Decided) -> str:
    """What came of it, for the page."""
    if decision == "acknowledge":
        return f"{_counted(decided.alerts, 'alert')} acknowledged."
    parts = [f"{_counted(decided.trajectories, 'trajectory', 'trajectories')} found {decision}"]
    parts += [f"{_counted(decided.alerts, 'alert')} decided"]
    parts += [f"{decided.unchanged} stood so before"] * bool(decided.unchanged)
    parts += [f"{decided.held_back} held back: another undecided alert quarantined them too"] * bool(decided.held_back)
    parts += [f"{decided.without_effect} of runs that have ended, where it changes no training"] * bool(
        decided.without_effect
    )
    return "; ".join(parts) + "."


def _counted(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


@login_required
@require_POST
def rule(request: PageRequest, run_id: UUID, trajectory_id: str) -> HttpResponse:
    quarantine = quarantine_for(request, run_id, trajectory_id, to="review")
    back = _back(request, reverse("trajectories:detail", args=[run_id, trajectory_id]))
    verdict, note = request.POST.get("verdict", ""), request.POST.get("note", "")
    try:
        made = services.review(quarantine.run, trajectory_id, verdict, note, acting_user=request.user)
    except Refused as refusal:
        show_refusal(request, refusal)
        return redirect(back)
    text = f"{trajectory_id} is found {made.verdict} (review decision {made.number}). Decide again to change it."
    return redirect_with(request, text, back)


def _back(request: PageRequest, default: str) -> str:
    """Return where the form stood, if that is one of our pages."""
    given = request.POST.get("back", "")
    is_ours = url_has_allowed_host_and_scheme(given, allowed_hosts=None) and given.startswith("/")
    return given if is_ours else default


def _text(request: PageRequest, name: str) -> str:
    return _clean(request.GET.get(name, ""))


def _clean(text: str) -> str:
    return text.strip().replace("\0", "")[:255]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0


def _position_in(text: str) -> list[int]:
    """``<event seq>-<record seq>``, or nothing."""
    parts = text.split("-")
    return [int(part) for part in parts] if len(parts) == 2 and all(_is_count(part) for part in parts) else []


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
