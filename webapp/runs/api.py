"""Runs over REST: submit, look, cancel, pause, resume."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.db import models, transaction
from django.db.models.functions import Cast
from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field

from engine.spec.event import LaneSpan
from engine.spec.run import RunSpec
from engine.spec.usage import Usage
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.accounts.models import Team, User
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.api.requests import Text
from webapp.experiments.access import experiment_for
from webapp.experiments.models import Experiment
from webapp.refusals import Invalid
from webapp.runs import services
from webapp.runs.access import run_for, runs_of
from webapp.runs.lanes import MOST_STEPS, STEPS_AT_ONCE, lanes_of
from webapp.runs.models import Event, Run, RunStatus
from webapp.runs.series import MOST_BUCKETS, one_snapshot, series_of
from webapp.runs.usage import newest_usage

router = Router(tags=["runs"])
TO_LAUNCH = to_one(run_for, "run_id", "launch")
LAST_STEP = 2**31 - 1
"""The last one that there can be."""
LARGEST_PAGE_BYTES = 4 * 2**20
"""The JSON of the events of a page; its last event may go beyond it."""
EVENTS_AT_ONCE = 10
"""What is fetched of them at once: any may have a few MiB."""


class RunUsing(Schema):
    """A run, where something says what it is used by."""

    id: UUID
    number: int
    name: str
    state: str

    @classmethod
    def of(cls, run: Run) -> "RunUsing":
        return cls(id=run.id, number=run.number, name=run.name, state=run.state)


class ExperimentNaming(Schema):
    """An experiment, where something says what names it."""

    id: UUID
    name: str


class RunRequest(RunSpec):
    """A RunSpec, and where the run belongs."""

    experiment: UUID | None = None
    """The experiment that the run is listed under."""
    team: str | None = None
    """The team's slug; needed only by people with several teams."""

    @property
    def run_spec(self) -> RunSpec:
        return RunSpec.model_validate(self.model_dump(exclude={"experiment", "team"}))


class RunOut(Schema):
    id: UUID
    number: int
    team: str
    experiment: UUID | None
    name: str
    state: str
    desired: str
    attempt: int
    phase: str
    step: int
    total_steps: int
    eta_s: float | None
    last_seq: int
    failure_reason: str
    summary: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    heartbeat_at: datetime | None

    @classmethod
    def of(cls, run: Run) -> "RunOut":
        own = {name: getattr(run, name) for name in cls.model_fields if name not in ("team", "experiment")}
        return cls(**own, team=run.team.slug, experiment=run.experiment_id)


class TransitionOut(Schema):
    from_state: str
    to_state: str
    attempt: int
    by: str
    reason: str
    at: datetime


class RunDetail(RunOut):
    spec: dict[str, Any]
    transitions: list[TransitionOut]


class RunPage(Schema):
    items: list[RunOut]
    next_cursor: str | None


class SeriesOut(Schema):
    key: str
    level: int
    points: list[tuple[int, int, float, float, float, float, int]] = Field(
        description="step, last_step, minimum, maximum, mean, last, count"
    )


class MetricsOut(Schema):
    seq: int = Field(description="The number of the last event that these series contain")
    series: list[SeriesOut]


class EventsOut(Schema):
    items: list[dict[str, Any]]
    next_after: int = Field(description="Send it as `after` to go on; equal to the one sent when there is nothing new")


class StepLanesOut(Schema):
    step: int
    spans: list[LaneSpan]


class LanesOut(Schema):
    steps: list[StepLanesOut]


class UsageOut(Schema):
    newest: Usage | None


class CheckpointOut(Schema):
    step: int
    path: str
    size_bytes: int
    seconds: float
    at: datetime
    on_disk: bool = Field(description="False: removed by schedule.keep_checkpoints")


@router.post("/runs", response={201: RunOut}, operation_id="submit_run", auth=somewhere("launch"))
def submit(request: HttpRequest, spec: RunRequest) -> Status[object]:
    experiment, team = _owner_of(request, spec)
    user = caller_of(request).user

    def act() -> tuple[int, RunOut]:
        return 201, RunOut.of(services.submit_run(team, spec.run_spec, acting_user=user, experiment=experiment))

    return once(request, team, act)


def _owner_of(request: HttpRequest, spec: RunRequest) -> tuple[Experiment | None, Team]:
    if spec.experiment is None:
        return None, team_to_act_in(request, spec.team, to="launch")
    experiment = experiment_for(request, spec.experiment, to="launch")
    if spec.team not in (None, experiment.team.slug):
        raise Invalid.field("team", spec.team, f"the experiment belongs to {experiment.team.slug}", "leave team out")
    return experiment, experiment.team


@router.post(
    "/experiments/{uuid:experiment_id}/runs",
    response={201: RunOut},
    operation_id="launch_experiment",
    auth=to_one(experiment_for, "experiment_id", "launch"),
)
@without_body
def launch(request: HttpRequest, experiment_id: UUID) -> Status[object]:
    experiment = experiment_for(request, experiment_id, to="launch")
    user = caller_of(request).user
    return once(
        request, experiment.team, lambda: (201, RunOut.of(services.launch_experiment(experiment, acting_user=user)))
    )


@router.get("/runs", response=RunPage, operation_id="list_runs")
def list_runs(
    request: HttpRequest,
    state: RunStatus | None = None,
    experiment: UUID | None = None,
    limit: int = Query(50, ge=1, le=MOST_PER_PAGE),
    cursor: str | None = None,
) -> RunPage:
    runs = runs_of(request).defer("spec", "heartbeat")
    if state is not None:
        runs = runs.filter(state=state)
    if experiment is not None:
        runs = runs.filter(experiment=experiment)
    page, next_cursor = page_of(runs, (("created_at", datetime), ("id", UUID)), limit=limit, cursor=cursor)
    return RunPage(items=[RunOut.of(run) for run in page], next_cursor=next_cursor)


@router.get("/runs/{uuid:run_id}", response=RunDetail, operation_id="get_run")
def get_run(request: HttpRequest, run_id: UUID) -> RunDetail:
    run = run_for(request, run_id)
    transitions = [TransitionOut(**row) for row in run.transitions.values(*TransitionOut.model_fields)]
    return RunDetail(**RunOut.of(run).model_dump(), spec=run.spec, transitions=transitions)


@router.post("/runs/{uuid:run_id}/cancel", response=RunOut, operation_id="cancel_run", auth=TO_LAUNCH)
@without_body
def cancel(request: HttpRequest, run_id: UUID) -> Any:
    return _asked_of(request, run_id, services.cancel_run)


@router.post("/runs/{uuid:run_id}/pause", response=RunOut, operation_id="pause_run", auth=TO_LAUNCH)
@without_body
def pause(request: HttpRequest, run_id: UUID) -> Any:
    return _asked_of(request, run_id, services.pause_run)


@router.post("/runs/{uuid:run_id}/resume", response=RunOut, operation_id="resume_run", auth=TO_LAUNCH)
@without_body
def resume(request: HttpRequest, run_id: UUID) -> Any:
    return _asked_of(request, run_id, services.resume_run)


def _asked_of(request: HttpRequest, run_id: UUID, verb: Callable[..., Run]) -> Any:
    run = run_for(request, run_id, to="launch")
    user: User = caller_of(request).user
    return once(request, run.team, lambda: (200, RunOut.of(verb(run, acting_user=user))))


@router.get("/runs/{uuid:run_id}/metrics", response=MetricsOut, operation_id="get_metrics")
def metrics(
    request: HttpRequest,
    run_id: UUID,
    names: Annotated[Text | None, Query(alias="keys", description="Comma-separated; all when left out")] = None,
    first_step: int = Query(0, ge=0, lt=2**31, description="Only this step and later ones"),
    last_step: int = Query(LAST_STEP, ge=0, lt=2**31, description="Only this step and earlier ones"),
    after: int = Query(-1, ge=-1, lt=2**31, description="Only steps beyond this one"),
    until: int = Query(LAST_STEP, ge=0, lt=2**31, description="Like last_step"),
    buckets: int = Query(1000, ge=1, le=MOST_BUCKETS, description="Most points per series"),
) -> MetricsOut:
    with one_snapshot():
        run = run_for(request, run_id)
        wanted = [key for key in names.split(",") if key] if names is not None else None
        first, last = max(first_step, after + 1), min(last_step, until)
        found = series_of(run.id, keys=wanted, first_step=first, last_step=last, buckets=buckets)
    series = [
        SeriesOut(
            key=curve.key,
            level=curve.level,
            points=[(at.step, at.last_step, at.minimum, at.maximum, at.mean, at.last, at.count) for at in curve.points],
        )
        for curve in found
    ]
    return MetricsOut(seq=run.last_seq, series=series)


@router.get("/runs/{uuid:run_id}/events", response=EventsOut, operation_id="list_events")
def events(
    request: HttpRequest,
    run_id: UUID,
    after: int = Query(0, ge=0, lt=2**63),
    kind: Text | None = None,
    limit: int = Query(200, ge=1, le=1000, description="The most of a page, which ends earlier after 4 MiB"),
) -> EventsOut:
    """In their order, from the one after ``after``."""
    found = run_for(request, run_id).events.filter(seq__gt=after).order_by("seq")
    if kind is not None:
        found = found.filter(kind=kind)
    page = _first_of(found, limit)
    return EventsOut(items=[body for _, body in page], next_after=page[-1][0] if page else after)


@transaction.atomic  # beyond a transaction the database would keep all that a cursor could ever be asked for
def _first_of(found: models.QuerySet[Event], limit: int) -> list[tuple[int, Any]]:
    """Number and body of those that fit into a page, and at least one."""
    page: list[tuple[int, Any]] = []
    size_bytes = 0
    rows = found.annotate(text=Cast("body", models.TextField())).values_list("seq", "text")[:limit]
    for seq, text in rows.iterator(chunk_size=EVENTS_AT_ONCE):
        page.append((seq, json.loads(text)))
        size_bytes += len(text.encode())
        if size_bytes >= LARGEST_PAGE_BYTES:
            break
    return page


@router.get("/runs/{uuid:run_id}/lanes", response=LanesOut, operation_id="get_lanes")
def lanes(
    request: HttpRequest,
    run_id: UUID,
    last_step: int = Query(LAST_STEP, ge=0, lt=2**31, description="Only this step and earlier ones"),
    steps: int = Query(STEPS_AT_ONCE, ge=1, le=MOST_STEPS, description="How many, the newest of them"),
) -> LanesOut:
    """Who was at work beside whom; nothing where generation and training take turns."""
    found = lanes_of(run_for(request, run_id).id, last_step=last_step, steps=steps)
    return LanesOut.model_validate({"steps": [asdict(step) for step in found]})


@router.get("/runs/{uuid:run_id}/usage", response=UsageOut, operation_id="get_usage")
def usage(request: HttpRequest, run_id: UUID) -> UsageOut:
    """What the run's processes took and how its servers fared when that was last measured; null before."""
    return UsageOut(newest=newest_usage(run_for(request, run_id)))


class CheckpointPage(Schema):
    items: list[CheckpointOut]
    next_cursor: str | None


@router.get("/runs/{uuid:run_id}/checkpoints", response=CheckpointPage, operation_id="list_checkpoints")
def checkpoints(
    request: HttpRequest, run_id: UUID, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> CheckpointPage:
    """The newest first."""
    run = run_for(request, run_id)
    page, next_cursor = page_of(run.checkpoints.all(), (("step", int),), limit=limit, cursor=cursor)
    items = [CheckpointOut(**{name: getattr(row, name) for name in CheckpointOut.model_fields}) for row in page]
    return CheckpointPage(items=items, next_cursor=next_cursor)
