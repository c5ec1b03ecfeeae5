"""Pages of task sets: the list, bringing one, a version with its faults, its check as it goes on, and its tasks."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from engine.spec.environment import TERMINAL_SANDBOX
from engine.spec.problems import problems_in
from engine.spec.task_check import TaskCheck
from webapp.accounts.access import may
from webapp.accounts.requests import PageRequest
from webapp.catalog import task_versions
from webapp.catalog.access import task_sets_of, task_version_for, task_versions_of
from webapp.catalog.checked_versions import check_version
from webapp.catalog.imports import holds_tasks, import_tasks, importable
from webapp.catalog.models import CheckedState, TaskSetVersion, UploadKind
from webapp.catalog.shelf_pages import ShelfPages
from webapp.catalog.stored_versions import cancel_stored
from webapp.pages.responses import redirect_with, refusals_return_to
from webapp.refusals import Invalid
from webapp.runs.dependents import delete_unneeded, dependents_of

TASKS_PER_PAGE = 200
SHOWN_PROBLEMS = 100
MOST_OFFERED = 200
BACKENDS = ("namespaces", "docker")
PAGES = ShelfPages(
    section="task-sets",
    app="task_sets",
    kind=UploadKind.TASKS,
    stored=task_sets_of,
    importable=lambda: importable(holds_tasks),
    importer=import_tasks,
)


@never_cache
@login_required
@require_GET
def index(request: PageRequest) -> HttpResponse:
    shown = task_versions_of(request).exclude(state=CheckedState.SAME).order_by("-id")
    found = task_sets_of(request).prefetch_related(Prefetch("versions", shown, to_attr="shown")).order_by("name")
    task_sets = [task_set for task_set in found if task_set.shown]
    return PAGES.listed(request, task_sets, called="task_sets")


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
    version = task_version_for(request, version_id)
    found = task_versions.statuses_of(version)
    wanted = request.GET.get("status", "")
    shown = [(task, status) for task, status in found if wanted in ("", status or "unchecked")]
    first = _offset(request)
    progress = task_versions.progress_of(found, version)
    context = {
        "section": "task-sets",
        "version": version,
        "origin": version.made_from,
        "check": version.check_wanted,
        "backends": BACKENDS,
        "problems": version.problems[:SHOWN_PROBLEMS],
        "progress": progress,
        "publishes": version.state == CheckedState.STORED and progress.statuses.keys() == {"ok"},
        "tasks": [_row(task, status) for task, status in shown[first : first + TASKS_PER_PAGE]],
        "matching": len(shown),
        "wanted": wanted,
        "next": first + TASKS_PER_PAGE if len(shown) > first + TASKS_PER_PAGE else None,
        "dependents": dependents_of(version),
        "siblings": _siblings(version),
        "compared": _compared(request, version),
        "launches": may(request, version.team, "launch"),
    }
    return render(request, "task_sets/version_body.html" if request.htmx else "task_sets/version.html", context)


def _row(task: Any, status: str | None) -> dict[str, Any]:
    trials = list(task.trials.all())
    return {
        "task": task,
        "status": status,
        "oracle": task.rewards("oracle"),
        "nop": task.rewards("nop"),
        "seconds": sum(trial.seconds for trial in trials),
        "notes": sorted({trial.note for trial in trials if trial.note}),
    }


def _offset(request: PageRequest) -> int:
    first = request.GET.get("first", "0")
    return int(first) if first.isascii() and first.isdecimal() and len(first) < 12 else 0


def _siblings(version: TaskSetVersion) -> list[TaskSetVersion]:
    """The other versions of its set whose tasks are stored, the newest first."""
    others = version.task_set.versions.exclude(id=version.id).defer("problems").select_related("task_set")
    return [other for other in others.order_by("-id")[:MOST_OFFERED] if other.has_content]


def _compared(request: PageRequest, version: TaskSetVersion) -> Any:
    """With which sibling the page compares it, and what differs; None where nobody asked."""
    asked = request.GET.get("before", "")
    before = next((sibling for sibling in _siblings(version) if str(sibling.id) == asked), None)
    if before is None or not version.has_content:
        return None
    found = task_versions.compare_tasks(version, before)
    changes = [("Added", found.added), ("Removed", found.removed), ("Changed", found.changed)]
    return {"before": before, "difference": found, "changes": changes}


def _version_url(version_id: int) -> str:
    return reverse("task_sets:version", args=[version_id])


@login_required
@require_POST
@refusals_return_to(_version_url)
def check(request: PageRequest, version_id: int) -> HttpResponse:
    version = task_version_for(request, version_id, to="launch")
    check_version(version, _posted_check(request), acting_user=request.user)
    return redirect(_version_url(version_id))


def _posted_check(request: PageRequest) -> TaskCheck:
    """Raises Invalid."""
    names = ("backend", "image", "memory_mib", "disk_mib")
    given = {name: value for name in names if (value := request.POST.get(name, "").replace("\0", "").strip())}
    fields = {"repeat": request.POST.get("repeat", "3"), "public_network": request.POST.get("public_network", "refuse")}
    try:
        return TaskCheck.model_validate({**fields, "sandbox": TERMINAL_SANDBOX.model_dump() | given})
    except ValidationError as error:
        raise Invalid("the check cannot be begun", problems_in(error, TaskCheck)) from error


@login_required
@require_POST
@refusals_return_to(_version_url)
def publish(request: PageRequest, version_id: int) -> HttpResponse:
    version = task_version_for(request, version_id, to="launch")
    published = task_versions.publish_tasks(version, acting_user=request.user)
    return redirect_with(request, f"{published} is published.", _version_url(version_id))


@login_required
@require_POST
@refusals_return_to(_version_url)
def cancel(request: PageRequest, version_id: int) -> HttpResponse:
    cancel_stored(task_version_for(request, version_id, to="launch"), acting_user=request.user)
    return redirect(_version_url(version_id))


@login_required
@require_POST
@refusals_return_to(_version_url)
def delete(request: PageRequest, version_id: int) -> HttpResponse:
    version = task_version_for(request, version_id, to="launch")
    if version.number and request.POST.get("name", "").strip() != str(version):
        message = f"the version is called {version}, and another name was typed"
        raise Invalid.field("name", request.POST.get("name", ""), message, "type its name to delete it")
    delete_unneeded(version, acting_user=request.user)
    return redirect_with(request, f"{version} is deleted.", reverse("task_sets:list"))
