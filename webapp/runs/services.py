"""What can be done to a run: submit (also what an experiment keeps), cancel, pause, resume.

Page, API, commands and workers call these.  Callers have been through the door (``access.py``).
A verb changes what is *wanted* (``Run.desired``); the engine reads that in the answer to its next
batch (docs/events.md) and the state follows.  Every verb may be repeated: the second time changes
nothing.
"""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from pydantic import ValidationError

from engine.spec.foreign_environments import InPackage
from engine.spec.judge import OF_THE_RUN
from engine.spec.mixture import parts_of, terminals_of
from engine.spec.model import CheckpointModel, PretrainedModel
from engine.spec.problems import Problem, problems_in
from engine.spec.run import RunSpec
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import DatasetVersion, ModelVersion, PackageVersion, TaskSetVersion
from webapp.catalog.stored_versions import ready_stored
from webapp.experiments.models import Experiment
from webapp.foreign_code import refuse_foreign
from webapp.refusals import Invalid, Refused
from webapp.runs.models import Desired, Run, RunStatus


@transaction.atomic
def submit_run(team: Team, spec: RunSpec, *, acting_user: User, experiment: Experiment | None = None) -> Run:
    """Queue a run of ``spec``; a worker launches it after the commit.

    Raises Invalid for what the service does not take (``foreign_code.py``), and for a run or a version of a model,
    a dataset or tasks that is not the team's, or not ready.
    """
    refuse_foreign(spec)
    _refuse_runs_of_others(team, spec)
    run = Run.objects.create(
        team=team,
        experiment=experiment,
        number=_next_number(team),
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        **_named_versions(team, spec),
        total_steps=spec.rl_steps,
        created_by=acting_user,
    )
    run.package_versions.set(_named_packages(team, spec))
    record(team, acting_user, "run.submit", f"run {run.id}", number=run.number, name=run.name)
    queue.send(queue.LAUNCH, str(run.id))
    return run


def _named_versions(team: Team, spec: RunSpec) -> dict[str, Any]:
    """What the spec names of the catalog.  Raises Invalid."""
    model, judge = spec.model, spec.resources.judge
    field, terminal = next(iter(terminals_of(spec.environment)), ("environment", None))
    of_model = model.catalog if isinstance(model, PretrainedModel) else None
    of_judge = judge and judge.catalog
    of_tasks = terminal and terminal.catalog
    return {
        "model_version": of_model and ready_stored(ModelVersion, team, of_model, "model.catalog"),
        "judge_version": of_judge and ready_stored(ModelVersion, team, of_judge, f"{OF_THE_RUN}.catalog"),
        "dataset_version": spec.dataset.catalog
        and ready_stored(DatasetVersion, team, spec.dataset.catalog, "dataset.catalog"),
        "task_version": of_tasks and ready_stored(TaskSetVersion, team, of_tasks, f"{field}.catalog"),
    }


def _named_packages(team: Team, spec: RunSpec) -> list[PackageVersion]:
    """The packages of the catalog that the spec's environments are.  Raises Invalid."""
    return [
        ready_stored(PackageVersion, team, part.environment.catalog, f"{part.field}.catalog")
        for part in parts_of(spec.environment)
        if isinstance(part.environment, InPackage) and part.environment.catalog is not None
    ]


def _refuse_runs_of_others(team: Team, spec: RunSpec) -> None:
    if not isinstance(spec.model, CheckpointModel):
        return
    try:
        known = Run.objects.filter(team=team, id=UUID(spec.model.run)).exists()
    except ValueError:
        known = False
    if not known:
        problem = Problem("model.run", spec.model.run, "your team has no such run", "give the id of one of its runs")
        raise Invalid("there is no such run to begin from", [problem])


def launch_experiment(experiment: Experiment, *, acting_user: User) -> Run:
    """Raises Invalid for an experiment that was saved when other things were valid."""
    try:
        spec = experiment.run_spec
    except ValidationError as error:
        problems = problems_in(error, RunSpec)
        raise Invalid("the experiment is not valid as it was saved; change and save it first", problems) from None
    return submit_run(experiment.team, spec, acting_user=acting_user, experiment=experiment)


def _next_number(team: Team) -> int:
    Team.objects.filter(id=team.id).update(last_run_number=F("last_run_number") + 1)  # locks the row until the commit
    return Team.objects.values_list("last_run_number", flat=True).get(id=team.id)


@transaction.atomic
def cancel_run(run: Run, *, acting_user: User) -> Run:
    """A queued run ends at once, a live one when its engine obeys.  Raises Refused if it ended otherwise."""
    run = _locked(run)
    if run.state == RunStatus.CANCELLED or (run.desired == Desired.CANCEL and not run.has_ended):
        return run
    _refuse_ended(run, "cancelled")
    _want(run, Desired.CANCEL)
    if run.state == RunStatus.QUEUED:
        run.move_to(RunStatus.CANCELLED, by=acting_user.email, reason="cancelled before it was launched")
    record(run.team, acting_user, "run.cancel", f"run {run.id}", number=run.number, step=run.step)
    return run


@transaction.atomic
def pause_run(run: Run, *, acting_user: User) -> Run:
    """A queued run is kept back; a live one writes a checkpoint and waits.  Raises Refused."""
    run = _locked(run)
    if run.desired == Desired.PAUSE and not run.has_ended:
        return run
    _refuse_ended(run, "paused")
    _refuse_cancelling(run, "paused")
    _want(run, Desired.PAUSE)
    record(run.team, acting_user, "run.pause", f"run {run.id}", number=run.number, step=run.step)
    return run


@transaction.atomic
def resume_run(run: Run, *, acting_user: User) -> Run:
    """Raises Refused for a run that has ended or is being cancelled."""
    run = _locked(run)
    _refuse_ended(run, "resumed")
    _refuse_cancelling(run, "resumed")
    if run.desired == Desired.RUN:
        return run
    _want(run, Desired.RUN)
    record(run.team, acting_user, "run.resume", f"run {run.id}", number=run.number, step=run.step)
    if run.state == RunStatus.QUEUED:
        queue.send(queue.LAUNCH, str(run.id))
    return run


def _locked(run: Run) -> Run:
    """The run as it is now, under its row's lock, so that what is read here still holds when it is written."""
    return Run.objects.select_for_update(of=("self",)).select_related("team").get(id=run.id)


def _want(run: Run, desired: str) -> None:
    run.desired, run.desired_since, run.desired_because = desired, timezone.now(), ""
    run.save(update_fields=["desired", "desired_since", "desired_because"])


def _refuse_ended(run: Run, verb: str) -> None:
    if run.has_ended:
        raise Refused(
            f"run #{run.number} has {run.state} and cannot be {verb}".replace("has cancelled", "was cancelled")
        )


def _refuse_cancelling(run: Run, verb: str) -> None:
    if run.desired == Desired.CANCEL:
        raise Refused(f"run #{run.number} is being cancelled and cannot be {verb}")
