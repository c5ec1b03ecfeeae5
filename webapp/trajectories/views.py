"""Pages of trajectories: the list of a run, and one of them token by token."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from webapp.accounts.requests import PageRequest
from webapp.runs.access import run_for
from webapp.security.quarantine_status import quarantine_status_of
from webapp.security.queries import QUARANTINES
from webapp.security.turns import of_turns
from webapp.trajectories import shades
from webapp.trajectories.access import trajectory_for
from webapp.trajectories.changes import summary_of
from webapp.trajectories.filters import CHANGES, ENDS, ERRORS, OUTCOMES, PURPOSES, Filter, reward_histogram
from webapp.trajectories.models import Trajectory
from webapp.trajectories.outline import Outline
from webapp.trajectories.sections import sections_of

ROWS = 50
FRAGMENTS = {"rewards": "trajectories/rewards.html"}
"""By the id of the element that a fragment goes into; otherwise it is the whole list."""
PLACE = ("purpose", "prompt", "member")
"""The order in which j and k walk."""


@login_required
@require_GET
def index(request: PageRequest, run_id: UUID) -> HttpResponse:
    run = run_for(request, run_id)
    chosen = Filter.of(request.GET)
    context = {
        "section": "runs",
        "run": run,
        "chosen": chosen,
        "page": Paginator(chosen.of_run(run).with_quarantine(), ROWS).get_page(request.GET.get("page", "1")),
        "histogram": reward_histogram(run, chosen),
        "purposes": PURPOSES,
        "outcomes": OUTCOMES,
        "errors": ERRORS,
        "changes": CHANGES,
        "ends": ENDS,
        "quarantines": QUARANTINES,
        **_of_tasks(run.spec["environment"]),
    }
    if not request.htmx or request.htmx.history_restore_request:
        return render(request, "trajectories/index.html", context)
    return render(request, FRAGMENTS.get(request.htmx.target or "", "trajectories/list.html"), context)


def _of_tasks(environment: dict[str, Any]) -> dict[str, Any]:
    """The levels and the parts that a list can be narrowed to."""
    parts = environment.get("parts", [])
    played = [part["environment"] for part in parts] or [environment]
    named = {"": "Any part"} | {part["name"]: part["name"] for part in parts} if parts else {}
    levels = {level for one in played for level in one.get("levels", [])}
    return {"levels": sorted(levels), "parts": named}


@login_required
@require_GET
def detail(request: PageRequest, run_id: UUID, trajectory_id: str) -> HttpResponse:
    row = trajectory_for(request, run_id, trajectory_id)
    document = row.document
    colour = request.GET.get("colour", "advantage" if row.purpose == "train" else "logprob")
    group = Trajectory.objects.filter(run_id=row.run_id, purpose=row.purpose, prompt=row.prompt).order_by("member")
    watched = of_turns(row.run, trajectory_id)
    context = {
        "section": "runs",
        "run": row.run,
        "row": row,
        "ended_by": ENDS.get(row.stop_reason, row.stop_reason).lower(),
        "quarantine_status": quarantine_status_of(request, row.run, trajectory_id),
        "here": request.get_full_path(),
        "trajectory": document,
        "sections": sections_of(document, watched),
        "outline": Outline.of(document, watched),
        "summary": summary_of(document),
        "group": group,
        "previous": _neighbour(row, forward=False),
        "next": _neighbour(row, forward=True),
        "colours": shades.COLOURS,
        "colour": colour if colour in shades.COLOURS else "logprob",
    }
    return render(request, "trajectories/detail.html", context)


def _neighbour(row: Trajectory, *, forward: bool) -> Trajectory | None:
    """The next (or previous) trajectory by purpose, prompt and member."""
    beyond, same = Q(), Q()
    for name in PLACE:
        beyond |= same & Q(**{f"{name}__{'gt' if forward else 'lt'}": getattr(row, name)})
        same &= Q(**{name: getattr(row, name)})
    order = [name if forward else f"-{name}" for name in PLACE]
    others = Trajectory.objects.filter(beyond, run_id=row.run_id)
    return others.order_by(*order).first()
