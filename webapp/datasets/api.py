"""Datasets over REST: upload, import, map, look, compare, measure, download, delete."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.db.models import Count, Exists, Max, OuterRef, Q
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.dataset_preparation import Preparation
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Request, Text
from webapp.catalog import dataset_versions, uploads
from webapp.catalog.access import (
    dataset_upload_for,
    dataset_version_for,
    dataset_versions_of,
    measurement_for,
    stored_dataset_for,
    stored_datasets_of,
    version_for,
)
from webapp.catalog.download import download_of
from webapp.catalog.imports import holds_rows, import_dataset, importable
from webapp.catalog.models import DatasetState, DatasetVersion, Measurement, MeasurementKind, StoredDataset, UploadKind
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.upload_api import ImportableOut, UploadRoutes, add_upload_routes
from webapp.datasets.rows import rows_of
from webapp.runs.api import ExperimentNaming, RunUsing
from webapp.runs.dependents import delete_unneeded, dependents_of

router = Router(tags=["datasets"])
TO_CHANGE = to_one(dataset_version_for, "version_id", "launch")
TO_UPLOAD = to_one(dataset_upload_for, "upload_id", "launch")
Page = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]
Id = Annotated[int, Field(ge=1, lt=2**63)]


class DatasetImportRequest(Request):
    name: str = Field(max_length=100, description="Of the dataset; a new version where there is one of the name")
    folder: str = Field(max_length=1000, description="A folder, or one file, below the server's import root")
    preparation: Preparation | None = Field(default=None, description="Left out: the version waits for one")


class CompleteRequest(Request):
    preparation: Preparation | None = Field(default=None, description="Left out: the version waits for one")


class LengthsRequest(Request):
    model_version: Id = Field(description="Whose tokenizer counts")


class ComparisonRequest(Request):
    before: Id = Field(description="The version with which this one is compared")


class SplitOut(Schema):
    name: str
    rows: int
    bytes: int


class DatasetVersionOut(Schema):
    id: int
    team: str
    dataset: int
    name: str = Field(description="As a spec names it: name@number; without number until it is ready")
    number: int | None
    state: DatasetState
    sha256: str = Field(description="Of dataset.json, which names all files with their digests")
    problem: dict[str, Any] | None
    same_as: int | None = Field(description="The version whose rows it has")
    origin: dict[str, Any]
    preparation: dict[str, Any] | None
    bytes: int
    bytes_done: int
    rows: int
    splits: list[SplitOut]
    created_at: datetime
    created_by: str | None

    @classmethod
    def of(cls, version: DatasetVersion) -> "DatasetVersionOut":
        taken = ("id", "number", "state", "sha256", "problem", "origin", "preparation", "bytes", "bytes_done", "rows",
                 "created_at")  # fmt: skip
        return cls(
            **{name: getattr(version, name) for name in taken},
            team=version.dataset.team.slug,
            dataset=version.dataset_id,
            name=f"{version.dataset.name}@{version.number}" if version.number else version.dataset.name,
            same_as=version.same_as_id,
            splits=[SplitOut(**split) for split in version.splits],
            created_by=version.created_by.email if version.created_by else None,
        )


class MeasurementOut(Schema):
    id: int
    kind: MeasurementKind
    version: int
    model_version: int | None
    before: int | None
    rows_done: int
    report: dict[str, Any] | None = Field(description="When it is done")
    problem: dict[str, Any] | None

    @classmethod
    def of(cls, measurement: Measurement) -> "MeasurementOut":
        return cls(
            id=measurement.id, kind=MeasurementKind(measurement.kind), version=measurement.version_id,
            model_version=measurement.model_id, before=measurement.before_id, rows_done=measurement.rows_done,
            report=measurement.report, problem=measurement.problem,
        )  # fmt: skip


class DatasetVersionDetail(DatasetVersionOut):
    source: dict[str, Any] | None = Field(description="Columns, first rows, and a guess which column is what")
    report: dict[str, Any] | None = Field(
        description="Of the last preparation: all faults counted, the first ones shown"
    )
    live_runs: list[RunUsing] = Field(description="While there are any, the version cannot be deleted")
    ended_runs: list[RunUsing]
    experiments: list[ExperimentNaming] = Field(description="While any names it, it cannot be deleted")
    measurements: list[MeasurementOut]


class DatasetOut(Schema):
    id: int
    team: str
    name: str
    versions: int = Field(description="How many are ready")
    newest: int | None = Field(description="The number of the newest ready one")
    created_at: datetime


class DatasetPage(Schema):
    items: list[DatasetOut]
    next_cursor: str | None


class DatasetVersionPage(Schema):
    items: list[DatasetVersionOut]
    next_cursor: str | None


class RowOut(Schema):
    number: int = Field(description="In its split, from 0")
    row: dict[str, Any]


class RowsOut(Schema):
    items: list[RowOut]
    next: int | None = Field(description="Where the next page begins; null at the split's end")
    looked_at: int = Field(description="Rows that this page read; a search may stop before it finds as many as asked")


@router.get("/datasets", response=DatasetPage, operation_id="list_datasets")
def list_datasets(request: HttpRequest, limit: Page = 50, cursor: str | None = None) -> DatasetPage:
    """Those with a version; the newest names first."""
    ready = Q(versions__state=DatasetState.READY)
    rows = stored_datasets_of(request).annotate(
        ready=Count("versions", filter=ready), newest=Max("versions__number", filter=ready)
    )
    with_versions = rows.filter(Exists(DatasetVersion.objects.filter(dataset=OuterRef("id"))))
    page, next_cursor = page_of(with_versions, (("id", int),), limit=limit, cursor=cursor)
    return DatasetPage(items=[_dataset_out(dataset) for dataset in page], next_cursor=next_cursor)


def _dataset_out(dataset: Any) -> DatasetOut:
    return DatasetOut(
        id=dataset.id, team=dataset.team.slug, name=dataset.name, versions=dataset.ready, newest=dataset.newest,
        created_at=dataset.created_at,
    )  # fmt: skip


@router.get("/datasets/{int:dataset_id}/versions", response=DatasetVersionPage, operation_id="list_versions_of_dataset")
def versions_of_dataset(
    request: HttpRequest, dataset_id: int, limit: Page = 50, cursor: str | None = None
) -> DatasetVersionPage:
    """The newest first, also those that failed."""
    dataset: StoredDataset = stored_dataset_for(request, dataset_id)
    return _versions(dataset_versions_of(request).filter(dataset=dataset), limit, cursor)


@router.get("/dataset-versions", response=DatasetVersionPage, operation_id="list_dataset_versions")
def list_versions(
    request: HttpRequest, state: DatasetState | None = None, limit: Page = 50, cursor: str | None = None
) -> DatasetVersionPage:
    """The versions of all datasets, the newest first."""
    rows = dataset_versions_of(request)
    return _versions(rows if state is None else rows.filter(state=state), limit, cursor)


def _versions(rows: Any, limit: int, cursor: str | None) -> DatasetVersionPage:
    page, next_cursor = page_of(rows, (("id", int),), limit=limit, cursor=cursor)
    return DatasetVersionPage(items=[DatasetVersionOut.of(version) for version in page], next_cursor=next_cursor)


@router.get("/dataset-versions/{int:version_id}", response=DatasetVersionDetail, operation_id="get_dataset_version")
def get_version(request: HttpRequest, version_id: int) -> DatasetVersionDetail:
    """With its faults, and with what depends on it."""
    version = dataset_version_for(request, version_id)
    dependents = dependents_of(version)
    return DatasetVersionDetail(
        **DatasetVersionOut.of(version).model_dump(),
        source=version.source_report,
        report=version.report,
        live_runs=[RunUsing.of(run) for run in dependents.live_runs],
        ended_runs=[RunUsing.of(run) for run in dependents.ended_runs[:MOST_PER_PAGE]],
        experiments=[ExperimentNaming(id=experiment.id, name=experiment.name) for experiment in dependents.experiments],
        measurements=[MeasurementOut.of(measurement) for measurement in version.measurements.order_by("-id")[:50]],
    )


# Bringing one
@router.get("/dataset-imports", response=ImportableOut, operation_id="list_importable_datasets")
def list_importable(request: HttpRequest) -> ImportableOut:
    """Folders of the server that hold JSON lines, CSV or Parquet."""
    stored_datasets_of(request)  # a key that may not read lists nothing
    return ImportableOut(folders=importable(holds_rows))


@router.post(
    "/dataset-imports", response={201: DatasetVersionOut}, operation_id="import_dataset", auth=somewhere("launch")
)
def import_one(request: HttpRequest, wanted: DatasetImportRequest, team: Text | None = None) -> Status[object]:
    owner = team_to_act_in(request, team, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, DatasetVersionOut]:
        version = import_dataset(owner, wanted.name, wanted.folder, wanted.preparation, acting_user=user)
        return 201, DatasetVersionOut.of(version)

    return once(request, owner, act)


add_upload_routes(
    router,
    UploadRoutes(
        address="dataset-uploads",
        kind=UploadKind.DATASET,
        operation_suffix="dataset_upload",
        find=dataset_upload_for,
        hint="JSON lines, CSV or Parquet",
    ),
)


@router.post(
    "/dataset-uploads/{uuid:upload_id}/complete",
    response=DatasetVersionOut,
    operation_id="complete_dataset_upload",
    auth=TO_UPLOAD,
)
def complete(request: HttpRequest, upload_id: UUID, wanted: CompleteRequest | None = None) -> Status[object]:
    """A version, once all parts are there; the second time the same one."""
    upload = dataset_upload_for(request, upload_id, to="launch")
    user, preparation = caller_of(request).user, wanted.preparation if wanted else None

    def act() -> tuple[int, DatasetVersionOut]:
        return 200, DatasetVersionOut.of(uploads.complete_dataset_upload(upload, preparation, acting_user=user))

    return once(request, upload.team, act)


@router.post(
    "/dataset-versions/{int:version_id}/prepare",
    response=DatasetVersionOut,
    operation_id="prepare_dataset",
    auth=TO_CHANGE,
)
def prepare(request: HttpRequest, version_id: int, wanted: Preparation) -> Status[object]:
    """Say which column is what; the rows are then read, and the version is published if none has a fault."""
    version = dataset_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, DatasetVersionOut]:
        return 200, DatasetVersionOut.of(dataset_versions.prepare_dataset(version, wanted, acting_user=user))

    return once(request, version.dataset.team, act)


@router.post(
    "/dataset-versions/{int:version_id}/cancel",
    response=DatasetVersionOut,
    operation_id="cancel_dataset_version",
    auth=TO_CHANGE,
)
@without_body
def cancel(request: HttpRequest, version_id: int) -> Any:
    version = dataset_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, DatasetVersionOut]:
        return 200, DatasetVersionOut.of(cancel_stored(version, acting_user=user))

    return once(request, version.dataset.team, act)


@router.delete(
    "/dataset-versions/{int:version_id}", response={204: None}, operation_id="delete_dataset_version", auth=TO_CHANGE
)
@without_body
def delete(request: HttpRequest, version_id: int) -> Status[None]:
    version = dataset_version_for(request, version_id, to="launch")
    delete_unneeded(version, acting_user=caller_of(request).user)
    return Status(204, None)


# Looking into one
@router.get("/dataset-versions/{int:version_id}/rows", response=RowsOut, operation_id="list_dataset_rows")
def list_rows(
    request: HttpRequest,
    version_id: int,
    split: Text,
    first: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
    search: Annotated[str, Query(max_length=200)] = "",
) -> RowsOut:
    """Rows of a split in their order.  A search looks for the text in any case, in a bounded number of rows."""
    found = rows_of(dataset_version_for(request, version_id), split, first, limit, search)
    items = [RowOut(number=number, row=row) for number, row in found.items]
    return RowsOut(items=items, next=found.next, looked_at=found.looked_at)


@router.get(
    "/dataset-versions/{int:version_id}/download",
    operation_id="download_dataset_version",
    response={200: None},
    openapi_extra={"responses": {200: {"description": "A tar of its files; a Range is taken", "content": {
        "application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}}},
)  # fmt: skip
def download(request: HttpRequest, version_id: int) -> HttpResponse | StreamingHttpResponse:
    return download_of(request, dataset_version_for(request, version_id))


@router.post(
    "/dataset-versions/{int:version_id}/lengths",
    response={202: MeasurementOut},
    operation_id="measure_dataset_lengths",
    auth=TO_CHANGE,
)
def lengths(request: HttpRequest, version_id: int, wanted: LengthsRequest) -> Status[object]:
    """Count the tokens of prompts and messages under a model's tokenizer."""
    version = dataset_version_for(request, version_id, to="launch")
    model = version_for(request, wanted.model_version)
    user = caller_of(request).user

    def act() -> tuple[int, MeasurementOut]:
        return 202, MeasurementOut.of(dataset_versions.measure_lengths(version, model, acting_user=user))

    return once(request, version.dataset.team, act)


@router.post(
    "/dataset-versions/{int:version_id}/differences",
    response={202: MeasurementOut},
    operation_id="compare_dataset_versions",
    auth=TO_CHANGE,
)
def compare(request: HttpRequest, version_id: int, wanted: ComparisonRequest) -> Status[object]:
    """Which rows were added, removed or changed since another version, by their ids."""
    version = dataset_version_for(request, version_id, to="launch")
    before = dataset_version_for(request, wanted.before)
    user = caller_of(request).user

    def act() -> tuple[int, MeasurementOut]:
        return 202, MeasurementOut.of(dataset_versions.compare_datasets(version, before, acting_user=user))

    return once(request, version.dataset.team, act)


@router.get("/dataset-measurements/{int:measurement_id}", response=MeasurementOut, operation_id="get_measurement")
def get_measurement(request: HttpRequest, measurement_id: int) -> MeasurementOut:
    return MeasurementOut.of(measurement_for(request, measurement_id))
