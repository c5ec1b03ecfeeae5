"""Pages of environment packages: the list, bringing one, a version with its faults and what playing it has shown."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from engine.spec.package_check import PackageCheck
from engine.spec.package_files import PackageManifest
from engine.spec.problems import problems_in
from webapp.accounts.access import may
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import package_version_for, package_versions_of, packages_of
from webapp.catalog.checked_versions import check_version
from webapp.catalog.imports import holds_package, import_package, importable
from webapp.catalog.models import CheckedState, PackageVersion, UploadKind
from webapp.catalog.package_versions import compare_packages, faults_of, publish_package
from webapp.catalog.shelf_pages import ShelfPages
from webapp.catalog.stored_versions import cancel_stored
from webapp.pages.responses import redirect_with, refusals_return_to
from webapp.refusals import Invalid, Refused
from webapp.runs.dependents import delete_unneeded, dependents_of

SHOWN_PROBLEMS = 100
MOST_OFFERED = 200
LIMITS = ("memory_mib", "disk_mib", "processes", "start_timeout_s", "call_timeout_s")
PAGES = ShelfPages(
    section="packages",
    app="packages",
    kind=UploadKind.PACKAGE,
    stored=packages_of,
    importable=lambda: importable(holds_package),
    importer=import_package,
)


@never_cache
@login_required
@require_GET
def index(request: PageRequest) -> HttpResponse:
    shown = package_versions_of(request).exclude(state=CheckedState.SAME).order_by("-id")
    found = packages_of(request).prefetch_related(Prefetch("versions", shown, to_attr="shown")).order_by("name")
    return PAGES.listed(request, [package for package in found if package.shown], called="packages")


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
    version = package_version_for(request, version_id)
    siblings = _siblings(version)
    context = {
        "section": "packages",
        "version": version,
        "origin": version.made_from,
        "check": version.check_wanted or PackageCheck(),
        "report": version.found,
        "call_ms": version.found.call_s * 1000 if version.found else None,
        "problems": version.problems[:SHOWN_PROBLEMS],
        "publishes": version.state == CheckedState.STORED and not faults_of(version),
        "manifest": _manifest(version),
        "dependents": dependents_of(version),
        "siblings": siblings,
        "compared": _compared(request, version, siblings),
        "launches": may(request, version.team, "launch"),
    }
    return render(request, "packages/version_body.html" if request.htmx else "packages/version.html", context)


def _manifest(version: PackageVersion) -> PackageManifest | None:
    """None where its files are not stored, or not on this machine."""
    try:
        return version.manifest() if version.has_content else None
    except OSError:
        return None


def _siblings(version: PackageVersion) -> list[PackageVersion]:
    """The other versions of its name that are stored, the newest first."""
    others = version.package.versions.exclude(id=version.id).defer("problems", "report").select_related("package")
    return [other for other in others.order_by("-id")[:MOST_OFFERED] if other.has_content]


def _compared(request: PageRequest, version: PackageVersion, siblings: list[PackageVersion]) -> Any:
    """With which sibling the page compares it, and what differs; None where nobody asked."""
    asked = request.GET.get("before", "")
    before = next((sibling for sibling in siblings if str(sibling.id) == asked), None)
    if before is None or not version.has_content:
        return None
    try:
        found = compare_packages(version, before)
    except Refused as refused:
        return {"before": before, "refusal": refused.title}
    changes = [("Added", found.added), ("Removed", found.removed), ("Changed", found.changed)]
    return {"before": before, "difference": found, "changes": changes}


def _version_url(version_id: int) -> str:
    return reverse("packages:version", args=[version_id])


@login_required
@require_POST
@refusals_return_to(_version_url)
def check(request: PageRequest, version_id: int) -> HttpResponse:
    version = package_version_for(request, version_id, to="launch")
    check_version(version, _posted_check(request), acting_user=request.user)
    return redirect(_version_url(version_id))


def _posted_check(request: PageRequest) -> PackageCheck:
    """Raises Invalid."""

    def given(*names: str) -> dict[str, str]:
        return {name: value for name in names if (value := request.POST.get(name, "").replace("\0", "").strip())}

    try:
        return PackageCheck.model_validate(
            {**given("entry", "taskset", "env_id", "options"), "process": given(*LIMITS)}
        )
    except ValidationError as error:
        raise Invalid("the check cannot be begun", problems_in(error, PackageCheck)) from error


@login_required
@require_POST
@refusals_return_to(_version_url)
def publish(request: PageRequest, version_id: int) -> HttpResponse:
    version = package_version_for(request, version_id, to="launch")
    published = publish_package(version, acting_user=request.user)
    return redirect_with(request, f"{published} is published.", _version_url(version_id))


@login_required
@require_POST
@refusals_return_to(_version_url)
def cancel(request: PageRequest, version_id: int) -> HttpResponse:
    cancel_stored(package_version_for(request, version_id, to="launch"), acting_user=request.user)
    return redirect(_version_url(version_id))


@login_required
@require_POST
@refusals_return_to(_version_url)
def delete(request: PageRequest, version_id: int) -> HttpResponse:
    version = package_version_for(request, version_id, to="launch")
    if version.number and request.POST.get("name", "").strip() != str(version):
        message = f"the version is called {version}, and another name was typed"
        raise Invalid.field("name", request.POST.get("name", "")[:100], message, "type its name to delete it")
    delete_unneeded(version, acting_user=request.user)
    return redirect_with(request, f"{version} is deleted.", reverse("packages:list"))
