"""The page of the environments: what a policy is asked, what it may use, and how it fared."""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from engine.spec.run import EXAMPLE_QUESTIONS, PythonMath
from sandboxes.spec import SandboxSpec
from webapp.catalog.access import environments_of
from webapp.runs.access import runs_of
from webapp.runs.models import Event, Run
from webapp.trajectories.models import Trajectory

EXAMPLES = 3
LEVELS = {
    1: ("One operation", "Two numbers and an operator. One tool call is enough."),
    2: ("An expression", "Three or four numbers, with parentheses. One tool call is enough; a guess is rarely right."),
    3: (
        "Look up, then combine",
        "Two of the numbers are only in the sandbox. One call prints them, a later one combines them.",
    ),
}


@dataclass(frozen=True)
class Example:
    question: str
    run_id: Any = None
    trajectory_id: str = ""
    """Empty: no run has been asked this yet."""


@dataclass(frozen=True)
class Level:
    number: int
    title: str
    about: str
    examples: list[Example]


@login_required
@require_GET
def environments(request: HttpRequest) -> HttpResponse:
    newest: dict[tuple[int, str], Any] = {}
    for environment in environments_of(request):
        newest.setdefault((environment.team_id, environment.name), environment)
    context = {
        "section": "environments",
        "environments": [(one, PythonMath.model_validate(one.spec)) for one in newest.values()],
        "levels": _levels(request),
        "sandbox_fields": [(name, info.description) for name, info in SandboxSpec.model_fields.items()],
        "about": PythonMath.__doc__,
    }
    return render(request, "catalog/environments.html", context)


def _levels(request: HttpRequest) -> list[Level]:
    """Each level with questions that the newest run with trajectories was asked, or else with documented ones."""
    run = runs_of(request).filter(Exists(Trajectory.objects.filter(run=OuterRef("id")))).first()
    levels = []
    for number, (title, about) in LEVELS.items():
        asked = _asked(run, number) if run else []
        levels.append(Level(number, title, about, asked or [Example(one) for one in EXAMPLE_QUESTIONS[number]]))
    return levels


def _asked(run: Run, level: int) -> list[Example]:
    rows = Trajectory.objects.filter(run=run, level=level, index=0).order_by("-seq")[: 4 * EXAMPLES]
    seqs = {row.seq: row.trajectory_id for row in rows}
    found: dict[str, Example] = {}
    events = Event.objects.filter(run=run, seq__in=seqs).order_by("-seq")
    for seq, question in events.values_list("seq", "body__trajectory__task__question"):
        found.setdefault(question, Example(question, run.id, seqs[seq]))
    return list(found.values())[:EXAMPLES]
