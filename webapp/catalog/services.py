"""What can be done to environments and datasets: publish a version.  Versions never change."""

from django.db import transaction
from django.db.models import Max

from engine.spec.environment import Environment as EnvironmentSpec
from engine.spec.run import Dataset as DatasetSpec
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import Dataset, Environment


@transaction.atomic
def publish_environment(
    team: Team, name: str, document: EnvironmentSpec, *, acting_user: User, description: str = ""
) -> Environment:
    """The next version of the environment ``name``."""
    version = _next_version(team, Environment, name)
    environment = Environment.objects.create(
        team=team,
        name=name,
        version=version,
        spec=document.model_dump(mode="json"),
        description=description,
        created_by=acting_user,
    )
    record(team, acting_user, "environment.publish", f"environment {environment}")
    return environment


@transaction.atomic
def publish_dataset(
    team: Team, name: str, document: DatasetSpec, *, acting_user: User, description: str = ""
) -> Dataset:
    """The next version of the dataset ``name``."""
    version = _next_version(team, Dataset, name)
    dataset = Dataset.objects.create(
        team=team,
        name=name,
        version=version,
        spec=document.model_dump(mode="json"),
        description=description,
        created_by=acting_user,
    )
    record(team, acting_user, "dataset.publish", f"dataset {dataset}")
    return dataset


def _next_version(team: Team, model: type[Environment] | type[Dataset], name: str) -> int:
    Team.objects.select_for_update().get(id=team.id)  # two who publish at once get two numbers
    highest = model.objects.filter(team=team, name=name).aggregate(highest=Max("version"))["highest"]
    return (highest or 0) + 1
