"""What a run's dataset means on this machine is found, and compared, before the run begins."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.launch.pinned_dataset import with_pinned_dataset
from engine.launch.preflight import BadSpec
from engine.spec.model_files import CatalogFolder
from engine.spec.run import RunSpec
from tests.engine.datasets.sources import json_lines, prepared

ROWS = [{"prompt": f"What is {n} times {n}?", "s": "heldout" if n < 5 else "train"} for n in range(30)]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    wanted = {"mapping": {"prompt": "prompt", "split": "s"}, "splitting": {"kind": "column"}}
    folder, report = prepared(tmp_path, {"q.jsonl": json_lines(ROWS)}, wanted | {"duplicates": {"similarity": None}})
    assert report.state == "ready"
    return folder


@pytest.fixture
def pinned(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogFolder:
    """The version in the catalog of team 7."""
    monkeypatch.setenv("PALESTRA_DATASETS", str(tmp_path / "datasets"))
    sha256 = hashlib.sha256((stored / "dataset.json").read_bytes()).hexdigest()
    shutil.copytree(stored, tmp_path / "datasets" / "catalog" / "7" / sha256)
    return CatalogFolder(version="sums@1", team="7", sha256=sha256)


def spec_with(**dataset: Any) -> RunSpec:
    """The spec of an environment that reads rows; none is built in, so it is made without validation."""
    spec = RunSpec(name="x")
    return spec.model_copy(update={"dataset": spec.dataset.model_copy(update=dataset)})


def test_a_pinned_version_becomes_its_folder_and_no_more_tasks_than_it_has_rows(
    pinned: CatalogFolder, tmp_path: Path
) -> None:
    spec = with_pinned_dataset(spec_with(catalog="sums@1"), named_in=tmp_path / "l", anywhere=False, catalog=pinned)
    assert spec.dataset.catalog is None
    assert spec.dataset.folder == str(tmp_path / "datasets" / "catalog" / "7" / pinned.sha256)
    assert (spec.dataset.train_tasks, spec.dataset.heldout_tasks) == (25, 5)


@pytest.mark.parametrize("wanted", [{}, {"tasks": 4, "interim_tasks": 3}])
def test_no_evaluation_asks_for_more_tasks_than_there_are_rows(
    pinned: CatalogFolder, tmp_path: Path, wanted: dict[str, int]
) -> None:
    spec = spec_with(catalog="sums@1")
    spec = spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update=wanted)})
    found = with_pinned_dataset(spec, named_in=tmp_path / "l", anywhere=False, catalog=pinned).evaluation
    assert (found.tasks, found.interim_tasks) == (wanted.get("tasks", 5), wanted.get("interim_tasks", 5))


def test_the_rows_of_one_part_bound_no_other_part(stored: Path) -> None:
    parts = [{"name": "sums", "environment": {"id": "python-math"}}, {"name": "rows", "environment": {"id": "qa"}}]
    mixture = {"id": "mixture", "parts": parts}
    dataset = {"folder": "sealed", "train_tasks": 100, "heldout_tasks": 60}
    evaluation = {"tasks": 50, "interim_tasks": 40}
    spec = RunSpec.model_validate({"name": "x", "environment": mixture, "dataset": dataset, "evaluation": evaluation})
    found = with_pinned_dataset(spec, named_in=stored.parent / "run.toml", anywhere=True)
    assert found.dataset == spec.dataset.model_copy(update={"folder": str(stored)})
    assert found.evaluation == spec.evaluation


def test_a_folder_is_found_beside_the_runs_file(stored: Path) -> None:
    spec = with_pinned_dataset(spec_with(folder="sealed"), named_in=stored.parent / "run.toml", anywhere=True)
    assert spec.dataset.folder == str(stored)


def test_a_spec_without_rows_stays_as_it_is(tmp_path: Path) -> None:
    spec = RunSpec(name="x")
    assert with_pinned_dataset(spec, named_in=tmp_path, anywhere=False) is spec


@pytest.mark.parametrize(
    ("dataset", "anywhere", "words"),
    [
        ({"catalog": "sums@1"}, True, "there is no catalog of datasets here"),
        ({"folder": "/etc"}, False, "no folder of a run's own choosing"),
        ({"folder": "nowhere"}, True, r"dataset\.json"),
    ],
)
def test_what_cannot_be_meant_here_is_refused_by_its_field(
    tmp_path: Path, dataset: dict[str, str], anywhere: bool, words: str
) -> None:
    with pytest.raises(BadSpec, match=words) as refused:
        with_pinned_dataset(spec_with(**dataset), named_in=tmp_path / "run.toml", anywhere=anywhere)
    assert f"dataset.{next(iter(dataset))} = " in str(refused.value)


def test_another_manifest_than_the_pinned_one_is_refused(pinned: CatalogFolder, tmp_path: Path) -> None:
    file = tmp_path / "datasets" / "catalog" / "7" / pinned.sha256 / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"columns": ["other"]}))
    with pytest.raises(BadSpec, match="is not the manifest of this version"):
        with_pinned_dataset(spec_with(catalog="sums@1"), named_in=tmp_path / "l", anywhere=False, catalog=pinned)


def test_environments_that_make_their_tasks_refuse_rows() -> None:
    for environment in ("python-math", "household", "sokoban", "webshop", "search-qa", "apps"):
        with pytest.raises(ValueError, match="reads no rows"):
            RunSpec.model_validate({"name": "x", "environment": {"id": environment}, "dataset": {"catalog": "sums@1"}})
