"""What names a version of the catalog, and deleting a version that nothing needs."""

from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from engine.spec.mixture import MOST_PARTS
from engine.spec.problems import Problem
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import DatasetVersion, Environment, PackageVersion, TaskSetVersion
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


def dependents_of(version: DatasetVersion | TaskSetVersion | PackageVersion) -> Dependents:
    named = Experiment.objects.filter(_naming(version), team=version.team)
    return Dependents(
        live_runs=list(version.runs.exclude(state__in=ENDED).order_by("-number")),
        ended_runs=list(version.runs.filter(state__in=ENDED).order_by("-number")),
        experiments=list(named.order_by("name")) if version.number else [],
    )


def _naming(version: DatasetVersion | TaskSetVersion | PackageVersion) -> Q:
    """Experiments whose spec names it: in the environment, or in a part of it."""
    if isinstance(version, DatasetVersion):
        return Q(spec__dataset__catalog=str(version))
    places = ["spec__environment", *(f"spec__environment__parts__{n}__environment" for n in range(MOST_PARTS))]
    return reduce(or_, (version.named_in(place, str(version)) for place in places))


def _needing(dependents: Dependents, remedy: str) -> list[Problem]:
    """Why what they need is not deleted; ``remedy`` is what an experiment's owner can do."""
    return [
        Problem("run", str(run.id), f"run {run} uses it", "cancel it, or wait for its end")
        for run in dependents.live_runs
    ] + [
        Problem("experiment", str(experiment.id), f"the experiment {experiment.name} uses it", remedy)
        for experiment in dependents.experiments
    ]


@transaction.atomic
def delete_unneeded(version: DatasetVersion | TaskSetVersion | PackageVersion, *, acting_user: User) -> None:
    """Remove the version; its number is never given again.  Raises Refused while it is made, or something needs it."""
    Team.objects.select_for_update().get(id=version.team.id)
    version = locked(version)
    if version.is_unfinished:
        raise Refused("the version is still being made; cancel it first")
    if problems := _needing(dependents_of(version), "name another version there"):
        raise Refused(f"{version} is in use", problems)
    audit(version, "delete", acting_user, name=str(version), sha256=version.sha256)
    gone = (str(version.team.id), version.sha256, str(version.pk))
    version.delete()
    queue.send(version.remove_message, *gone)


def environment_dependents_of(version: Environment) -> Dependents:
    """What has just these settings: a run and an experiment keep a copy of them."""
    runs = Run.objects.filter(team=version.team, spec__environment=version.spec).defer("spec", "summary")
    named = Experiment.objects.filter(team=version.team, spec__environment=version.spec)
    return Dependents(
        live_runs=list(runs.exclude(state__in=ENDED).order_by("-number")),
        ended_runs=list(runs.filter(state__in=ENDED).order_by("-number")),
        experiments=list(named.order_by("name")),
    )


@transaction.atomic
def delete_environment(version: Environment, *, acting_user: User) -> None:
    """Take the version out of the catalog; its number is never given again.  Raises Refused where it is needed."""
    Team.objects.select_for_update().get(id=version.team_id)
    if problems := _needing(environment_dependents_of(version), "change its environment's settings"):
        raise Refused(f"{version} is in use", problems)
    deleted = Environment.objects.filter(id=version.id, deleted_at=None).update(deleted_at=timezone.now())
    if deleted:
        record(version.team, acting_user, "environment.delete", f"environment {version}")
