"""What can be done to versions of a dataset: begin one, say what its columns are, measure it.

The files are a worker's business (``workers/dataset_store.py``); this module writes rows and sends messages.
"""

from django.db import transaction
from django.utils import timezone

from engine.spec.dataset_preparation import Preparation
from webapp import queue
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import (
    DatasetState,
    DatasetVersion,
    Measurement,
    MeasurementKind,
    ModelVersion,
    StoredDataset,
)
from webapp.catalog.origin import FolderOrigin, UploadOrigin
from webapp.catalog.stored_versions import locked
from webapp.catalog.versions import refuse_beyond_room, refuse_name
from webapp.refusals import Invalid, Refused

MOST_UNFINISHED = 20
"""Datasets that a team stores or prepares at the same time."""
MOST_MEASURED = 5
"""Measurements of a team at the same time."""


@transaction.atomic
def begin_dataset(
    team: Team,
    name: str,
    origin: FolderOrigin | UploadOrigin,
    *,
    acting_user: User,
    size_bytes: int,
    released_bytes: int = 0,
    preparation: Preparation | None = None,
) -> DatasetVersion:
    """Queue the storing of a version's files.  Without a preparation it then waits for one.

    ``released_bytes`` are counted for the upload that it is made of, and no more from now on.  Raises Invalid and
    Refused.
    """
    refuse_dataset_name(name)
    Team.objects.select_for_update().get(id=team.id)  # two who begin at once share the room that is left
    refuse_beyond_room(team, size_bytes - released_bytes)
    _refuse_too_many(team)
    dataset, _ = StoredDataset.objects.get_or_create(team=team, name=name, defaults={"created_by": acting_user})
    version = DatasetVersion.objects.create(
        dataset=dataset,
        origin=origin.model_dump(),
        preparation=None if preparation is None else preparation.model_dump(mode="json"),
        bytes=size_bytes,
        created_by=acting_user,
    )
    verb = "dataset.import" if origin.kind == "folder" else "dataset.upload"
    record(team, acting_user, verb, f"dataset-version {version.id}", name=name)
    queue.send(queue.STORE_DATASET, str(version.id), version.progress_mark)
    return version


def refuse_dataset_name(name: str) -> None:
    """Raises Invalid."""
    refuse_name(name, "dataset", "support-questions")


def _refuse_too_many(team: Team) -> None:
    unfinished = DatasetVersion.objects.filter(dataset__team=team, state__in=DatasetVersion.unfinished)
    if unfinished.count() >= MOST_UNFINISHED:
        raise Refused(f"your team prepares {MOST_UNFINISHED} datasets already; wait for one, or cancel one")


@transaction.atomic
def prepare_dataset(version: DatasetVersion, preparation: Preparation, *, acting_user: User) -> DatasetVersion:
    """Queue the reading of the files with this mapping.  Raises Refused where they do not wait for one."""
    Team.objects.select_for_update().get(id=version.dataset.team_id)
    version = locked(version)
    document = preparation.model_dump(mode="json")
    if version.state == DatasetState.PREPARING and version.preparation == document:
        return version
    if not version.may_be_prepared:
        raise Refused(f"the version is {version.state}, and only one whose files wait for a mapping is prepared")
    _refuse_too_many(version.dataset.team)
    version.preparation, version.state, version.state_since = document, DatasetState.PREPARING, timezone.now()
    version.problem, version.report, version.bytes_done, version.rows = None, None, 0, 0
    version.cancel_asked, version.heartbeat_at = False, version.state_since
    version.save()
    name, team = version.dataset.name, version.dataset.team
    record(team, acting_user, "dataset.prepare", f"dataset-version {version.id}", name=name)
    queue.send(queue.STORE_DATASET, str(version.id), version.progress_mark)
    return version


# Measurements
def measure_lengths(version: DatasetVersion, model: ModelVersion, *, acting_user: User) -> Measurement:
    """Queue the counting of tokens under the model's tokenizer; what was counted before is not counted again.

    Raises Refused for versions that are not ready, and Invalid for a model of another team."""
    if model.model.team_id != version.dataset.team_id or not model.is_ready:
        remedy = "name a ready version of a model of the dataset's team"
        raise Invalid.field("model", model.id, "this is no version that can count for the dataset", remedy)
    return _begin_measurement(version, acting_user, kind=MeasurementKind.LENGTHS, model=model, before=None)


def compare_datasets(version: DatasetVersion, before: DatasetVersion, *, acting_user: User) -> Measurement:
    """Queue the comparison with another version of the same team.  Raises Refused and Invalid."""
    if before.dataset.team_id != version.dataset.team_id or not before.is_ready or before.id == version.id:
        remedy = "name another ready version of a dataset of the same team"
        raise Invalid.field("before", before.id, "this is no version to compare with", remedy)
    return _begin_measurement(version, acting_user, kind=MeasurementKind.DIFFERENCE, model=None, before=before)


@transaction.atomic
def _begin_measurement(
    version: DatasetVersion,
    acting_user: User,
    *,
    kind: MeasurementKind,
    model: ModelVersion | None,
    before: DatasetVersion | None,
) -> Measurement:
    Team.objects.select_for_update().get(id=version.dataset.team_id)
    version = locked(version)
    if not version.is_ready:
        raise Refused(f"the version is {version.state}; only a ready one is measured")
    known = version.measurements.filter(kind=kind, model=model, before=before).first()
    if known is not None and known.problem is None:
        return known
    of_team = Measurement.objects.filter(version__dataset__team=version.dataset.team)
    if of_team.filter(report__isnull=True, problem__isnull=True).count() >= MOST_MEASURED:
        raise Refused(f"your team has {MOST_MEASURED} measurements on their way; wait for one")
    if known is not None:
        known.delete()
    begun = Measurement.objects.create(version=version, kind=kind, model=model, before=before, created_by=acting_user)
    name, team = str(version), version.dataset.team
    record(team, acting_user, "dataset.measure", f"dataset-version {version.id}", name=name, kind=kind.value)
    queue.send(queue.MEASURE_DATASET, str(begun.id))
    return begun
