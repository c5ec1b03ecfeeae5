"""Pages of experiments: the list, and the editor from which runs are launched."""

import json
import re
import shlex
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, OuterRef, Subquery
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from engine.spec.model import PretrainedModel
from engine.spec.run import RunSpec
from webapp.accounts.access import allowed_somewhere, may, team_to_act_in, teams_of
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import (
    dataset_versions_of,
    environment_for,
    package_versions_of,
    task_versions_of,
    versions_of,
)
from webapp.catalog.models import (
    CheckedState,
    DatasetState,
    DatasetVersion,
    ModelVersion,
    PackageVersion,
    TaskSetVersion,
    VersionState,
)
from webapp.catalog.stored_versions import is_number
from webapp.editor.complaints import loose
from webapp.editor.drafts import Draft, Size, last_valid_in
from webapp.editor.presets import preset_families, preset_or_none
from webapp.experiments import services
from webapp.experiments.access import experiment_for, experiments_of
from webapp.experiments.baseline import brief
from webapp.experiments.models import Experiment
from webapp.experiments.toml import as_toml
from webapp.pages.responses import redirect_with, show_refusal
from webapp.refusals import Refused
from webapp.runs.access import run_for, runs_of
from webapp.runs.models import Run
from webapp.runs.services import launch_experiment

MOST_OFFERED = 100
"""Versions of models in the form's list; others can be typed."""


@login_required
@require_GET
def index(request: PageRequest) -> HttpResponse:
    latest = Run.objects.filter(experiment=OuterRef("id")).order_by("-created_at")
    experiments = experiments_of(request).select_related("created_by").annotate(
        run_count=Count("runs"), last_state=Subquery(latest.values("state")[:1])
    )  # fmt: skip
    launches = any(may(request, team, "launch") for team in teams_of(request))
    return render(
        request, "editor/index.html", {"section": "experiments", "experiments": experiments, "launches": launches}
    )


@login_required
@require_http_methods(["GET", "POST"])
def new(request: PageRequest) -> HttpResponse:
    """A first one begins with the defaults, ``?run=`` with what that run was launched with, ``?model=`` with a version
    of the catalog, ``?environment=`` with one that the team has published."""
    if request.method == "GET":
        return _editor(request, Draft.of(_spec_to_begin_with(request)), None)
    allowed_somewhere(request, "launch")
    draft = Draft.of_post(request.POST)
    if answer := _other_than_saving(request, draft, None):
        return answer
    assert draft.spec is not None
    try:
        team = team_to_act_in(request, request.POST.get("team"), to="launch")
        experiment = services.create_experiment(team, draft.spec, acting_user=request.user)
    except Refused as refusal:
        show_refusal(request, refusal)
        return _editor(request, draft, None, status=refusal.status)
    return _saved(request, experiment)


def _spec_to_begin_with(request: PageRequest) -> dict[str, Any]:
    if environment := request.GET.get("environment", ""):
        return _spec_in_environment(request, environment)
    if model := request.GET.get("model", ""):
        return _spec_with_model(request, model)
    if not (named := request.GET.get("run", "")):
        return RunSpec(name="first-experiment").model_dump(mode="json")
    try:
        run_id = UUID(named)
    except ValueError as error:
        raise Http404 from error
    spec: dict[str, Any] = run_for(request, run_id).spec
    return spec


def _spec_in_environment(request: PageRequest, named: str) -> dict[str, Any]:
    """With the version of that id, as the team has published it."""
    if not re.fullmatch(r"[0-9]{1,18}", named):
        raise Http404
    version = environment_for(request, int(named))
    name = re.sub(r"[^A-Za-z0-9]+", "-", version.name).strip("-").lower() or "published"
    return RunSpec(name=f"{name}-first").model_dump(mode="json") | {"environment": version.spec}


def _spec_with_model(request: PageRequest, named: str) -> dict[str, Any]:
    name, _, number = named.rpartition("@")
    if "\0" in name:
        raise Http404
    ready = versions_of(request).filter(state=VersionState.READY, model__name=name)
    version = ready.filter(number=int(number)).first() if is_number(number) else None
    if version is None:
        raise Http404
    usual = PretrainedModel(catalog=named)
    context_tokens = min(usual.context_tokens, version.context_tokens or usual.context_tokens)
    spec = RunSpec(name=f"{name}-first", model=usual.model_copy(update={"context_tokens": context_tokens}))
    return spec.model_dump(mode="json")


@login_required
@require_http_methods(["GET", "POST"])
def detail(request: PageRequest, experiment_id: UUID) -> HttpResponse:
    if request.method == "GET":
        experiment = experiment_for(request, experiment_id)
        return _editor(request, Draft.of(experiment.spec).shown(_shown_as(request)), experiment)
    experiment = experiment_for(request, experiment_id, to="launch")
    draft = Draft.of_post(request.POST)
    if answer := _other_than_saving(request, draft, experiment):
        return answer
    assert draft.spec is not None
    if draft.spec.model_dump(mode="json") != experiment.spec:
        experiment = services.change_experiment(experiment, draft.spec, acting_user=request.user)
    return _saved(request, experiment)


def _shown_as(request: PageRequest) -> Any:
    return "toml" if request.GET.get("as") == "toml" else "form"


def _other_than_saving(request: PageRequest, draft: Draft, experiment: Experiment | None) -> HttpResponse | None:
    """The answer to a post that does not save: another way of showing it, a change of its fields, or problems."""
    action, _, subject = request.POST.get("action", "").partition(":")
    match action:
        case "show":
            return _editor(request, draft, experiment)
        case "show-form":
            return _editor(request, draft.shown("form"), experiment)
        case "show-toml":
            return _editor(request, draft.shown("toml"), experiment)
        case "preset":
            return _editor(request, draft.with_preset(subject), experiment)
        case "add":
            return _editor(request, draft.with_row(subject), experiment)
        case "remove":
            return _editor(request, draft.without_row(subject), experiment)
    return None if draft.spec else _editor(request, draft, experiment, status=422)


def _saved(request: PageRequest, experiment: Experiment) -> HttpResponse:
    if request.POST.get("action") == "launch":
        try:
            run = launch_experiment(experiment, acting_user=request.user)
        except Refused as refusal:
            _show_refused_launch(request, refusal)
            return redirect("experiments:detail", experiment_id=experiment.id)
        return redirect("runs:detail", run_id=run.id)
    return redirect_with(request, "The experiment is saved.", f"/experiments/{experiment.id}/")


def _show_refused_launch(request: PageRequest, refusal: Refused) -> None:
    """With the field of each problem, for several may name a version."""
    if not refusal.problems:
        show_refusal(request, refusal)
    for complaint in map(loose, refusal.problems):
        messages.error(request, f"Saved, but not launched: {complaint.subject}: {complaint.text}.")


def _editor(request: PageRequest, draft: Draft, experiment: Experiment | None, *, status: int = 200) -> HttpResponse:
    teams = [team for team in teams_of(request) if may(request, team, "launch")]
    valid = draft.spec or _last_valid(request, experiment)
    context = {
        "section": "experiments",
        "experiment": experiment,
        "draft": draft,
        "valid": json.dumps(valid.model_dump(mode="json")) if valid and not draft.spec else "",
        "preset": preset_or_none(draft.preset),
        "families": preset_families(),
        "teams": teams,
        "chosen_team": request.POST.get("team", ""),
        "launches": may(request, experiment.team, "launch") if experiment else bool(teams),
        "size": Size.of(valid) if valid else None,
        "same_as": _same_as(valid, experiment) if valid else None,
        "run_toml": draft.toml if draft.spec else as_toml(valid.model_dump(mode="json")) if valid else "",
        "ready_models": _ready_models(request, experiment),
        "ready_datasets": _ready_datasets(request, experiment),
        "ready_tasks": _ready_tasks(request, experiment),
        "ready_packages": _ready_packages(request, experiment),
        "runs": runs_of(request).filter(experiment=experiment)[:8] if experiment else [],
    }
    # htmx puts only answers of 200 into the page.
    if request.htmx:
        return render(request, "editor/editor.html", context)
    return render(request, "editor/detail.html", context, status=status)


def _ready_models(request: PageRequest, experiment: Experiment | None) -> list[ModelVersion]:
    """What ``model.catalog`` and ``resources.judge.catalog`` may name, the newest first."""
    ready = versions_of(request).filter(state=VersionState.READY)
    return list((ready.filter(model__team=experiment.team) if experiment else ready).order_by("-id")[:MOST_OFFERED])


def _ready_datasets(request: PageRequest, experiment: Experiment | None) -> list[DatasetVersion]:
    """What ``dataset.catalog`` may name, the newest first."""
    ready = dataset_versions_of(request).filter(state=DatasetState.READY)
    return list((ready.filter(dataset__team=experiment.team) if experiment else ready).order_by("-id")[:MOST_OFFERED])


def _ready_tasks(request: PageRequest, experiment: Experiment | None) -> list[TaskSetVersion]:
    """What ``environment.catalog`` may name, or an agent's ``environment.tasks.catalog``, the newest first."""
    ready = task_versions_of(request).filter(state=CheckedState.READY)
    return list((ready.filter(task_set__team=experiment.team) if experiment else ready).order_by("-id")[:MOST_OFFERED])


def _ready_packages(request: PageRequest, experiment: Experiment | None) -> list[PackageVersion]:
    """What ``environment.catalog`` of a package may name, the newest first."""
    ready = package_versions_of(request).filter(state=CheckedState.READY)
    return list((ready.filter(package__team=experiment.team) if experiment else ready).order_by("-id")[:MOST_OFFERED])


def _last_valid(request: PageRequest, experiment: Experiment | None) -> RunSpec | None:
    """What the panels beside a form with problems go on to tell of."""
    return last_valid_in(request.POST) or (Draft.of(experiment.spec).spec if experiment else None)


def _same_as(spec: RunSpec, experiment: Experiment | None) -> dict[str, str]:
    """The same run without this page."""
    body = brief(spec)
    if experiment:
        body["experiment"] = str(experiment.id)
    curl = (
        f"curl {settings.PALESTRA_BASE_URL}/api/v1/runs \\\n"
        '  -H "Authorization: Bearer $PALESTRA_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(body))}"
    )
    return {
        "curl": curl,
        "cli": "# save the TOML as run.toml; trains here, without the service\npython -m engine train run.toml",
    }
