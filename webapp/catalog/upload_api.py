"""Uploads over REST: the same five operations for each kind of versions, at an address of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.model_files import Sha256
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Request, Text
from webapp.catalog import uploads
from webapp.catalog.access import uploads_of
from webapp.catalog.models import Upload, UploadKind

Page = Annotated[int, Query(ge=1, le=MOST_PER_PAGE)]


@dataclass(frozen=True)
class UploadRoutes:
    address: str
    """Below ``/api/v1``."""
    kind: UploadKind
    operation_suffix: str
    """What the operations' ids end with."""
    find: Callable[..., Upload]
    """The door."""
    hint: str
    """What an upload's files may be."""


class FileAnnounced(Request):
    name: str = Field(min_length=1, max_length=200)
    bytes: int = Field(ge=1, le=uploads.LARGEST_FILE_BYTES)


class UploadRequest(Request):
    name: str = Field(max_length=100, description="Of the model, the dataset, the task set or the package")
    files: list[FileAnnounced] = Field(min_length=1, max_length=2000)


class FileOut(Schema):
    name: str
    bytes: int
    parts: int
    stored: list[int] = Field(description="The numbers of the parts that are there, from 0")


class UploadOut(Schema):
    id: UUID
    team: str
    name: str
    part_bytes: int = Field(description="Of every part but a file's last, which is what remains")
    files: list[FileOut]
    expires_at: datetime
    version: int | None = Field(description="What it was completed to")

    @classmethod
    def of(cls, upload: Upload) -> "UploadOut":
        stored: dict[int, list[int]] = {}
        for file, number in upload.parts.order_by("file", "number").values_list("file", "number"):
            stored.setdefault(file, []).append(number)
        files = [
            FileOut(
                name=file["name"], bytes=file["bytes"], parts=uploads.parts_of(file["bytes"]),
                stored=stored.get(place, []),
            )
            for place, file in enumerate(upload.files)
        ]  # fmt: skip
        return cls(
            id=upload.id, team=upload.team.slug, name=upload.name, part_bytes=uploads.PART_BYTES, files=files,
            expires_at=uploads.expires_at(upload),
            version=upload.completed_to.pk if upload.completed_to is not None else None,
        )  # fmt: skip


class UploadPage(Schema):
    items: list[UploadOut]
    next_cursor: str | None


class ImportableOut(Schema):
    folders: list[str]


class PartOut(Schema):
    file: int
    number: int
    sha256: str


BINARY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def add_upload_routes(router: Router, routes: UploadRoutes) -> None:
    """List, begin, look, put a part, give up; what an upload becomes is the business of its kind."""
    at, suffix = f"/{routes.address}", routes.operation_suffix
    to_upload = to_one(routes.find, "upload_id", "launch")

    @router.get(at, response=UploadPage, operation_id=f"list_{suffix}s")
    def list_uploads(request: HttpRequest, limit: Page = 50, cursor: str | None = None) -> UploadPage:
        """Those on their way."""
        position = (("created_at", datetime), ("id", UUID))
        page, next_cursor = page_of(uploads_of(request, routes.kind), position, limit=limit, cursor=cursor)
        return UploadPage(items=[UploadOut.of(upload) for upload in page], next_cursor=next_cursor)

    @router.post(at, response={201: UploadOut}, operation_id=f"begin_{suffix}", auth=somewhere("launch"))
    def begin(request: HttpRequest, wanted: UploadRequest, team: Text | None = None) -> Status[object]:
        owner = team_to_act_in(request, team, to="launch")
        user = caller_of(request).user
        files = [file.model_dump() for file in wanted.files]

        def act() -> tuple[int, UploadOut]:
            begun = uploads.begin_upload(owner, wanted.name, files, acting_user=user, kind=routes.kind)
            return 201, UploadOut.of(begun)

        return once(request, owner, act)

    begin.__doc__ = f"Announce the files; then put their parts.  {routes.hint}."

    @router.get(f"{at}/{{uuid:upload_id}}", response=UploadOut, operation_id=f"get_{suffix}")
    def get_upload(request: HttpRequest, upload_id: UUID) -> UploadOut:
        """Which parts are there: a cut upload goes on with the others."""
        return UploadOut.of(routes.find(request, upload_id))

    @router.put(
        f"{at}/{{uuid:upload_id}}/files/{{int:file}}/parts/{{int:number}}",
        response=PartOut,
        operation_id=f"put_{suffix.removesuffix('upload')}part",
        auth=to_upload,
        openapi_extra=BINARY,
    )
    def put_part(
        request: HttpRequest,
        upload_id: UUID,
        file: int,
        number: int,
        sha256: Annotated[Sha256, Query(description="Of the part's bytes")],
    ) -> PartOut:
        """Files and parts count from 0.  The same part again changes nothing."""
        part = uploads.put_part(routes.find(request, upload_id, to="launch"), file, number, sha256, request)
        return PartOut(file=part.file, number=part.number, sha256=part.sha256)

    @router.delete(f"{at}/{{uuid:upload_id}}", response={204: None}, operation_id=f"delete_{suffix}", auth=to_upload)
    @without_body
    def delete_upload(request: HttpRequest, upload_id: UUID) -> Status[None]:
        upload = routes.find(request, upload_id, to="launch")
        uploads.delete_upload(upload, acting_user=caller_of(request).user)
        return Status(204, None)
