"""What names a version of a dataset or of a task set, and deleting a version that nothing needs."""

from dataclasses import dataclass

from django.db import transaction

from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.models import Team, User
from webapp.catalog.models import DatasetVersion, TaskSetVersion
from webapp.catalog.stored_versions import audit, locked
from webapp.experiments.models import Experiment
from webapp.refusals import Refused
from webapp.runs.models import ENDED, Run


@dataclass(frozen=True)
class Dependents:
    """What names a version."""

    live_runs: list[Run]
    """They read its files, or will."""
    ended_runs: list[Run]
    experiments: list[Experiment]
    """They name it, and can be launched with it."""


def dependents_of(version: DatasetVersion | TaskSetVersion) -> Dependents:
    named = Experiment.objects.filter(team=version.team, **{version.named_at: str(version)})
    return Dependents(
        live_runs=list(version.runs.exclude(state__in=ENDED).order_by("-number")),
        ended_runs=list(version.runs.filter(state__in=ENDED).order_by("-number")),
        experiments=list(named.order_by("name")) if version.number else [],
    )


@transaction.atomic
def delete_unneeded(version: DatasetVersion | TaskSetVersion, *, acting_user: User) -> None:
    """Remove the version; its number is never given again.  Raises Refused while it is made, or something needs it."""
    Team.objects.select_for_update().get(id=version.team.id)
    version = locked(version)
    if version.is_unfinished:
        raise Refused("the version is still being made; cancel it first")
    dependents = dependents_of(version)
    problems = [
        Problem("run", str(run.id), f"run {run} uses it", "cancel it, or wait for its end")
        for run in dependents.live_runs
    ] + [
        Problem("experiment", str(experiment.id), f"the experiment {experiment.name} names it", "name another version")
        for experiment in dependents.experiments
    ]
    if problems:
        raise Refused(f"{version} is in use", problems)
    audit(version, "delete", acting_user, name=str(version), sha256=version.sha256)
    gone = (str(version.team.id), version.sha256, str(version.pk))
    version.delete()
    queue.send(version.remove_message, *gone)
