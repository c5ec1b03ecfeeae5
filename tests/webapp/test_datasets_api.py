"""Datasets over REST: who may do what with whose, what is refused and how, and what a row looks like from outside."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from engine.spec.run import RunSpec
from tests.webapp.datasets import PREPARATION, ROWS, ready_dataset, waiting_dataset
from tests.webapp.models import ready_version
from tests.webapp.test_models_api import fetch
from webapp.accounts.models import AuditEntry, Team, User
from webapp.catalog import uploads
from webapp.catalog.models import DatasetVersion, Measurement, Upload
from webapp.datasets import rows as rows_module
from webapp.experiments.models import Experiment
from webapp.refusals import Invalid
from webapp.runs.models import Run, RunStatus
from webapp.runs.services import submit_run

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    (tmp_path / "imports" / "sums").mkdir(parents=True)
    (tmp_path / "imports" / "sums" / "train.jsonl").write_text('{"prompt": "x"}\n')
    monkeypatch.setattr(uploads, "PART_BYTES", 1000)


def fields_of(answer: Any) -> list[str]:
    return [problem["field"] for problem in answer.json()["problems"]]


def put(api: Any, upload: str, content: bytes, number: int = 0) -> Any:
    digest = hashlib.sha256(content).hexdigest()
    address = f"/api/v1/dataset-uploads/{upload}/files/0/parts/{number}?sha256={digest}"
    return api.client.put(address, content, content_type="application/octet-stream")


# Who
def test_strangers_find_nothing_and_viewers_change_nothing(
    team: Team, victor: User, charlie: User, api_of: Api
) -> None:
    version, waiting = ready_dataset(team), waiting_dataset(team)
    upload = Upload.objects.create(team=team, kind="dataset", name="up", files=[{"name": "a.csv", "bytes": 2}])
    measurement = Measurement.objects.create(version=version, kind="difference", before=waiting)
    at = f"/dataset-versions/{version.id}"
    reads = [f"/datasets/{version.dataset_id}/versions", at, f"{at}/rows?split=train", f"{at}/download",
             f"/dataset-uploads/{upload.id}", f"/dataset-measurements/{measurement.id}"]  # fmt: skip
    posts = {f"{at}/cancel": None, f"/dataset-uploads/{upload.id}/complete": {}, f"{at}/prepare": PREPARATION,
             f"{at}/lengths": {"model_version": 1}, f"{at}/differences": {"before": 1}}  # fmt: skip
    for user, read, change in ((charlie, 404, 404), (victor, 200, 403)):
        api = api_of(user, scopes=("read", "launch"))
        assert {path: api.get(path).status_code for path in reads} == dict.fromkeys(reads, read)
        assert {path: api.post(path, body).status_code for path, body in posts.items()} == dict.fromkeys(posts, change)
        assert put(api, str(upload.id), b"{}").status_code == change
        for path in (at, f"/dataset-uploads/{upload.id}"):
            assert api.client.delete(f"/api/v1{path}").status_code == change
    for path in ("/datasets", "/dataset-versions", "/dataset-uploads"):
        assert api_of(charlie).get(path).json()["items"] == []
    assert Client().get(f"/api/v1{at}").status_code == 401
    assert DatasetVersion.objects.count() == 2


def test_an_upload_of_a_dataset_is_none_of_a_model(team: Team, alice: User, api_of: Api) -> None:
    upload = Upload.objects.create(team=team, kind="dataset", name="up", files=[{"name": "a.csv", "bytes": 2}])
    assert api_of(alice).get(f"/model-uploads/{upload.id}").status_code == 404
    assert api_of(alice).post(f"/model-uploads/{upload.id}/complete").status_code == 404
    assert api_of(alice).get("/model-uploads").json()["items"] == []


# Bringing one
def test_an_upload_in_parts_becomes_one_version_however_often_it_is_completed(
    team: Team, alice: User, api_of: Api, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr("webapp.queue._send_now", lambda *message: sent.append(message))
    api, content = api_of(alice), b'{"prompt": "' + b"x" * 1500 + b'"}\n'
    begun = api.post("/dataset-uploads", {"name": "sums", "files": [{"name": "q.jsonl", "bytes": len(content)}]})
    upload = begun.json()["id"]
    assert begun.json()["part_bytes"] == 1000
    assert put(api, upload, content[1000:], 1).status_code == 200
    early = api.post(f"/dataset-uploads/{upload}/complete", {})
    assert (early.status_code, early.json()["problems"][0]["remedy"]) == (409, "send the parts 0")
    assert put(api, upload, content[:1000], 0).status_code == 200
    with django_capture_on_commit_callbacks(execute=True):
        done = [api.post(f"/dataset-uploads/{upload}/complete", {"preparation": PREPARATION}).json() for _ in range(2)]
    assert done[0] == done[1]
    assert (done[0]["state"], done[0]["preparation"]["mapping"]["prompt"]) == ("importing", "prompt")
    assert sent == [("datasets.store", (str(done[0]["id"]), "importing-0"))]
    assert put(api, upload, content[:1000], 0).status_code == 409
    assert list(
        AuditEntry.objects.filter(verb__in=["upload.begin", "dataset.upload"])
        .values_list("verb", flat=True)
        .order_by("id")
    ) == ["upload.begin", "dataset.upload"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("q.jsonl.gz", "unpack"),
        ("q.zip", "unpack"),
        ("q.tar", "unpack"),
        ("q.json", "one line"),
        ("q.py", "one of"),
        ("../q.jsonl", "no folder"),
        ("", ""),
    ],
)
def test_a_file_that_is_none_of_a_dataset_is_refused_by_its_name(
    team: Team, alice: User, api_of: Api, name: str, words: str
) -> None:
    answer = api_of(alice).post("/dataset-uploads", {"name": "x", "files": [{"name": name, "bytes": 5}]})
    assert (answer.status_code, fields_of(answer)) == (422, ["files.0.name"])
    assert words in answer.json()["problems"][0]["remedy"]


def test_an_import_acts_once_for_one_key(team: Team, alice: User, api_of: Api) -> None:
    api, key = api_of(alice), str(uuid4())
    assert api.get("/dataset-imports").json() == {"folders": ["sums"]}
    body = {"name": "sums", "folder": "sums"}
    answers = [api.post("/dataset-imports", body, **{"Idempotency-Key": key}).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0]["origin"] == {"kind": "folder", "path": "sums"}
    assert DatasetVersion.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "folder": "../x"}, "folder"),
        ({"name": "x@1", "folder": "sums"}, "name"),
        ({"name": "x", "folder": "sums", "force": True}, "force"),
        ({"name": "x", "folder": "sums", "preparation": {"mapping": {}}}, "preparation.mapping.prompt"),
        ({"name": "x", "folder": "sums", "preparation": {"mapping": {"prompt": "a", "colour": "b"}}},
         "preparation.mapping.colour"),
        ({"name": "x", "folder": "sums", "preparation": PREPARATION | {"splitting": {"kind": "column"}}},
         "preparation.mapping.split"),
        ({"name": "x", "folder": "sums", "preparation": PREPARATION | {"splitting": {"kind": "share", "splits": [
            {"name": "a", "share": 0.5}, {"name": "b", "share": 0.6}]}}}, "preparation.splitting.splits"),
    ],
)  # fmt: skip
def test_a_bad_import_names_its_field(team: Team, alice: User, api_of: Api, body: Any, field: str) -> None:
    answer = api_of(alice).post("/dataset-imports", body)
    assert (answer.status_code, fields_of(answer)) == (422, [field])
    assert all(problem["remedy"] for problem in answer.json()["problems"])
    assert not DatasetVersion.objects.exists()


def test_a_mapping_is_taken_only_where_files_wait_for_one(team: Team, alice: User, api_of: Api) -> None:
    api, waiting = api_of(alice), waiting_dataset(team)
    detail = api.get(f"/dataset-versions/{waiting.id}").json()
    assert detail["source"]["mapping"]["prompt"] == "prompt"
    answers = [api.post(f"/dataset-versions/{waiting.id}/prepare", PREPARATION) for _ in range(2)]
    assert [answer.json()["state"] for answer in answers] == ["preparing"] * 2
    assert AuditEntry.objects.filter(verb="dataset.prepare").count() == 1
    ready = api.post(f"/dataset-versions/{ready_dataset(team).id}/prepare", PREPARATION)
    assert ready.status_code == 409


# Looking
def test_rows_come_in_pages_and_a_search_is_bounded(
    team: Team, alice: User, api_of: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, version = api_of(alice), ready_dataset(team)
    at = f"/dataset-versions/{version.id}/rows"
    first = api.get(at, split="train", limit=20).json()
    assert ([item["number"] for item in first["items"]], first["next"]) == (list(range(20)), 20)
    assert first["items"][3]["row"]["prompt"] == ROWS[3]["prompt"]
    rest = api.get(at, split="train", first=20).json()
    assert (len(rest["items"]), rest["next"]) == (10, None)
    found = api.get(at, split="train", search="IS 29 PLUS").json()
    assert ([item["number"] for item in found["items"]], found["next"], found["looked_at"]) == ([29], None, 30)
    monkeypatch.setattr(rows_module, "MOST_SEARCHED_ROWS", 7)
    part = api.get(at, split="train", search="is 29 plus").json()
    assert (part["items"], part["next"], part["looked_at"]) == ([], 7, 7)
    assert fields_of(api.get(at, split="test")) == ["split"]
    assert api.get(at, split="train", first=-1).status_code == 422
    waiting = api.get(f"/dataset-versions/{waiting_dataset(team).id}/rows", split="train")
    assert waiting.status_code == 409


def test_damaged_rows_are_refused_with_file_and_line(team: Team, alice: User, api_of: Api) -> None:
    version = ready_dataset(team)
    with (version.folder / "train.offsets").open("r+b") as file:
        file.seek(40)
        file.write(b"\x01")
    answer = api_of(alice).get(f"/dataset-versions/{version.id}/rows", split="train")
    assert answer.status_code == 409
    assert "train.jsonl, line" in answer.json()["detail"]


@pytest.mark.django_db(transaction=True)
def test_a_download_is_a_tar_and_goes_on_at_any_byte(team: Team, alice: User) -> None:
    version = ready_dataset(team)
    path = f"/api/v1/dataset-versions/{version.id}/download"
    status, whole, _ = fetch(alice, path)
    assert status == 200
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        assert {Path(name).name for name in archive.getnames()} == {
            "dataset.json", "rows.index", "train.jsonl", "train.offsets",
        }  # fmt: skip
        lines = archive.extractfile("sums-1/train.jsonl")
        assert lines is not None
        assert lines.read() == (version.folder / "train.jsonl").read_bytes()
    assert fetch(alice, path, Range="bytes=700-")[:2] == (206, whole[700:])


# Runs, deleting
def named(version: str) -> RunSpec:
    """A spec of an environment that reads rows; none is built in."""
    spec = RunSpec(name="x")
    return spec.model_copy(update={"dataset": spec.dataset.model_copy(update={"catalog": version})})


def test_a_run_names_a_ready_version_of_its_team_and_pins_its_hash(team: Team, alice: User, charlie: User) -> None:
    version = ready_dataset(team)
    run = submit_run(team, named("sums@1"), acting_user=alice)
    assert run.dataset_version == version
    assert run.dataset_version.pinned.sha256 == version.sha256
    for wrong in ("sums@2", "other@1", "sums"):
        with pytest.raises(Invalid) as refused:
            submit_run(team, named(wrong), acting_user=alice)
        assert (refused.value.problems[0].field, "sums@1" in refused.value.problems[0].remedy) == (
            "dataset.catalog",
            True,
        )
    with pytest.raises(Invalid):
        submit_run(charlie.memberships.get().team, named("sums@1"), acting_user=charlie)


def test_an_environment_that_makes_its_tasks_refuses_a_dataset(team: Team, alice: User, api_of: Api) -> None:
    for field in ("catalog", "folder"):
        answer = api_of(alice).post("/runs", {"name": "x", "dataset": {field: "sums@1"}})
        assert (answer.status_code, fields_of(answer)) == (422, [f"dataset.{field}"])


def test_deleting_is_refused_with_the_names_of_what_needs_it(team: Team, alice: User, api_of: Api) -> None:
    version, api = ready_dataset(team), api_of(alice)
    run = submit_run(team, named("sums@1"), acting_user=alice)
    experiment = Experiment.objects.create(team=team, name="sums", spec=named("sums@1").model_dump(mode="json"))
    refused = api.client.delete(f"/api/v1/dataset-versions/{version.id}")
    assert refused.status_code == 409
    assert {problem["value"] for problem in refused.json()["problems"]} == {str(run.id), str(experiment.id)}
    detail = api.get(f"/dataset-versions/{version.id}").json()
    assert ([row["id"] for row in detail["live_runs"]], detail["experiments"][0]["name"]) == ([str(run.id)], "sums")
    experiment.delete()
    Run.objects.update(state=RunStatus.SUCCEEDED)
    assert api.client.delete(f"/api/v1/dataset-versions/{version.id}").status_code == 204
    run.refresh_from_db()
    assert run.dataset_version is None


def test_a_measurement_is_begun_once_and_of_ready_versions_alone(
    team: Team, alice: User, charlie: User, api_of: Api
) -> None:
    api, before, after = api_of(alice), ready_dataset(team), ready_dataset(team, rows=ROWS[:5])
    model, foreign = ready_version(team), ready_dataset(charlie.memberships.get().team)
    at = f"/dataset-versions/{after.id}"
    counted = [api.post(f"{at}/lengths", {"model_version": model.id}) for _ in range(2)]
    assert [answer.status_code for answer in counted] == [202, 202]
    assert counted[0].json()["id"] == counted[1].json()["id"]
    assert api.post(f"{at}/differences", {"before": before.id}).status_code == 202
    assert fields_of(api.post(f"{at}/differences", {"before": after.id})) == ["before"]
    assert api.post(f"{at}/differences", {"before": foreign.id}).status_code == 404
    waiting = waiting_dataset(team)
    assert api.post(f"/dataset-versions/{waiting.id}/lengths", {"model_version": model.id}).status_code == 409


def test_a_name_has_a_content_once(team: Team) -> None:
    ready_dataset(team)
    with pytest.raises(IntegrityError), transaction.atomic():
        ready_dataset(team)


def test_lists_say_what_is_ready(team: Team, alice: User, api_of: Api) -> None:
    ready_dataset(team)
    ready_dataset(team, rows=ROWS[:3])
    waiting_dataset(team)
    api = api_of(alice)
    found = [(row["name"], row["versions"], row["newest"]) for row in api.get("/datasets").json()["items"]]
    assert found == [("raw", 0, None), ("sums", 2, 2)]
    assert [row["name"] for row in api.get("/dataset-versions", state="ready").json()["items"]] == ["sums@2", "sums@1"]
