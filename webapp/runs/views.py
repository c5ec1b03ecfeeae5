"""Pages of runs: the overview, one run live, and its buttons."""

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import may, teams_of
from webapp.accounts.requests import PageRequest
from webapp.experiments.access import experiments_of
from webapp.experiments.toml import as_toml
from webapp.pages.responses import refusals_return_to
from webapp.runs import charts, services
from webapp.runs.access import run_for, runs_of
from webapp.runs.lanes import LANES, lanes_of
from webapp.runs.listing import FILTERS, listing
from webapp.runs.models import Run
from webapp.runs.now import GLOSSARY, cold_starts_of, now_of_run
from webapp.runs.snapshot import close_look, counts_of, snapshot
from webapp.runs.usage import ROLES, newest_usage, reports_servers, tables_of
from webapp.runs.waits import waits_of

TABS = {
    "curves": "Curves",
    "timeline": "Timeline",
    "trajectories": "Trajectories",
    "security": "Security",
    "logs": "Logs",
    "checkpoints": "Checkpoints",
    "config": "Config",
    "history": "History",
}
PARTS = {
    "actions": "runs/actions.html",
    "evaluation": "runs/evaluation.html",
    "waits": "runs/waits.html",
    "usage": "runs/usage.html",
    "checkpoints": "runs/checkpoints.html",
    "history": "runs/history.html",
}
"""Pieces of the run page that are fetched again when the run has moved on."""


class StepRange(forms.Form):
    first_step = forms.IntegerField(min_value=0, max_value=2**31 - 1)
    last_step = forms.IntegerField(min_value=0, max_value=2**31 - 1)


class Until(forms.Form):
    last_step = forms.IntegerField(min_value=0, max_value=2**31 - 1)


@login_required
@require_GET
def overview(request: PageRequest) -> HttpResponse:
    """The runs of all teams of the reader; as a fragment for filters and for keeping the table true."""
    state, text = request.GET.get("state", ""), request.GET.get("q", "").replace("\0", "").strip()[:100]
    found = listing(runs_of(request), state=state, text=text, page=request.GET.get("page", "1"))
    context = {
        "section": "runs",
        "listing": found,
        "filters": [(name, label, name == state) for name, (label, _) in FILTERS.items()],
        "state": state,
        "text": text,
        "is_filtered": bool(state or text),
    }
    is_piece = request.htmx and not request.htmx.history_restore_request
    if not is_piece or not found.rows:
        context["first_experiment"] = experiments_of(request).first()
        context["launches"] = any(may(request, team, "launch") for team in teams_of(request))
    return render(request, "runs/table.html" if is_piece else "runs/overview.html", context)


@login_required
@require_GET
def detail(request: PageRequest, run_id: UUID) -> HttpResponse:
    run = run_for(request, run_id)
    tab = request.GET.get("tab", "curves")
    now = now_of_run(run, cold_starts_of([run.id])[run.id])
    context = _context_of(request, run) | {
        "section": "runs",
        "tabs": TABS,
        "tab": tab if tab in TABS else "curves",
        "now": now,
        "glossary": GLOSSARY,
        "lanes": LANES,
        "roles": ROLES,
        "charts": charts.in_order(now.leads),
        "timeline_charts": charts.TIMELINE,
        "figures": charts.FIGURES,
        "phases": charts.PHASES,
        "page_data": charts.as_data()
        | {name: reverse(f"runs:{name}", args=[run.id]) for name in ("snapshot", "counts", "zoomed", "lanes")},
        "spec_toml": as_toml(run.spec),
    }
    return render(request, "runs/detail.html", context)


@login_required
@require_GET
def part(request: PageRequest, run_id: UUID, name: str) -> HttpResponse:
    if name not in PARTS:
        raise Http404
    return render(request, PARTS[name], _context_of(request, run_for(request, run_id)))


def _context_of(request: PageRequest, run: Run) -> dict[str, Any]:
    return {
        "run": run,
        "launches": may(request, run.team, "launch"),
        "transitions": run.transitions.all(),
        "checkpoints": run.checkpoints.order_by("-step"),
        "promotes": _name_to_promote(run),
        "waits": waits_of(run),
        "usage": None if (measured := newest_usage(run)) is None else tables_of(measured),
        "has_servers": reports_servers(run.spec),
    }


def _name_to_promote(run: Run) -> str:
    """The model's name that is offered for a checkpoint; empty for a built-in network, which is no model folder."""
    if run.spec["model"].get("kind", "builtin") == "builtin":
        return ""
    if run.model_version is not None:
        return run.model_version.model.name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", run.name).lstrip(".-")[:100] or f"run-{run.number}"


@never_cache
@login_required
@require_GET
def first_look(request: PageRequest, run_id: UUID) -> JsonResponse:
    """Answer with what the page draws before the websocket goes on from ``seq``."""
    return JsonResponse(snapshot(run_for(request, run_id).id))


@never_cache
@login_required
@require_GET
def counts(request: PageRequest, run_id: UUID) -> JsonResponse:
    """Answer with what the tabs count: events do not say what they replace."""
    return JsonResponse(counts_of(run_for(request, run_id)))


@never_cache
@login_required
@require_GET
def zoomed(request: PageRequest, run_id: UUID) -> JsonResponse:
    """The points that a page draws when its reader has zoomed to some steps: ``?key=…&first_step=…&last_step=…``."""
    run = run_for(request, run_id)
    asked = StepRange(request.GET)
    if not asked.is_valid():
        return JsonResponse({"problems": asked.errors.get_json_data()}, status=422)
    keys = [key for key in request.GET.getlist("key") if "\0" not in key]
    return JsonResponse(close_look(run.id, keys, **asked.cleaned_data))


@never_cache
@login_required
@require_GET
def earlier_lanes(request: PageRequest, run_id: UUID) -> JsonResponse:
    """The lanes of the steps up to ``?last_step=…``, as many as a page draws."""
    run = run_for(request, run_id)
    asked = Until(request.GET)
    if not asked.is_valid():
        return JsonResponse({"problems": asked.errors.get_json_data()}, status=422)
    return JsonResponse({"lanes": [asdict(step) for step in lanes_of(run.id, **asked.cleaned_data)]})


def _run_url(run_id: UUID) -> str:
    return reverse("runs:detail", args=[run_id])


def _order(verb: Callable[..., Run]) -> Callable[..., HttpResponse]:
    """The view of a button: do ``verb`` with the run and go back to its page."""

    @login_required
    @require_POST
    @refusals_return_to(_run_url)
    def view(request: PageRequest, run_id: UUID) -> HttpResponse:
        verb(run_for(request, run_id, to="launch"), acting_user=request.user)
        return redirect(_run_url(run_id))

    return view


cancel = _order(services.cancel_run)
pause = _order(services.pause_run)
resume = _order(services.resume_run)
