"""The page of the environments: what a policy is asked, what it may use, and how it fared."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from engine.spec.environment import Apps, Household, PythonMath, SearchQa, Sokoban, Webshop
from engine.spec.examples import EXAMPLE_QUESTIONS
from webapp.accounts.access import may, teams_of
from webapp.catalog.access import datasets_of, environments_of
from webapp.catalog.environment_versions import readable
from webapp.runs.access import runs_of
from webapp.runs.models import ENVIRONMENT_OF_RUN, Event, Run
from webapp.trajectories.models import Trajectory

EXAMPLES = 3
NEWEST_RUNS = 50
LEVELS: dict[str, dict[int, tuple[str, str]]] = {
    "python-math": {
        1: ("One operation", "Two numbers and an operator. One tool call is enough."),
        2: (
            "An expression",
            "Three or four numbers, with parentheses. One tool call is enough; a guess is rarely right.",
        ),
        3: (
            "Look up, then combine",
            "Two of the numbers are only in the sandbox. One call prints them, a later one combines them.",
        ),
        4: ("Locked cells", "Three cells, each opened by what the one before it holds. Most first calls fail."),
    },
    "household": {
        1: ("Fetch", "One object, somewhere in a small room without doors."),
        2: ("Doors and lamps", "Closed doors, and things to examine under a lamp."),
        3: ("Treat", "Heat, cool or clean it first."),
        4: ("Two things", "Bring two of the same kind."),
        5: ("The large house", "All of it, in the largest house."),
    },
    "sokoban": {
        1: ("One box, near", "2 to 4 moves."),
        2: ("One box, far", "5 to 10 moves."),
        3: ("Two boxes", "4 to 12 moves."),
    },
    "webshop": {
        1: ("Attributes and price", "What fits stands on the first page of results, and its line says so."),
        2: ("Options", "Two options have to be chosen, and some cost more."),
        3: ("Hidden attributes", "Products have to be opened, on two pages of results."),
    },
    "search-qa": {
        1: ("Two hops", "A chain over two documents."),
        2: ("Three hops, or two to compare", "A chain over three documents, or which of two is older."),
        3: ("Four documents", "A chain over four documents, or which of what two chains lead to is older."),
    },
    "apps": {
        1: ("One app", "Log in, find something, and change or report it."),
        2: ("Two apps", "What one app says is used in another."),
        3: ("Three and four apps", "Read what is to be done, and do it in up to three other apps."),
    },
}
_SHOWN = (PythonMath, Household, Sokoban, Webshop, SearchQa, Apps)
BUILT_IN = {str(model.model_fields["id"].default): model for model in _SHOWN}


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
    published = _newest(environments_of(request))
    context = {
        "section": "environments",
        "environments": [(environment, readable(environment.spec)) for environment in published],
        "datasets": _newest(datasets_of(request)),
        "built_in_names": set(BUILT_IN),
        "launches": any(may(request, team, "launch") for team in teams_of(request)),
        "built_in": [(name, _paragraphs(model.__doc__), _levels(request, name)) for name, model in BUILT_IN.items()],
    }
    return render(request, "environments/environments.html", context)


def _newest(versions: Iterable[Any]) -> list[Any]:
    """One version of each team's name; those given come with the newest first."""
    newest: dict[tuple[int, str], Any] = {}
    for version in versions:
        newest.setdefault((version.team_id, version.name), version)
    return list(newest.values())


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in (text or "").split("\n\n")]


def _levels(request: HttpRequest, environment: str) -> list[Level]:
    """Each level with questions that the newest run with trajectories was asked, or else with documented ones."""
    run = _newest_asked(request, environment)
    levels = []
    for number, (title, about) in LEVELS[environment].items():
        documented = [Example(question) for question in EXAMPLE_QUESTIONS[environment][number]]
        levels.append(Level(number, title, about, (_asked(run, number) if run else []) or documented))
    return levels


def _newest_asked(request: HttpRequest, environment: str) -> Run | None:
    """The one that is asked for among the newest runs in the environment: older ones are not looked at, however many
    there are."""
    in_it = runs_of(request).annotate(environment=ENVIRONMENT_OF_RUN).filter(environment=environment)
    newest = list(in_it.order_by("-created_at").values_list("id", flat=True)[:NEWEST_RUNS])
    has_trajectories = Exists(Trajectory.objects.filter(run=OuterRef("id")))
    return Run.objects.filter(has_trajectories, id__in=newest).defer("spec").order_by("-created_at").first()


def _asked(run: Run, level: int) -> list[Example]:
    rows = Trajectory.objects.filter(run=run, level=level, member=0).order_by("-seq")[: 4 * EXAMPLES]
    seqs = {row.seq: row.trajectory_id for row in rows}
    found: dict[str, Example] = {}
    events = Event.objects.filter(run=run, seq__in=seqs).order_by("-seq")
    for seq, question in events.values_list("seq", "body__trajectory__task__question"):
        found.setdefault(question, Example(question, run.id, seqs[seq]))
    return list(found.values())[:EXAMPLES]
