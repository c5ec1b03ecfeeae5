"""The pages of a team's environments: defining one with its problems named as it is typed, and one version."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from pydantic import ValidationError

from engine.spec.package_check import PackageCheck
from engine.spec.problems import problems_in
from webapp.accounts.access import may, team_to_act_in, teams_of
from webapp.accounts.models import Team
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import (
    dataset_versions_of,
    environment_for,
    environments_of,
    package_version_for,
    versions_of,
)
from webapp.catalog.environment_versions import changed_fields, environment_of, environment_of_text, readable, text_of
from webapp.catalog.models import Environment
from webapp.catalog.services import publish_environment
from webapp.environments.views import BUILT_IN
from webapp.pages.responses import redirect_with, refusals_return_to
from webapp.refusals import Invalid, Refused
from webapp.runs.dependents import delete_environment, environment_dependents_of
from webapp.runs.tries import EnvironmentTry, begin_try, tries_of

MOST_SIBLINGS = 100
MOST_OFFERED = 200
READY = "ready"


@login_required
@require_http_methods(["GET", "POST"])
def new(request: PageRequest) -> HttpResponse:
    """It begins with ``?from=`` a version, with ``?package=`` one of the catalog, or with ``?kind=`` a built-in one."""
    if request.method == "GET":
        return render(request, "environments/new.html", _form(request, _to_begin_with(request)))
    typed = _typed(request)
    try:
        team = team_to_act_in(request, request.POST.get("team"), to="launch")
        version = publish_environment(
            team,
            typed["name"],
            environment_of_text(typed["text"]),
            acting_user=request.user,
            description=typed["description"],
        )
    except Refused as refusal:
        shown = _form(request, typed) | {"refusal": refusal}
        return render(request, "environments/new.html", shown, status=refusal.status)
    return redirect("catalog:environment", environment_id=version.id)


@login_required
@require_POST
def check(request: PageRequest) -> HttpResponse:
    """What is wrong with what was typed, or what it comes to with every default."""
    return render(request, "environments/result.html", _result(_typed(request)["text"]))


@login_required
@require_GET
def version(request: PageRequest, environment_id: int) -> HttpResponse:
    shown = environment_for(request, environment_id)
    tries = tries_of(shown)
    newest = {"version": shown, "tries": tries, "under_way": any(not found.run.has_ended for found in tries)}
    if request.htmx:  # the page asks again for those under way
        return render(request, "environments/tries.html", newest)
    siblings = [
        other
        for other in environments_of(request).filter(team=shown.team, name=shown.name)[:MOST_SIBLINGS]
        if other.id != shown.id
    ]
    dependents = environment_dependents_of(shown)
    context = {
        **newest,
        "section": "environments",
        "toml": text_of(shown.spec),
        "siblings": siblings,
        "compared": _compared(request, shown, siblings),
        "experiments": dependents.experiments,
        "launches": may(request, shown.team, "launch"),
        "asks_dataset": _asks_dataset(shown.spec),
        "datasets": _ready(dataset_versions_of(request), shown.team, "dataset"),
        "models": _ready(versions_of(request), shown.team, "model"),
        "dependents": dependents,
    }
    return render(request, "environments/version.html", context)


def _asks_dataset(spec: dict[str, Any]) -> bool:
    return bool(getattr(readable(spec), "takes_dataset", False))


def _ready(versions: Any, team: Team, family: str) -> list[str]:
    """The names of a team's versions that can be used, the newest first."""
    ready = versions.filter(state=READY, **{f"{family}__team": team}).select_related(family).order_by("-id")
    return [str(version) for version in ready[:MOST_OFFERED]]


def _version_url(environment_id: int) -> str:
    return reverse("catalog:environment", args=[environment_id])


@login_required
@require_POST
@refusals_return_to(_version_url)
def try_version(request: PageRequest, environment_id: int) -> HttpResponse:
    shown = environment_for(request, environment_id, to="launch")
    environment = environment_of({"environment": shown.spec})
    begin_try(shown.team, environment, _posted_try(request), acting_user=request.user, name=str(shown))
    return redirect_with(request, f"{shown} is being tried.", _version_url(environment_id) + "#tries")


@login_required
@require_POST
def try_draft(request: PageRequest) -> HttpResponse:
    """Play what was typed, before anybody publishes it."""
    typed = _typed(request)
    try:
        team = team_to_act_in(request, request.POST.get("team"), to="launch")
        environment = environment_of_text(typed["text"])
        name = typed["name"] or environment.id
        run = begin_try(team, environment, EnvironmentTry(), acting_user=request.user, name=name)
    except Refused as refusal:
        shown = _form(request, typed) | {"refusal": refusal}
        return render(request, "environments/new.html", shown, status=refusal.status)
    return redirect("runs:detail", run_id=run.id)


@login_required
@require_POST
@refusals_return_to(_version_url)
def delete(request: PageRequest, environment_id: int) -> HttpResponse:
    shown = environment_for(request, environment_id, to="launch")
    if request.POST.get("name", "").strip() != str(shown):
        message = f"the version is called {shown}, and another name was typed"
        raise Invalid.field("name", request.POST.get("name", "")[:100], message, "type its name to delete it")
    delete_environment(shown, acting_user=request.user)
    return redirect_with(request, f"{shown} is deleted.", reverse("catalog:environments"))


def _posted_try(request: PageRequest) -> EnvironmentTry:
    """Raises Invalid."""
    players = request.POST.getlist("players")
    names = ["tasks", "dataset", *(name for name in ("script", "model") if name in players)]
    given = {name: value for name in names if (value := request.POST.get(name, "").replace("\0", "").strip())}
    try:
        return EnvironmentTry.model_validate({**given, "players": players})
    except ValidationError as error:
        raise Invalid("the environment cannot be tried so", problems_in(error, EnvironmentTry)) from error


def _compared(request: PageRequest, shown: Environment, siblings: list[Environment]) -> dict[str, Any] | None:
    """With the version that was asked for; None where nobody asked."""
    wanted = request.GET.get("before", "")
    before = next((sibling for sibling in siblings if str(sibling.id) == wanted), None)
    if before is None:
        return None
    return {"before": before, "fields": changed_fields(before, shown)}


def _to_begin_with(request: PageRequest) -> dict[str, str]:
    if wanted := request.GET.get("from", ""):
        if not (wanted.isascii() and wanted.isdecimal() and len(wanted) < 19):
            raise Http404
        begun = environment_for(request, int(wanted))
        return {"name": begun.name, "description": begun.description, "text": text_of(begun.spec)}
    if wanted := request.GET.get("package", ""):
        return _of_package(request, wanted)
    kind = BUILT_IN.get(request.GET.get("kind", "python-math"))
    if kind is None:
        raise Http404
    document = kind().model_dump(mode="json")
    return {"name": "", "description": "", "text": text_of(document)}


def _of_package(request: PageRequest, wanted: str) -> dict[str, str]:
    """An environment that is a published package, with what its last check gave it."""
    if not (wanted.isascii() and wanted.isdecimal() and len(wanted) < 19):
        raise Http404
    version = package_version_for(request, int(wanted))
    if not version.is_ready:
        raise Http404
    environment = (version.check_wanted or PackageCheck()).environment(catalog=str(version))
    document = environment.model_dump(mode="json")
    return {"name": version.package.name, "description": "", "text": text_of(document)}


def _typed(request: PageRequest) -> dict[str, str]:
    return {
        "name": request.POST.get("name", "").strip(),
        "description": request.POST.get("description", "").strip(),
        "text": request.POST.get("environment", "").replace("\r\n", "\n"),
    }


def _form(request: PageRequest, typed: dict[str, str]) -> dict[str, Any]:
    teams = [team for team in teams_of(request) if may(request, team, "launch")]
    shown = {"section": "environments", "typed": typed, "teams": teams, "kinds": sorted(BUILT_IN)}
    return shown | {"chosen_team": request.POST.get("team", "")} | _result(typed["text"])


def _result(text: str) -> dict[str, Any]:
    try:
        environment = environment_of_text(text)
    except Invalid as refusal:
        return {"problems": refusal.problems}
    return {"whole": text_of(environment.model_dump(mode="json")), "kind": environment.id}
