"""Environment packages over REST: upload, import, check, look, compare, publish, download, delete."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.db.models import Count, Exists, Max, OuterRef, Q
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.package_check import PackageCheck, PackageReport
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Request, Text
from webapp.catalog import package_versions, uploads
from webapp.catalog.access import (
    package_for,
    package_upload_for,
    package_version_for,
    package_versions_of,
    packages_of,
)
from webapp.catalog.checked_versions import check_version
from webapp.catalog.download import download_of
from webapp.catalog.imports import holds_package, import_package, importable
from webapp.catalog.models import CheckedState, PackageVersion, UploadKind
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.upload_api import ImportableOut, UploadRoutes, add_upload_routes
from webapp.runs.api import ExperimentNaming, RunUsing
from webapp.runs.dependents import delete_unneeded, dependents_of

router = Router(tags=["packages"])
TO_CHANGE = to_one(package_version_for, "version_id", "launch")
TO_UPLOAD = to_one(package_upload_for, "upload_id", "launch")
Page = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]
_CHECK = "Left out: the version waits for a check"


class PackageImportRequest(Request):
    name: str = Field(max_length=100, description="Of the package; a new version where there is one of the name")
    folder: str = Field(max_length=1000, description="Below the server's import root; also a .tar or .whl")
    check: PackageCheck | None = Field(default=None, description=_CHECK)


class PackageCompleteRequest(Request):
    check: PackageCheck | None = Field(default=None, description=_CHECK)


class PackageVersionOut(Schema):
    id: int
    team: str
    package: int
    name: str = Field(description="As a spec names it: name@number; without number until it is published")
    number: int | None
    state: CheckedState
    sha256: str = Field(description="Of package.json, which names all files")
    problem: dict[str, Any] | None
    same_as: int | None = Field(description="The version that it is the same as")
    origin: dict[str, Any]
    calls_itself: str = Field(description="The name and the version that stand in it")
    check: dict[str, Any] | None = Field(description="How it is played, or was")
    waiting_for: str = Field(description="Why the check cannot go on at present")
    bytes: int
    bytes_done: int
    created_at: datetime
    created_by: str | None

    @classmethod
    def of(cls, version: PackageVersion) -> "PackageVersionOut":
        taken = ("id", "number", "state", "sha256", "problem", "origin", "waiting_for", "bytes", "bytes_done",
                 "created_at", "calls_itself")  # fmt: skip
        return cls(
            **{name: getattr(version, name) for name in taken},
            team=version.package.team.slug,
            package=version.package_id,
            name=f"{version.package.name}@{version.number}" if version.number else version.package.name,
            same_as=version.same_as_id,
            check=version.check_settings,
            created_by=version.created_by.email if version.created_by else None,
        )


class PackageProblem(Schema):
    field: str
    value: str
    message: str
    remedy: str


class PackageVersionDetail(PackageVersionOut):
    problems: list[PackageProblem] = Field(description="Everything that is wrong with the package, or that it lacks")
    faults: int = Field(description="How many problems there are, also those that are not listed")
    report: PackageReport | None = Field(description="What the last check has found; null while it was not played")
    live_runs: list[RunUsing] = Field(description="While there are any, the version cannot be deleted")
    ended_runs: list[RunUsing]
    experiments: list[ExperimentNaming] = Field(description="While any names it, it cannot be deleted")


class PackageOut(Schema):
    id: int
    team: str
    name: str
    versions: int = Field(description="How many are published")
    newest: int | None = Field(description="The number of the newest published one")
    created_at: datetime


class PackagePage(Schema):
    items: list[PackageOut]
    next_cursor: str | None


class PackageVersionPage(Schema):
    items: list[PackageVersionOut]
    next_cursor: str | None


class PackageDifferenceOut(Schema):
    added: list[str]
    removed: list[str]
    changed: list[str]
    same: int


@router.get("/packages", response=PackagePage, operation_id="list_packages")
def list_packages(request: HttpRequest, limit: Page = 50, cursor: str | None = None) -> PackagePage:
    """Those with a version; the newest names first."""
    ready = Q(versions__state=CheckedState.READY)
    rows = packages_of(request).annotate(
        ready=Count("versions", filter=ready), newest=Max("versions__number", filter=ready)
    )
    with_versions = rows.filter(Exists(PackageVersion.objects.filter(package=OuterRef("id"))))
    page, next_cursor = page_of(with_versions, (("id", int),), limit=limit, cursor=cursor)
    return PackagePage(items=[_package_out(package) for package in page], next_cursor=next_cursor)


def _package_out(package: Any) -> PackageOut:
    return PackageOut(
        id=package.id, team=package.team.slug, name=package.name, versions=package.ready, newest=package.newest,
        created_at=package.created_at,
    )  # fmt: skip


@router.get("/packages/{int:package_id}/versions", response=PackageVersionPage, operation_id="list_versions_of_package")
def versions_of_package(
    request: HttpRequest, package_id: int, limit: Page = 50, cursor: str | None = None
) -> PackageVersionPage:
    """The newest first, also those that failed."""
    package = package_for(request, package_id)
    rows = package_versions_of(request).filter(package=package)
    page, next_cursor = page_of(rows, (("id", int),), limit=limit, cursor=cursor)
    return PackageVersionPage(items=[PackageVersionOut.of(version) for version in page], next_cursor=next_cursor)


@router.get("/package-versions/{int:version_id}", response=PackageVersionDetail, operation_id="get_package_version")
def get_version(request: HttpRequest, version_id: int) -> PackageVersionDetail:
    version = package_version_for(request, version_id)
    dependents = dependents_of(version)
    return PackageVersionDetail(
        **PackageVersionOut.of(version).model_dump(),
        problems=version.problems,
        faults=version.faults,
        report=version.found,
        live_runs=[RunUsing.of(run) for run in dependents.live_runs],
        ended_runs=[RunUsing.of(run) for run in dependents.ended_runs[:MOST_PER_PAGE]],
        experiments=[ExperimentNaming(id=experiment.id, name=experiment.name) for experiment in dependents.experiments],
    )


# Bringing one
@router.get("/package-imports", response=ImportableOut, operation_id="list_importable_packages")
def list_importable(request: HttpRequest) -> ImportableOut:
    """Folders of the server that hold an environment package."""
    packages_of(request)  # a key that may not read lists nothing
    return ImportableOut(folders=importable(holds_package))


@router.post(
    "/package-imports", response={201: PackageVersionOut}, operation_id="import_package", auth=somewhere("launch")
)
def import_one(request: HttpRequest, wanted: PackageImportRequest, team: Text | None = None) -> Status[object]:
    owner = team_to_act_in(request, team, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, PackageVersionOut]:
        version = import_package(owner, wanted.name, wanted.folder, wanted.check, acting_user=user)
        return 201, PackageVersionOut.of(version)

    return once(request, owner, act)


add_upload_routes(
    router,
    UploadRoutes(
        address="package-uploads",
        kind=UploadKind.PACKAGE,
        operation_suffix="package_upload",
        find=package_upload_for,
        hint="One wheel, or one .tar of a package's folder",
    ),
)


@router.post(
    "/package-uploads/{uuid:upload_id}/complete",
    response=PackageVersionOut,
    operation_id="complete_package_upload",
    auth=TO_UPLOAD,
)
def complete(request: HttpRequest, upload_id: UUID, wanted: PackageCompleteRequest | None = None) -> Status[object]:
    """A version, once all parts are there; the second time the same one."""
    upload = package_upload_for(request, upload_id, to="launch")
    user, check = caller_of(request).user, wanted.check if wanted else None

    def act() -> tuple[int, PackageVersionOut]:
        return 200, PackageVersionOut.of(
            uploads.complete_checked_upload(PackageVersion, upload, check, acting_user=user)
        )

    return once(request, upload.team, act)


# Checking and publishing
@router.post(
    "/package-versions/{int:version_id}/check",
    response={202: PackageVersionOut},
    operation_id="check_package",
    auth=TO_CHANGE,
)
def check(request: HttpRequest, version_id: int, wanted: PackageCheck | None = None) -> Status[object]:
    """Install it, start its process and play its first tasks; what the last check found is forgotten."""
    version = package_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, PackageVersionOut]:
        begun = check_version(version, wanted or PackageCheck(), acting_user=user)
        return 202, PackageVersionOut.of(begun)

    return once(request, version.team, act)


@router.post(
    "/package-versions/{int:version_id}/publish",
    response=PackageVersionOut,
    operation_id="publish_package",
    auth=TO_CHANGE,
)
@without_body
def publish(request: HttpRequest, version_id: int) -> Any:
    """Runs can name it from then on.  Refused, with every reason, until a check has found no fault."""
    version = package_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, PackageVersionOut]:
        return 200, PackageVersionOut.of(package_versions.publish_package(version, acting_user=user))

    return once(request, version.team, act)


@router.post(
    "/package-versions/{int:version_id}/cancel",
    response=PackageVersionOut,
    operation_id="cancel_package_version",
    auth=TO_CHANGE,
)
@without_body
def cancel(request: HttpRequest, version_id: int) -> Any:
    """Give up an import, or stop a check: what was stored then waits for another one."""
    version = package_version_for(request, version_id, to="launch")
    user = caller_of(request).user

    def act() -> tuple[int, PackageVersionOut]:
        return 200, PackageVersionOut.of(cancel_stored(version, acting_user=user))

    return once(request, version.team, act)


@router.delete(
    "/package-versions/{int:version_id}", response={204: None}, operation_id="delete_package_version", auth=TO_CHANGE
)
@without_body
def delete(request: HttpRequest, version_id: int) -> Status[None]:
    version = package_version_for(request, version_id, to="launch")
    delete_unneeded(version, acting_user=caller_of(request).user)
    return Status(204, None)


@router.get(
    "/package-versions/{int:version_id}/differences", response=PackageDifferenceOut, operation_id="compare_packages"
)
def differences(
    request: HttpRequest,
    version_id: int,
    before: Annotated[int, Query(ge=1, lt=2**63, description="The version with which this one is compared")],
) -> PackageDifferenceOut:
    """Which files, dependencies and environments were added, removed or changed since another version."""
    found = package_versions.compare_packages(
        package_version_for(request, version_id), package_version_for(request, before)
    )
    return PackageDifferenceOut(**vars(found))


@router.get(
    "/package-versions/{int:version_id}/download",
    operation_id="download_package_version",
    response={200: None},
    openapi_extra={"responses": {200: {"description": "A tar of its files; a Range is taken", "content": {
        "application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}}},
)  # fmt: skip
def download(request: HttpRequest, version_id: int) -> HttpResponse | StreamingHttpResponse:
    return download_of(request, package_version_for(request, version_id))
