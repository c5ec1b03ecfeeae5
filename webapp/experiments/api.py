"""Experiments over REST."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Router, Schema, Status

from engine.spec.run import RunSpec
from webapp.accounts.access import caller_of, team_to_act_in
from webapp.api.cursors import MOST_PER_PAGE
from webapp.api.idempotency import once
from webapp.api.requests import Text
from webapp.experiments import services
from webapp.experiments.access import experiment_for, experiments_of
from webapp.experiments.models import Experiment
from webapp.runs.api import RunOut

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


@router.get("/experiments", response=list[ExperimentOut], operation_id="list_experiments")
def list_experiments(request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE)) -> list[ExperimentOut]:
    """The most recently changed ones."""
    return [ExperimentOut.of(one) for one in experiments_of(request)[:limit]]


@router.post("/experiments", response={201: ExperimentOut}, operation_id="create_experiment")
def create(request: HttpRequest, spec: RunSpec, team: Text | None = None) -> Status:
    owner = team_to_act_in(request, team, to="launch")
    user = caller_of(request).user
    return once(
        request, owner, lambda: (201, ExperimentOut.of(services.create_experiment(owner, spec, acting_user=user)))
    )


@router.get("/experiments/{uuid:experiment_id}", response=ExperimentOut, operation_id="get_experiment")
def get_experiment(request: HttpRequest, experiment_id: UUID) -> ExperimentOut:
    return ExperimentOut.of(experiment_for(request, experiment_id))


@router.put("/experiments/{uuid:experiment_id}", response=ExperimentOut, operation_id="change_experiment")
def change(request: HttpRequest, experiment_id: UUID, spec: RunSpec) -> ExperimentOut:
    experiment = experiment_for(request, experiment_id, to="launch")
    return ExperimentOut.of(services.change_experiment(experiment, spec, acting_user=caller_of(request).user))


@router.post("/experiments/{uuid:experiment_id}/runs", response={201: RunOut}, operation_id="launch_experiment")
def launch(request: HttpRequest, experiment_id: UUID) -> Status:
    experiment = experiment_for(request, experiment_id, to="launch")
    user = caller_of(request).user
    return once(
        request, experiment.team, lambda: (201, RunOut.of(services.launch_experiment(experiment, acting_user=user)))
    )
