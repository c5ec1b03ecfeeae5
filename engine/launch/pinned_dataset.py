"""What ``dataset.catalog`` and ``dataset.folder`` mean on this machine, found before a run begins."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from engine.environments.dataset_reader import DamagedDataset, DatasetReader
from engine.launch.preflight import BadSpec
from engine.models.origin import home
from engine.spec.dataset_files import DATASET_MANIFEST
from engine.spec.mixture import Mixture
from engine.spec.model_files import CatalogFolder
from engine.spec.problems import Problem
from engine.spec.run import RunSpec


def datasets_folder() -> Path:
    """``PALESTRA_DATASETS``, by default ``datasets`` of the home."""
    return Path(os.environ.get("PALESTRA_DATASETS", home() / "datasets"))


def with_pinned_dataset(
    spec: RunSpec, *, named_in: Path, anywhere: bool, catalog: CatalogFolder | None = None
) -> RunSpec:
    """The spec with ``dataset.folder`` as an absolute path, whose files are there and as long as when they were stored,
    and with no more tasks than they have rows.

    ``anywhere``: on the command line, where a folder may be named, beside the file ``named_in`` or absolute.
    ``catalog`` is what a launch document says of ``dataset.catalog``.  Raises BadSpec.
    """
    if spec.dataset.catalog is None and spec.dataset.folder is None:
        return spec
    try:
        folder = _folder_of(spec, named_in, catalog, anywhere=anywhere)
        with DatasetReader(folder) as reader:
            _compare(folder, catalog)
            rows = {split: reader.len(split) for split in reader.splits}
    except DamagedDataset as damaged:
        field = "catalog" if spec.dataset.catalog else "folder"
        value = getattr(spec.dataset, field)
        message = str(damaged).removesuffix(f"; {damaged.remedy}")
        problem = Problem(f"dataset.{field}", value, message, damaged.remedy)
        raise BadSpec([f"{named_in}: {problem}"]) from damaged
    dataset = spec.dataset.model_copy(update={"folder": str(folder), "catalog": None})
    found = spec.model_copy(update={"dataset": dataset})
    # The tasks of a mixture are drawn from its parts, of which one that has fewer begins again.
    return found if isinstance(spec.environment, Mixture) else _with_rows_counted(found, rows)


def _with_rows_counted(spec: RunSpec, rows: Mapping[str, int]) -> RunSpec:
    """The spec with no more tasks than there are rows, and with no evaluation of more."""
    counts = {
        f"{split}_tasks": min(getattr(spec.dataset, f"{split}_tasks"), rows[split])
        for split in ("train", "heldout")
        if split in rows
    }
    dataset = spec.dataset.model_copy(update=counts)
    evaluated = {
        field: min(getattr(spec.evaluation, field), dataset.heldout_tasks) for field in ("tasks", "interim_tasks")
    }
    return spec.model_copy(update={"dataset": dataset, "evaluation": spec.evaluation.model_copy(update=evaluated)})


def _folder_of(spec: RunSpec, named_in: Path, catalog: CatalogFolder | None, *, anywhere: bool) -> Path:
    if spec.dataset.catalog is not None:
        if catalog is None:
            message = "there is no catalog of datasets here: the service has it"
            remedy = "launch the run there, or set dataset.folder to the version's folder"
            raise BadSpec([f"{named_in}: {Problem('dataset.catalog', spec.dataset.catalog, message, remedy)}"])
        return datasets_folder().resolve() / "catalog" / catalog.team / catalog.sha256
    assert spec.dataset.folder is not None  # the caller has looked
    if not anywhere:
        remedy = 'upload the files there, and set dataset.catalog = "name@version"'
        message = "the service reads no folder of a run's own choosing"
        raise BadSpec([f"{named_in}: {Problem('dataset.folder', spec.dataset.folder, message, remedy)}"])
    return (named_in.parent / spec.dataset.folder).resolve()


def _compare(folder: Path, catalog: CatalogFolder | None) -> None:
    """Raises DamagedDataset where the manifest is not the one that was pinned."""
    file = folder / DATASET_MANIFEST
    if catalog is not None and hashlib.sha256(file.read_bytes()).hexdigest() != catalog.sha256:
        raise DamagedDataset(file, "is not the manifest of this version")
