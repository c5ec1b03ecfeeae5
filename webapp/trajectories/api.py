"""Trajectories over REST."""

from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Router, Schema
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.trajectory import Purpose, StopReason, Trajectory
from webapp.api.cursors import MOST_PER_PAGE, decode_cursor, encode_cursor
from webapp.api.requests import Text
from webapp.runs.access import run_for
from webapp.trajectories.access import trajectory_for
from webapp.trajectories.exports import ExportFormat, export_of, export_of_run
from webapp.trajectories.models import ChangeFilter, QuarantineFilter, filtered

router = Router(tags=["trajectories"])


class TrajectorySummary(Schema):
    id: str
    seq: int
    purpose: str
    prompt: int
    member: int
    sampled_at_version: int
    trained_at_step: int | None
    level: int
    part: str = Field(description="Of the run's mixture; empty where it has none")
    success: bool
    reward: float
    tool_calls: int
    tool_errors: int
    turns: int
    segments: int
    tokens: int
    stop_reason: str
    changes: int
    repaired: int
    prefilled: int
    masked: int
    alerts: int
    quarantine: str | None


class TrajectoryPage(Schema):
    items: list[TrajectorySummary]
    next_cursor: str | None


class TrajectoryFilter(Schema):
    """What a list of trajectories can be narrowed to."""

    step: int | None = Field(
        None,
        ge=0,
        lt=2**31,
        description="Sampled for this step by the policy of the version before, evaluated after so many steps, or "
        "trained on at this step",
    )
    level: int | None = Field(None, ge=0, lt=2**31)
    part: Text | None = Field(None, max_length=40, description="The name of a part of the run's mixture")
    prompt: int | None = Field(None, ge=0, lt=2**63)
    sampled_at_version: int | None = Field(None, ge=-1, lt=2**31)
    trained_at_step: int | None = Field(None, ge=1, lt=2**31)
    purpose: Purpose | None = None
    success: bool | None = None
    tool_errors: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    stop_reason: StopReason | None = None
    change: ChangeFilter | None = Field(
        None, description="With any change or masked turn, with one of a kind, with several segments, or with no change"
    )
    quarantine: QuarantineFilter | None = Field(None, description="Ever quarantined, or its present quarantine status")


@router.get("/runs/{uuid:run_id}/trajectories", response=TrajectoryPage, operation_id="list_trajectories")
def list_trajectories(
    request: HttpRequest,
    run_id: UUID,
    chosen: Annotated[TrajectoryFilter, Query()],
    limit: int = Query(50, ge=1, le=MOST_PER_PAGE),
    cursor: str | None = None,
) -> TrajectoryPage:
    """Newest first."""
    run = run_for(request, run_id)
    found = filtered(run, **chosen.model_dump()).with_quarantine()
    if cursor is not None:
        found = found.filter(seq__lt=decode_cursor(cursor, (int,))[0])
    page = list(found[: limit + 1])
    more = len(page) > limit
    items = [TrajectorySummary(**row.summary, quarantine=row.quarantine) for row in page[:limit]]
    return TrajectoryPage(items=items, next_cursor=encode_cursor(items[-1].seq) if more else None)


@router.get("/runs/{uuid:run_id}/trajectories/{trajectory_id}", response=Trajectory, operation_id="get_trajectory")
def get_trajectory(request: HttpRequest, run_id: UUID, trajectory_id: str) -> Any:
    return trajectory_for(request, run_id, trajectory_id).body


Exported = Annotated[
    ExportFormat,
    Query(
        alias="format",
        description="`chat`: a line for each conversation in the form of OpenAI's chat API; `atif`: a document of the "
        "Agent Trajectory Interchange Format 1.8 for each trajectory",
    ),
]


def _file(**content_types: str) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "string"}} for kind in content_types.values()}
    return {"responses": {200: {"description": "A file", "content": content}}}


@router.get(
    "/runs/{uuid:run_id}/trajectories/{trajectory_id}/export",
    operation_id="export_trajectory",
    response={200: None},
    openapi_extra=_file(chat="application/jsonl", atif="application/json"),
)
def export_trajectory(
    request: HttpRequest, run_id: UUID, trajectory_id: str, export_format: Exported = "chat"
) -> StreamingHttpResponse:
    """As a file for other programs; 409 where its branches together are too long."""
    return export_of(trajectory_for(request, run_id, trajectory_id), export_format)


@router.get(
    "/runs/{uuid:run_id}/trajectory-export",
    operation_id="export_trajectories",
    response={200: None},
    openapi_extra=_file(lines="application/jsonl"),
)
def export_trajectories(
    request: HttpRequest,
    run_id: UUID,
    chosen: Annotated[TrajectoryFilter, Query()],
    export_format: Exported = "chat",
) -> StreamingHttpResponse:
    """JSON lines of all that the filters leave, newest first, as a stream."""
    run = run_for(request, run_id)
    return export_of_run(run, filtered(run, **chosen.model_dump()), export_format)
