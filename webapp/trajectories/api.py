"""Trajectories over REST."""

from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.trajectory import Purpose, StopReason, Trajectory
from webapp.api.cursors import MOST_PER_PAGE, decode_cursor, encode_cursor
from webapp.runs.access import run_for
from webapp.trajectories.access import trajectory_for
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
