"""The sample that a new installation begins with: a user, a team, an environment, a dataset, an experiment."""

import tomllib
from dataclasses import dataclass
from importlib import resources

from django.db import transaction

from engine.spec.mixture import alone
from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team, one_time_password
from webapp.catalog.services import publish_dataset, publish_environment
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment

OWNER = "owner@palestra.local"
TEAM = "Demo"
SAMPLE = "python_math.toml"


@dataclass(frozen=True)
class Sample:
    owner: User
    team: Team
    experiment: Experiment
    password: str | None
    """It is the owner's, if it was just made."""


def sample_spec() -> RunSpec:
    text = resources.files("engine.spec").joinpath("samples", SAMPLE).read_text()
    return RunSpec.model_validate(tomllib.loads(text))


@transaction.atomic
def ensure_sample() -> Sample:
    """Make what is missing; what is there stays as it is, however often this is called."""
    password = None
    owner = User.objects.filter(email=OWNER).first()
    if owner is None:
        password = one_time_password()
        owner = User.objects.create_user(OWNER, password, name="Owner")
    membership = owner.memberships.select_related("team").order_by("id").first()
    team = membership.team if membership else create_team(TEAM, acting_user=owner)
    experiment = team.experiments.order_by("created_at").first() or _make_experiment(team, owner)
    return Sample(owner, team, experiment, password)


def _make_experiment(team: Team, owner: User) -> Experiment:
    spec = sample_spec()
    publish_environment(
        team,
        spec.environment.id,
        alone(spec.environment),
        acting_user=owner,
        description="Arithmetic with a Python tool in a sandbox.",
    )
    publish_dataset(
        team,
        f"{spec.environment.id} tasks",
        spec.dataset,
        acting_user=owner,
        description="Procedural tasks, drawn from their number.",
    )
    return create_experiment(
        team,
        spec,
        acting_user=owner,
        description="A tiny policy that first guesses learns to use its tool.",
    )
