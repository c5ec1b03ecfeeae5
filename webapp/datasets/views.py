"""Pages of datasets: the list, bringing one, a version with its columns, faults, rows, lengths and differences."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import may
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import dataset_version_for, dataset_versions_of, stored_datasets_of, versions_of
from webapp.catalog.dataset_versions import compare_datasets, measure_lengths, prepare_dataset
from webapp.catalog.imports import holds_rows, import_dataset, importable
from webapp.catalog.models import DatasetState, DatasetVersion, MeasurementKind, ModelVersion, UploadKind, VersionState
from webapp.catalog.shelf_pages import ShelfPages
from webapp.catalog.stored_versions import cancel_stored
from webapp.datasets.mapping_form import MappingForm, form_of, posted_form
from webapp.datasets.rows import rows_of
from webapp.pages.responses import redirect_with, refusals_return_to, show_refusal
from webapp.refusals import Invalid, Refused
from webapp.runs.dependents import delete_unneeded, dependents_of

ROWS_PER_PAGE = 20
MOST_OFFERED = 200
SHOWN_FAULTS = 100
TABS = {name: name.title() for name in ("about", "rows", "duplicates", "lengths", "differences")}
PAGES = ShelfPages(
    section="datasets",
    app="datasets",
    kind=UploadKind.DATASET,
    stored=stored_datasets_of,
    importable=lambda: importable(holds_rows),
    importer=import_dataset,
)


@never_cache
@login_required
@require_GET
def index(request: PageRequest) -> HttpResponse:
    shown = dataset_versions_of(request).exclude(state=DatasetState.SAME).order_by("-id")
    found = stored_datasets_of(request).prefetch_related(Prefetch("versions", shown, to_attr="shown")).order_by("name")
    datasets = [dataset for dataset in found if dataset.shown]
    return PAGES.listed(request, datasets, called="datasets")


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
    version = dataset_version_for(request, version_id)
    return _detail(request, version, form_of(version) if version.may_be_prepared else None)


def _detail(
    request: PageRequest, version: DatasetVersion, form: MappingForm | None, *, status: int = 200
) -> HttpResponse:
    tab = request.GET.get("tab", "about")
    tab = tab if tab in TABS and version.is_ready else "about"
    report = version.report or {}
    context = {
        "section": "datasets",
        "version": version,
        "origin": version.made_from,
        "form": form,
        "preparation": version.preparation,
        "report": report,
        "faults": report.get("shown_faults", [])[:SHOWN_FAULTS],
        "dependents": dependents_of(version),
        "siblings": _siblings(version),
        "launches": may(request, version.dataset.team, "launch"),
        "tabs": TABS if version.is_ready else {},
        "tab": tab,
        **_of_tab(request, version, tab),
    }
    template = "datasets/version_body.html" if request.htmx else "datasets/version.html"
    return render(request, template, context, status=status)


def _siblings(version: DatasetVersion) -> list[DatasetVersion]:
    """The other versions of its dataset that are ready or on their way, the newest first."""
    others = version.dataset.versions.exclude(id=version.id).defer("source_report", "report")
    shown = others.exclude(state__in=[DatasetState.SAME, DatasetState.CANCELLED, DatasetState.FAILED])
    return list(shown.select_related("dataset").order_by("-id")[:MOST_OFFERED])


def _of_tab(request: PageRequest, version: DatasetVersion, tab: str) -> dict[str, Any]:
    match tab:
        case "rows":
            return _page_of_rows(request, version)
        case "lengths":
            found = version.measurements.filter(kind=MeasurementKind.LENGTHS).select_related("model__model")
            return {"measurements": found.order_by("-id"), "models": _models(request, version)}
        case "differences":
            found = version.measurements.filter(kind=MeasurementKind.DIFFERENCE).select_related("before__dataset")
            ready = dataset_versions_of(request).filter(dataset__team=version.dataset.team, state=DatasetState.READY)
            others = ready.exclude(id=version.id).order_by("-id")[:MOST_OFFERED]
            return {"measurements": found.order_by("-id"), "others": others}
        case _:
            return {}


def _page_of_rows(request: PageRequest, version: DatasetVersion) -> dict[str, Any]:
    """A page that cannot be shown says why in place of the rows."""
    names = [split["name"] for split in version.splits]
    split = request.GET.get("split", names[0])
    first = request.GET.get("first", "0")
    search = request.GET.get("q", "").replace("\0", "").strip()[:200]
    at = int(first) if first.isascii() and first.isdecimal() and len(first) < 12 else 0
    shown: dict[str, Any] = {"names": names, "split": split, "first": at, "search": search}
    try:
        found = rows_of(version, split, at, ROWS_PER_PAGE, search)
    except Refused as refusal:
        return shown | {"refusal": refusal}
    return shown | {"rows": found, "previous": max(0, at - ROWS_PER_PAGE) if at and not search else None}


def _models(request: PageRequest, version: DatasetVersion) -> list[ModelVersion]:
    ready = versions_of(request).filter(model__team=version.dataset.team, state=VersionState.READY)
    return list(ready.order_by("-id")[:MOST_OFFERED])


def _version_url(version_id: int) -> str:
    return reverse("datasets:version", args=[version_id])


@login_required
@require_POST
def prepare(request: PageRequest, version_id: int) -> HttpResponse:
    version = dataset_version_for(request, version_id, to="launch")
    form = posted_form(version, request.POST)
    if form.preparation is None:
        return _detail(request, version, form, status=422)
    try:
        prepare_dataset(version, form.preparation, acting_user=request.user)
    except Refused as refusal:
        show_refusal(request, refusal)
    return redirect(_version_url(version_id))


@login_required
@require_POST
@refusals_return_to(lambda version_id: _version_url(version_id) + "?tab=lengths")
def lengths(request: PageRequest, version_id: int) -> HttpResponse:
    version = dataset_version_for(request, version_id, to="launch")
    model = versions_of(request).filter(id=_number(request, "model")).first()
    if model is None:
        raise Invalid.field("model", request.POST.get("model", ""), "there is no such model", "choose one of the list")
    measure_lengths(version, model, acting_user=request.user)
    return redirect(_version_url(version_id) + "?tab=lengths")


@login_required
@require_POST
@refusals_return_to(lambda version_id: _version_url(version_id) + "?tab=differences")
def compare(request: PageRequest, version_id: int) -> HttpResponse:
    version = dataset_version_for(request, version_id, to="launch")
    before = dataset_versions_of(request).filter(id=_number(request, "before")).first()
    if before is None:
        remedy = "choose one of the list"
        raise Invalid.field("before", request.POST.get("before", ""), "there is no such version", remedy)
    compare_datasets(version, before, acting_user=request.user)
    return redirect(_version_url(version_id) + "?tab=differences")


def _number(request: PageRequest, field: str) -> int:
    """The id that was chosen; 0, which no row has, for what is none."""
    text = request.POST.get(field, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


@login_required
@require_POST
@refusals_return_to(_version_url)
def cancel(request: PageRequest, version_id: int) -> HttpResponse:
    cancel_stored(dataset_version_for(request, version_id, to="launch"), acting_user=request.user)
    return redirect(_version_url(version_id))


@login_required
@require_POST
@refusals_return_to(_version_url)
def delete(request: PageRequest, version_id: int) -> HttpResponse:
    version = dataset_version_for(request, version_id, to="launch")
    if version.number and request.POST.get("name", "").strip() != str(version):
        message = f"the version is called {version}, and another name was typed"
        raise Invalid.field("name", request.POST.get("name", ""), message, "type its name to delete it")
    delete_unneeded(version, acting_user=request.user)
    return redirect_with(request, f"{version} is deleted.", reverse("datasets:list"))
