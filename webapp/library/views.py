"""Pages of models: the list, importing and uploading one, a version with its lineage and what depends on it."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import may
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import models_of, version_for
from webapp.catalog.imports import import_folder, importable
from webapp.catalog.models import UNFINISHED, ModelVersion, UploadKind, VersionState
from webapp.catalog.shelf_pages import ShelfPages
from webapp.catalog.stored_versions import cancel_stored
from webapp.library import services
from webapp.pages.responses import redirect_with, refusals_return_to
from webapp.refusals import Invalid
from webapp.runs.access import run_for

MOST_ANCESTORS = 20
MOST_SIBLINGS = 200
PAGES = ShelfPages(
    section="models",
    app="library",
    kind=UploadKind.MODEL,
    stored=models_of,
    importable=importable,
    importer=import_folder,
)


@never_cache
@login_required
@require_GET
def index(request: PageRequest) -> HttpResponse:
    shown = ModelVersion.objects.exclude(state=VersionState.SAME).defer("licence_text")
    versions = shown.select_related("created_by").order_by("-id")
    found = models_of(request).prefetch_related(Prefetch("versions", versions, to_attr="shown")).order_by("name")
    models = [model for model in found if model.shown]
    return PAGES.listed(request, models, called="models")


@login_required
@require_GET
def new(request: PageRequest) -> HttpResponse:
    return PAGES.form(request, {"name": request.GET.get("name", "")})


@login_required
@require_POST
def import_one(request: PageRequest) -> HttpResponse:
    return PAGES.imported(request)


@never_cache
@login_required
@require_GET
def detail(request: PageRequest, version_id: int) -> HttpResponse:
    version = version_for(request, version_id)
    context = {
        "section": "models",
        "version": version,
        "origin": version.made_from,
        "dependents": services.dependents_of(version),
        "siblings": _siblings(version),
        "ancestors": _ancestors(version),
        "launches": may(request, version.model.team, "launch"),
    }
    return render(request, "library/version_body.html" if request.htmx else "library/version.html", context)


def _siblings(version: ModelVersion) -> list[ModelVersion]:
    """The other versions of its model that are ready or on their way, the newest first."""
    states = UNFINISHED | {VersionState.READY}
    others = version.model.versions.filter(state__in=states).exclude(id=version.id).defer("licence_text")
    return list(others.select_related("model").order_by("-id")[:MOST_SIBLINGS])


def _ancestors(version: ModelVersion) -> list[ModelVersion]:
    """The version that its run began from, and so on, the first one first."""
    found: list[ModelVersion] = []
    while version.parent_id is not None and len(found) < MOST_ANCESTORS:
        version = ModelVersion.objects.select_related("model").get(id=version.parent_id)
        found.insert(0, version)
    return found


def _version_url(version_id: int) -> str:
    return reverse("library:version", args=[version_id])


@login_required
@require_POST
@refusals_return_to(_version_url)
def cancel(request: PageRequest, version_id: int) -> HttpResponse:
    cancel_stored(version_for(request, version_id, to="launch"), acting_user=request.user)
    return redirect(_version_url(version_id))


@login_required
@require_POST
@refusals_return_to(_version_url)
def delete(request: PageRequest, version_id: int) -> HttpResponse:
    version = version_for(request, version_id, to="launch")
    if version.number and request.POST.get("name", "").strip() != str(version):
        message = f"the version is called {version}, and another name was typed"
        raise Invalid.field("name", request.POST.get("name", ""), message, "type its name to delete it")
    services.delete_version(version, acting_user=request.user)
    return redirect_with(request, f"{version} is deleted.", reverse("library:list"))


def _checkpoints_url(run_id: UUID, **_: Any) -> str:
    return reverse("runs:detail", args=[run_id]) + "?tab=checkpoints"


@login_required
@require_POST
@refusals_return_to(_checkpoints_url)
def promote(request: PageRequest, run_id: UUID, step: int) -> HttpResponse:
    run = run_for(request, run_id, to="launch")
    name = request.POST.get("name", "").strip()
    version = services.promote_checkpoint(run, step, name, acting_user=request.user)
    return redirect("library:version", version_id=version.id)
