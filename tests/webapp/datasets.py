"""Versions of datasets as a worker leaves them: the engine has sealed the files, the row says ready."""

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.spec.dataset_files import DATASET_MANIFEST, DatasetManifest
from engine.spec.dataset_preparation import Preparation
from tests.engine.datasets.sources import json_lines, prepared
from webapp.accounts.models import Team, User
from webapp.catalog.models import DatasetVersion, StoredDataset

ROWS = [{"prompt": f"How much is {n} plus {n}?", "answer": str(2 * n)} for n in range(30)]
PREPARATION: dict[str, Any] = {"mapping": {"prompt": "prompt", "answer": "answer"}}
SOURCE = {
    "columns": [{"name": "prompt", "filled": 2, "kind": "text"}, {"name": "answer", "filled": 2, "kind": "text"}],
    "rows": [["<b>What?</b>", "42"]],
    "mapping": Preparation.model_validate(PREPARATION).mapping.model_dump(),
    "splits": [],
    "faults": [],
}


def ready_dataset(team: Team, name: str = "sums", rows: Sequence[Any] = ROWS) -> DatasetVersion:
    dataset, _ = StoredDataset.objects.get_or_create(team=team, name=name)
    dataset.last_number += 1
    dataset.save()
    with tempfile.TemporaryDirectory() as folder:
        sealed, report = prepared(Path(folder), {"rows.jsonl": json_lines(rows)}, PREPARATION)
        text = (sealed / DATASET_MANIFEST).read_bytes()
        manifest = DatasetManifest.model_validate_json(text)
        version = DatasetVersion(
            dataset=dataset, number=dataset.last_number, state="ready", sha256=hashlib.sha256(text).hexdigest(),
            origin={"kind": "folder", "path": "sums"}, rows=manifest.rows, report=report.model_dump(mode="json"),
            preparation=Preparation.model_validate(PREPARATION).model_dump(mode="json"),
            splits=[{"name": split.name, "rows": split.rows, "bytes": split.bytes} for split in manifest.splits],
            created_by=User.objects.filter(teams=team).first(),
        )  # fmt: skip
        shutil.copytree(sealed, version.folder, dirs_exist_ok=True)
    version.bytes = version.bytes_done = sum(version.file_sizes().values())
    version.save()
    return version


def waiting_dataset(team: Team, **fields: Any) -> DatasetVersion:
    """Its files are here, and nobody has said yet which column is what."""
    dataset, _ = StoredDataset.objects.get_or_create(team=team, name="raw")
    return DatasetVersion.objects.create(
        dataset=dataset, origin={"kind": "folder", "path": "raw"}, bytes=100,
        **{"state": "mapping", "source_report": SOURCE} | fields,
    )  # fmt: skip
