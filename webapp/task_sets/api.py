"""Sets of terminal tasks over REST: upload, import, check, look, compare, publish, download, delete."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.db.models import Count, Exists, Max, OuterRef, Q
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.task_check import TaskCheck
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Request, Text
from webapp.catalog import task_versions, uploads
from webapp.catalog.access import task_set_for, task_sets_of, task_version_for, task_versions_of, tasks_upload_for
from webapp.catalog.checked_versions import check_version
from webapp.catalog.download import download_of
from webapp.catalog.imports import holds_tasks, import_tasks, importable
from webapp.catalog.models import CheckedState, StoredTask, TaskSetVersion, UploadKind
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.upload_api import ImportableOut, UploadRoutes, add_upload_routes
from webapp.runs.api import ExperimentNaming, RunUsing
from webapp.runs.dependents import delete_unneeded, dependents_of

router = Router(tags=["task sets"])
TO_CHANGE = to_one(task_version_for, "version_id", "launch")
TO_UPLOAD = to_one(tasks_upload_for, "upload_id", "launch")
Page = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]
_CHECK = "Left out: the version waits for a check"


class TaskImportRequest(Request):
    name: str = Field(max_length=100, description="Of the task set; a new version where there is one of the name")
    folder: str = Field(max_length=1000, description="Below the server's import root; also a .tar or .jsonl")
    check: TaskCheck | None = Field(default=None, description=_CHECK)


class TaskCompleteRequest(Request):
    check: TaskCheck | None = Field(default=None, description=_CHECK)


class TaskSetVersionOut(Schema):
    id: int
    team: str
    task_set: int
    name: str = Field(description="As a spec names it: name@number; without number until it is published")
    number: int | None
    state: CheckedState
    sha256: str = Field(description="Of tasks.json, which names all files")
    problem: dict[str, Any] | None
    same_as: int | None = Field(description="The version whose tasks it has")
    origin: dict[str, Any]
    check: dict[str, Any] | None = Field(description="How its tasks are tried, or were")
    waiting_for: str = Field(description="Why the check cannot go on at present")
    bytes: int
    bytes_done: int
    created_at: datetime
    created_by: str | None

    @classmethod
    def of(cls, version: TaskSetVersion) -> "TaskSetVersionOut":
        taken = ("id", "number", "state", "sha256", "problem", "origin", "waiting_for", "bytes", "bytes_done",
                 "created_at")  # fmt: skip
        return cls(
            **{name: getattr(version, name) for name in taken},
            team=version.task_set.team.slug,
            task_set=version.task_set_id,
            name=f"{version.task_set.name}@{version.number}" if version.number else version.task_set.name,
            same_as=version.same_as_id,
            check=version.check_settings,
            created_by=version.created_by.email if version.created_by else None,
        )


class TaskProblem(Schema):
    field: str = Field(description="The task and the file at fault")
    value: str
    message: str
    remedy: str


class CheckProgress(Schema):
    tasks: int
    trials: int = Field(description="That are over")
    of: int = Field(description="That the check makes; 0 before the first check")
    statuses: dict[str, int] = Field(description="How many tasks have each status; `unchecked` before all trials")


class TaskSetVersionDetail(TaskSetVersionOut):
    problems: list[TaskProblem] = Field(description="Everything that is wrong with the tasks, or that they lack")
    faults: int = Field(description="How many problems there are, also those that are not listed")
    progress: CheckProgress
    live_runs: list[RunUsing] = Field(description="While there are any, the version cannot be deleted")
    ended_runs: list[RunUsing]
    experiments: list[ExperimentNaming] = Field(description="While any names it, it cannot be deleted")


class TrialOut(Schema):
    kind: str
    repetition: int
    reward: float | None = Field(description="Null where the tests came to none")
    seconds: float
    note: str


class TaskOut(Schema):
    name: str
    digest: str
    level: int
    bytes: int
    has_solution: bool
    needs_image: bool
    status: str | None = Field(description="What its trials say of it; null while some are missing")
    trials: list[TrialOut]

    @classmethod
    def of(cls, task: StoredTask, repeat: int | None) -> "TaskOut":
        taken = ("name", "digest", "level", "bytes", "has_solution", "needs_image")
        trials = [
            TrialOut(**{name: getattr(trial, name) for name in TrialOut.model_fields}) for trial in task.trials.all()
        ]
        return cls(
            **{name: getattr(task, name) for name in taken},
            status=None if repeat is None else task.status(repeat),
            trials=sorted(trials, key=lambda trial: (trial.kind, trial.repetition)),
        )


class TaskPage(Schema):
    items: list[TaskOut]
    next_cursor: str | None


class TaskSetOut(Schema):
    id: int
    team: str
    name: str
    versions: int = Field(description="How many are published")
    newest: int | None = Field(description="The number of the newest published one")
    created_at: datetime


class TaskSetPage(Schema):
    items: list[TaskSetOut]
    next_cursor: str | None


class TaskSetVersionPage(Schema):
    items: list[TaskSetVersionOut]
    next_cursor: str | None


class TaskDifferenceOut(Schema):
    added: list[str]
    removed: list[str]
    changed: list[str]
    same: int


@router.get("/task-sets", response=TaskSetPage, operation_id="list_task_sets")
def list_task_sets(request: HttpRequest, limit: Page = 50, cursor: str | None = None) -> TaskSetPage:
    """Those with a version; the newest names first."""
    ready = Q(versions__state=CheckedState.READY)
    rows = task_sets_of(request).annotate(
        ready=Count("versions", filter=ready), newest=Max("versions__number", filter=ready)
    )
    with_versions = rows.filter(Exists(TaskSetVersion.objects.filter(task_set=OuterRef("id"))))
    page, next_cursor = page_of(with_versions, (("id", int),), limit=limit, cursor=cursor)
    return TaskSetPage(items=[_task_set_out(task_set) for task_set in page], next_cursor=next_cursor)


def _task_set_out(task_set: Any) -> TaskSetOut:
    return TaskSetOut(
        id=task_set.id, team=task_set.team.slug, name=task_set.name, versions=task_set.ready, newest=task_set.newest,
        created_at=task_set.created_at,
    )  # fmt: skip


@router.get(
    "/task-sets/{int:task_set_id}/versions", response=TaskSetVersionPage, operation_id="list_versions_of_task_set"
)
def versions_of_task_set(
    request: HttpRequest, task_set_id: int, limit: Page = 50, cursor: str | None = None
) -> TaskSetVersionPage:
    """The newest first, also those that failed."""
    task_set = task_set_for(request, task_set_id)
    rows = task_versions_of(request).filter(task_set=task_set)
    page, next_cursor = page_of(rows, (("id", int),), limit=limit, cursor=cursor)
    return TaskSetVersionPage(items=[TaskSetVersionOut.of(version) for version in page], next_cursor=next_cursor)


@router.get("/task-set-versions/{int:version_id}", response=TaskSetVersionDetail, operation_id="get_task_set_version")
def get_version(request: HttpRequest, version_id: int) -> TaskSetVersionDetail:
    version = task_version_for(request, version_id)
    dependents = dependents_of(version)
    return TaskSetVersionDetail(
        **TaskSetVersionOut.of(version).model_dump(),
        problems=version.problems,
        faults=version.faults,
        progress=CheckProgress(**vars(task_versions.progress_of(task_versions.statuses_of(version), version))),
        live_runs=[RunUsing.of(run) for run in dependents.live_runs],
        ended_runs=[RunUsing.of(run) for run in dependents.ended_runs[:MOST_PER_PAGE]],
        experiments=[ExperimentNaming(id=experiment.id, name=experiment.name) for experiment in dependents.experiments],
    )


@router.get("/task-set-versions/{int:version_id}/tasks", response=TaskPage, operation_id="list_tasks")
def list_tasks(request: HttpRequest, version_id: int, limit: Page = 50, cursor: str | None = None) -> TaskPage:
    """Its tasks with the trials of the last check, also while it goes on."""
    version = task_version_for(request, version_id)
    rows = version.tasks.prefetch_related("trials")
    page, next_cursor = page_of(rows, (("id", int),), limit=limit, cursor=cursor)
    check = version.check_wanted
    items = [TaskOut.of(task, check.repeat if check else None) for task in page]
    return TaskPage(items=items, next_cursor=next_cursor)


# Bringing one
@router.get("/task-imports", response=ImportableOut, operation_id="list_importable_tasks")
def list_importable(request: HttpRequest) -> ImportableOut:
    """Folders of the server that hold terminal tasks."""
    task_sets_of(request)  # a key that may not read lists nothing
    return ImportableOut(folders=importable(holds_tasks))


@router.post("/task-imports", response={201: TaskSetVersionOut}, operation_id="import_tasks", auth=somewhere("launch"))
def import_one(request: HttpRequest, wanted: TaskImportRequest, team: Text | None = None) -> Status[object]:
    owner = team_to_act_in(request, team, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, TaskSetVersionOut]:
        version = import_tasks(owner, wanted.name, wanted.folder, wanted.check, acting_user=user)
        return 201, TaskSetVersionOut.of(version)

    return once(request, owner, act)


add_upload_routes(
    router,
    UploadRoutes(
        address="task-uploads",
        kind=UploadKind.TASKS,
        operation_suffix="task_upload",
        find=tasks_upload_for,
        hint="One .tar of folders of tasks, or one .jsonl of rows of a SWE-bench form",
    ),
)


@router.post(
    "/task-uploads/{uuid:upload_id}/complete",
    response=TaskSetVersionOut,
    operation_id="complete_task_upload",
    auth=TO_UPLOAD,
)
def complete(request: HttpRequest, upload_id: UUID, wanted: TaskCompleteRequest | None = None) -> Status[object]:
    """A version, once all parts are there; the second time the same one."""
    upload = tasks_upload_for(request, upload_id, to="launch")
    user, check = caller_of(request).user, wanted.check if wanted else None

    def act() -> tuple[int, TaskSetVersionOut]:
        return 200, TaskSetVersionOut.of(
            uploads.complete_checked_upload(TaskSetVersion, upload, check, acting_user=user)
        )

    return once(request, upload.team, act)


# Checking and publishing
@router.post(
    "/task-set-versions/{int:version_id}/check",
    response={202: TaskSetVersionOut},
    operation_id="check_tasks",
    auth=TO_CHANGE,
)
def check(request: HttpRequest, version_id: int, wanted: TaskCheck | None = None) -> Status[object]:
    """Try every task with its solution and with nothing done, so often; what the last check found is forgotten."""
    version = task_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, TaskSetVersionOut]:
        begun = check_version(version, wanted or TaskCheck(), acting_user=user)
        return 202, TaskSetVersionOut.of(begun)

    return once(request, version.team, act)


@router.post(
    "/task-set-versions/{int:version_id}/publish",
    response=TaskSetVersionOut,
    operation_id="publish_tasks",
    auth=TO_CHANGE,
)
@without_body
def publish(request: HttpRequest, version_id: int) -> Any:
    """Runs can name it from then on.  Refused, with every reason, until all tasks are `ok`."""
    version = task_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, TaskSetVersionOut]:
        return 200, TaskSetVersionOut.of(task_versions.publish_tasks(version, acting_user=user))

    return once(request, version.team, act)


@router.post(
    "/task-set-versions/{int:version_id}/cancel",
    response=TaskSetVersionOut,
    operation_id="cancel_task_set_version",
    auth=TO_CHANGE,
)
@without_body
def cancel(request: HttpRequest, version_id: int) -> Any:
    """Give up an import, or stop a check: what was stored then waits for another one."""
    version = task_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, TaskSetVersionOut]:
        return 200, TaskSetVersionOut.of(cancel_stored(version, acting_user=user))

    return once(request, version.team, act)


@router.delete(
    "/task-set-versions/{int:version_id}", response={204: None}, operation_id="delete_task_set_version", auth=TO_CHANGE
)
@without_body
def delete(request: HttpRequest, version_id: int) -> Status[None]:
    version = task_version_for(request, version_id, to="launch")
    delete_unneeded(version, acting_user=caller_of(request).user)
    return Status(204, None)


@router.get(
    "/task-set-versions/{int:version_id}/differences", response=TaskDifferenceOut, operation_id="compare_task_sets"
)
def differences(
    request: HttpRequest,
    version_id: int,
    before: Annotated[int, Query(ge=1, lt=2**63, description="The version with which this one is compared")],
) -> TaskDifferenceOut:
    """Which tasks were added, removed or changed since another version, by their names."""
    found = task_versions.compare_tasks(task_version_for(request, version_id), task_version_for(request, before))
    return TaskDifferenceOut(**vars(found))


@router.get(
    "/task-set-versions/{int:version_id}/download",
    operation_id="download_task_set_version",
    response={200: None},
    openapi_extra={"responses": {200: {"description": "A tar of its files; a Range is taken", "content": {
        "application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}}},
)  # fmt: skip
def download(request: HttpRequest, version_id: int) -> HttpResponse | StreamingHttpResponse:
    return download_of(request, task_version_for(request, version_id))
