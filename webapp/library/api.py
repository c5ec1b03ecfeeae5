"""Models over REST: import, upload, promote, look, download, delete."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.db.models import Count, Exists, Max, OuterRef, Q
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Request, Text
from webapp.catalog import uploads
from webapp.catalog.access import model_for, models_of, upload_for, version_for, versions_of
from webapp.catalog.download import download_of
from webapp.catalog.imports import import_folder, importable
from webapp.catalog.models import Model, ModelVersion, UploadKind, VersionState
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.upload_api import UploadRoutes, add_upload_routes
from webapp.library import services
from webapp.runs.access import run_for
from webapp.runs.api import RunUsing

router = Router(tags=["models"])
TO_CHANGE = to_one(version_for, "version_id", "launch")
TO_UPLOAD = to_one(upload_for, "upload_id", "launch")


class ImportRequest(Request):
    name: str = Field(max_length=100, description="Of the model; a new version where there is one of the name")
    folder: str = Field(max_length=1000, description="Below the server's import root")


class PromoteRequest(Request):
    name: str = Field(max_length=100)


class VersionOut(Schema):
    id: int
    team: str
    model: int
    name: str = Field(description="As a spec names it: name@number; without number until it is ready")
    number: int | None
    state: VersionState
    sha256: str = Field(description="Of the manifest, which names all files with their digests")
    problem: dict[str, Any] | None
    same_as: int | None = Field(description="The version whose content it has")
    origin: dict[str, Any]
    parent: int | None = Field(description="The version that the run of its checkpoint began from")
    bytes: int
    bytes_done: int
    architecture: str
    parameters: int | None
    context_tokens: int | None
    dtype: str
    template_name: str
    created_at: datetime
    created_by: str | None

    @classmethod
    def of(cls, version: ModelVersion) -> "VersionOut":
        taken = ("id", "number", "state", "sha256", "problem", "origin", "bytes", "bytes_done", "architecture",
                 "parameters", "context_tokens", "dtype", "template_name", "created_at")  # fmt: skip
        return cls(
            **{name: getattr(version, name) for name in taken},
            team=version.model.team.slug,
            model=version.model_id,
            name=f"{version.model.name}@{version.number}" if version.number else version.model.name,
            same_as=version.same_as_id,
            parent=version.parent_id,
            created_by=version.created_by.email if version.created_by else None,
        )


class VersionDetail(VersionOut):
    licence_text: str
    live_runs: list[RunUsing] = Field(description="While there are any, the version cannot be deleted")
    ended_runs: list[RunUsing]
    descendants: list[int] = Field(description="Versions made of checkpoints of runs that began from it")
    conversations: int = Field(description="With it; they can still be read when it is deleted")


class ModelOut(Schema):
    id: int
    team: str
    name: str
    versions: int = Field(description="How many are ready")
    newest: int | None = Field(description="The number of the newest ready one")
    created_at: datetime


class ModelPage(Schema):
    items: list[ModelOut]
    next_cursor: str | None


class VersionPage(Schema):
    items: list[VersionOut]
    next_cursor: str | None


class FoldersOut(Schema):
    folders: list[str]


Page = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]


@router.get("/models", response=ModelPage, operation_id="list_models")
def list_models(request: HttpRequest, limit: Page = 50, cursor: str | None = None) -> ModelPage:
    """Those with a version; the newest names first."""
    ready = Q(versions__state=VersionState.READY)
    rows = models_of(request).annotate(
        ready=Count("versions", filter=ready), newest=Max("versions__number", filter=ready)
    )
    with_versions = rows.filter(Exists(ModelVersion.objects.filter(model=OuterRef("id"))))
    page, next_cursor = page_of(with_versions, (("id", int),), limit=limit, cursor=cursor)
    return ModelPage(items=[_model_out(model) for model in page], next_cursor=next_cursor)


def _model_out(model: Any) -> ModelOut:
    return ModelOut(
        id=model.id, team=model.team.slug, name=model.name, versions=model.ready, newest=model.newest,
        created_at=model.created_at,
    )  # fmt: skip


@router.get("/models/{int:model_id}/versions", response=VersionPage, operation_id="list_versions_of_model")
def versions_of_model(request: HttpRequest, model_id: int, limit: Page = 50, cursor: str | None = None) -> VersionPage:
    """The newest first, also those that failed."""
    model: Model = model_for(request, model_id)
    return _versions(model.versions.select_related("model__team", "created_by").defer("licence_text"), limit, cursor)


@router.get("/model-versions", response=VersionPage, operation_id="list_model_versions")
def list_versions(
    request: HttpRequest, state: VersionState | None = None, limit: Page = 50, cursor: str | None = None
) -> VersionPage:
    """The versions of all models, the newest first."""
    rows = versions_of(request)
    return _versions(rows if state is None else rows.filter(state=state), limit, cursor)


def _versions(rows: Any, limit: int, cursor: str | None) -> VersionPage:
    page, next_cursor = page_of(rows, (("id", int),), limit=limit, cursor=cursor)
    return VersionPage(items=[VersionOut.of(version) for version in page], next_cursor=next_cursor)


@router.get("/model-versions/{int:version_id}", response=VersionDetail, operation_id="get_model_version")
def get_version(request: HttpRequest, version_id: int) -> VersionDetail:
    """With what depends on it."""
    version = version_for(request, version_id)
    dependents = services.dependents_of(version)
    return VersionDetail(
        **VersionOut.of(version).model_dump(),
        licence_text=version.licence_text,
        live_runs=[RunUsing.of(run) for run in dependents.live_runs],
        ended_runs=[RunUsing.of(run) for run in dependents.ended_runs[:MOST_PER_PAGE]],
        descendants=[descendant.id for descendant in dependents.descendants],
        conversations=dependents.conversations,
    )


@router.get("/model-imports", response=FoldersOut, operation_id="list_importable_folders")
def list_importable(request: HttpRequest) -> FoldersOut:
    """Folders of the server that hold a config.json."""
    models_of(request)  # a key that may not read lists nothing
    return FoldersOut(folders=importable())


@router.post("/model-imports", response={201: VersionOut}, operation_id="import_model", auth=somewhere("launch"))
def import_model(request: HttpRequest, wanted: ImportRequest, team: Text | None = None) -> Status[object]:
    owner = team_to_act_in(request, team, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, VersionOut]:
        return 201, VersionOut.of(import_folder(owner, wanted.name, wanted.folder, acting_user=user))

    return once(request, owner, act)


@router.post(
    "/runs/{uuid:run_id}/checkpoints/{int:step}/promote",
    response={201: VersionOut},
    operation_id="promote_checkpoint",
    auth=to_one(run_for, "run_id", "launch"),
)
def promote(request: HttpRequest, run_id: UUID, step: int, wanted: PromoteRequest) -> Status[object]:
    run = run_for(request, run_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, VersionOut]:
        return 201, VersionOut.of(services.promote_checkpoint(run, step, wanted.name, acting_user=user))

    return once(request, run.team, act)


@router.post(
    "/model-versions/{int:version_id}/cancel", response=VersionOut, operation_id="cancel_version", auth=TO_CHANGE
)
@without_body
def cancel(request: HttpRequest, version_id: int) -> Any:
    version = version_for(request, version_id, to="launch")
    user = caller_of(request).user
    return once(request, version.model.team, lambda: (200, VersionOut.of(cancel_stored(version, acting_user=user))))


@router.delete("/model-versions/{int:version_id}", response={204: None}, operation_id="delete_version", auth=TO_CHANGE)
@without_body
def delete(request: HttpRequest, version_id: int) -> Status[None]:
    version = version_for(request, version_id, to="launch")
    services.delete_version(version, acting_user=caller_of(request).user)
    return Status(204, None)


@router.get(
    "/model-versions/{int:version_id}/download",
    operation_id="download_version",
    response={200: None},
    openapi_extra={"responses": {200: {"description": "A tar of its files; a Range is taken", "content": {
        "application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}}},
)  # fmt: skip
def download(request: HttpRequest, version_id: int) -> HttpResponse | StreamingHttpResponse:
    return download_of(request, version_for(request, version_id))


add_upload_routes(
    router,
    UploadRoutes(
        address="model-uploads",
        kind=UploadKind.MODEL,
        operation_suffix="upload",
        find=upload_for,
        hint="One .tar, or the files themselves",
    ),
)


@router.post(
    "/model-uploads/{uuid:upload_id}/complete", response=VersionOut, operation_id="complete_upload", auth=TO_UPLOAD
)
@without_body
def complete(request: HttpRequest, upload_id: UUID) -> Any:
    """A version, once all parts are there; the second time the same one."""
    upload = upload_for(request, upload_id, to="launch")
    user = caller_of(request).user
    return once(request, upload.team, lambda: (200, VersionOut.of(uploads.complete_upload(upload, acting_user=user))))
