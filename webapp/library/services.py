"""What can be done to a version together with the runs around it: promote a checkpoint, delete what nobody needs."""

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import ModelVersion, VersionState
from webapp.catalog.origin import CheckpointOrigin
from webapp.catalog.versions import begin_version
from webapp.refusals import Invalid, Refused
from webapp.runs.models import ENDED, Run

MOST_WARM_STARTS = 50
"""How far back a chain of warm starts is followed."""


@dataclass(frozen=True)
class Dependents:
    """What names a version, or came of it."""

    live_runs: list[Run]
    """They read its files, or will."""
    ended_runs: list[Run]
    descendants: list[ModelVersion]
    conversations: int
    """How many there are with it; they can be read when it is gone."""


def promote_checkpoint(run: Run, step: int, name: str, *, acting_user: User) -> ModelVersion:
    """Queue a version of what the run's checkpoint holds.  Raises Invalid for a checkpoint that is not there."""
    checkpoint = next((row for row in run.checkpoints_on_disk if row.step == step), None)
    if checkpoint is None:
        kept = ", ".join(str(row.step) for row in run.checkpoints_on_disk)
        remedy = f"use one of: {kept}" if kept else "wait for the run's first checkpoint"
        raise Invalid.field("step", step, "the run has no checkpoint of this step on disk", remedy)
    _refuse_adapter_alone(run)
    lineage = _lineage(run)
    if lineage[-1].spec["model"].get("kind", "builtin") == "builtin":
        message = "the run trains the built-in network, whose alphabet no model folder has"
        problem = Problem("run", str(run.id), message, "begin a run with it instead (model.kind = checkpoint)")
        raise Refused("the checkpoint cannot be a version of a model", [problem])
    origin = CheckpointOrigin(
        run=str(run.id),
        number=run.number,
        name=run.name,
        step=step,
        environment=str(run.spec["environment"]["id"]),
        data=run.spec["dataset"],
        recipe=str(run.spec["recipe"].get("preset") or ""),
    )
    parent = next((earlier.model_version for earlier in lineage if earlier.model_version), None)
    size_bytes = checkpoint.size_bytes
    return begin_version(run.team, name, origin, acting_user=acting_user, size_bytes=size_bytes, parent=parent)


def _refuse_adapter_alone(run: Run) -> None:
    """A warm start takes over no adapter either: the run's own spec says how one is saved."""
    lora = run.spec["model"].get("lora")
    if lora is not None and lora.get("export") == "adapter":
        message = 'its checkpoints hold the adapter alone (model.lora.export = "adapter"), and a model has all weights'
        remedy = (
            "merge it into its model with peft (merge_and_unload) and upload the folder; or begin a run with this one "
            '(model.kind = "checkpoint"), whose checkpoints hold it merged, and promote one of those'
        )
        raise Refused("the checkpoint cannot be a version of a model", [Problem("run", str(run.id), message, remedy)])


def _lineage(run: Run) -> list[Run]:
    """The run, the one whose checkpoint it began with, and so on."""
    runs = [run]
    while runs[-1].spec["model"].get("kind") == "checkpoint" and len(runs) < MOST_WARM_STARTS:
        before = _run(runs[-1].team_id, runs[-1].spec["model"]["run"])
        if before is None:
            break
        runs.append(before)
    return runs


def _run(team_id: int, run_id: str) -> Run | None:
    try:
        return Run.objects.select_related("model_version").filter(team=team_id, id=UUID(run_id)).first()
    except ValueError:
        return None


def dependents_of(version: ModelVersion) -> Dependents:
    unended = Run.objects.filter(team=version.model.team).exclude(state__in=ENDED).select_related("model_version")
    live = [
        run
        for run in unended
        if run.judge_version_id == version.id
        or any(earlier.model_version_id == version.id for earlier in _lineage(run))
    ]
    named = Q(model_version=version) | Q(judge_version=version)
    ended = list(Run.objects.filter(named, state__in=ENDED).order_by("-number"))
    descendants = version.descendants.filter(state=VersionState.READY).select_related("model").order_by("-id")
    return Dependents(live, ended, list(descendants), version.conversations.count())


@transaction.atomic
def delete_version(version: ModelVersion, *, acting_user: User) -> None:
    """Remove the version; its number is never given again.  Raises Refused while it is made, or a run uses it."""
    Team.objects.select_for_update().get(id=version.model.team_id)
    version = ModelVersion.objects.select_for_update(of=("self",)).select_related("model__team").get(id=version.id)
    if version.is_unfinished:
        raise Refused("the version is still being made; cancel it first")
    if live := dependents_of(version).live_runs:
        problems = [Problem("run", str(run.id), f"run {run} uses it", "cancel it, or wait for its end") for run in live]
        raise Refused(f"{version} is in use", problems)
    record(
        version.model.team, acting_user, "model.delete", f"model-version {version.id}",
        name=str(version), sha256=version.sha256,
    )  # fmt: skip
    team_id, sha256 = version.model.team_id, version.sha256
    version.delete()
    if sha256:
        queue.send(queue.REMOVE_MODEL, str(team_id), sha256)
