"""What can be done to an experiment."""

from django.db import transaction

from engine.spec.run import RunSpec
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.experiments.models import Experiment
from webapp.foreign_code import refuse_foreign


@transaction.atomic
def create_experiment(
    team: Team,
    spec: RunSpec,
    *,
    acting_user: User,
    description: str = "",
) -> Experiment:
    """Raises Invalid for what the service does not take (``foreign_code.py``)."""
    refuse_foreign(spec)
    experiment = Experiment.objects.create(
        team=team,
        name=spec.name,
        description=description,
        spec=spec.model_dump(mode="json"),
        created_by=acting_user,
    )
    record(team, acting_user, "experiment.create", f"experiment {experiment.id}", name=spec.name)
    return experiment


@transaction.atomic
def change_experiment(experiment: Experiment, spec: RunSpec, *, acting_user: User) -> Experiment:
    """Runs that were launched keep the spec that they were launched with.

    Raises Invalid for what the service does not take (``foreign_code.py``).
    """
    refuse_foreign(spec)
    experiment.name, experiment.spec = spec.name, spec.model_dump(mode="json")
    experiment.save(update_fields=["name", "spec", "updated_at"])
    record(experiment.team, acting_user, "experiment.change", f"experiment {experiment.id}", name=spec.name)
    return experiment
