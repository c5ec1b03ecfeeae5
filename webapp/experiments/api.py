"""Experiments over REST."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query

from engine.spec.run import RunSpec
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one
from webapp.api.idempotency import once
from webapp.api.requests import Text
from webapp.experiments import services
from webapp.experiments.access import experiment_for, experiments_of
from webapp.experiments.models import Experiment

router = Router(tags=["experiments"])


class ExperimentOut(Schema):
    id: UUID
    team: str
    name: str
    description: str
    spec: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, experiment: Experiment) -> "ExperimentOut":
        own = {name: getattr(experiment, name) for name in cls.model_fields if name != "team"}
        return cls(**own, team=experiment.team.slug)


class ExperimentPage(Schema):
    items: list[ExperimentOut]
    next_cursor: str | None


@router.get("/experiments", response=ExperimentPage, operation_id="list_experiments")
def list_experiments(
    request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> ExperimentPage:
    """The most recently changed ones first."""
    position = (("updated_at", datetime), ("id", UUID))
    page, next_cursor = page_of(experiments_of(request), position, limit=limit, cursor=cursor)
    return ExperimentPage(items=[ExperimentOut.of(experiment) for experiment in page], next_cursor=next_cursor)


@router.post("/experiments", response={201: ExperimentOut}, operation_id="create_experiment", auth=somewhere("launch"))
def create(request: HttpRequest, spec: RunSpec, team: Text | None = None) -> Status[object]:
    owner = team_to_act_in(request, team, to="launch")
    user = caller_of(request).user
    return once(
        request, owner, lambda: (201, ExperimentOut.of(services.create_experiment(owner, spec, acting_user=user)))
    )


@router.get("/experiments/{uuid:experiment_id}", response=ExperimentOut, operation_id="get_experiment")
def get_experiment(request: HttpRequest, experiment_id: UUID) -> ExperimentOut:
    return ExperimentOut.of(experiment_for(request, experiment_id))


@router.put(
    "/experiments/{uuid:experiment_id}",
    response=ExperimentOut,
    operation_id="change_experiment",
    auth=to_one(experiment_for, "experiment_id", "launch"),
)
def change(request: HttpRequest, experiment_id: UUID, spec: RunSpec) -> ExperimentOut:
    experiment = experiment_for(request, experiment_id, to="launch")
    return ExperimentOut.of(services.change_experiment(experiment, spec, acting_user=caller_of(request).user))
