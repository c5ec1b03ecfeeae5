"""Packages over REST: who may do what with whose, what is refused and how, and what a spec may name."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from engine.spec.package_check import PackageReport
from engine.spec.run import RunSpec
from tests.engine.environments.process.packages import write_package
from tests.webapp.packages import GOOD, published_package, stored_package
from tests.webapp.test_models_api import fetch
from webapp.accounts.models import AuditEntry, Team, User
from webapp.audit.sentences import plain
from webapp.catalog.models import PackageVersion, Upload
from webapp.experiments.models import Experiment
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]
SPEC: dict[str, Any] = {
    "name": "x", "environment": {"id": "package", "catalog": "game@1"}, "recipe": {"stages": []},
    "dataset": {"train_tasks": 1, "heldout_tasks": 1}, "evaluation": {"tasks": 1, "interim_tasks": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    write_package(tmp_path / "imports" / "own")


def put(api: Any, upload: str, content: bytes) -> Any:
    digest = hashlib.sha256(content).hexdigest()
    address = f"/api/v1/package-uploads/{upload}/files/0/parts/0?sha256={digest}"
    return api.client.put(address, content, content_type="application/octet-stream")


def fields_of(answer: Any) -> list[str]:
    return [problem["field"] for problem in answer.json()["problems"]]


def test_strangers_find_nothing_and_viewers_change_nothing(
    team: Team, victor: User, charlie: User, api_of: Api
) -> None:
    version = published_package(team)
    upload = Upload.objects.create(team=team, kind="package", name="up", files=[{"name": "a.tar", "bytes": 2}])
    at = f"/package-versions/{version.id}"
    reads = [at, f"{at}/download", f"/packages/{version.package_id}/versions",
             f"{at}/differences?before={version.id}", f"/package-uploads/{upload.id}"]  # fmt: skip
    posts = {f"{at}/check": {}, f"{at}/publish": None, f"{at}/cancel": None,
             f"/package-uploads/{upload.id}/complete": {}}  # fmt: skip
    for user, read, change in ((charlie, 404, 404), (victor, 200, 403)):
        api = api_of(user, scopes=("read", "launch"))
        assert {path: api.get(path).status_code for path in reads} == dict.fromkeys(reads, read)
        assert {path: api.post(path, body).status_code for path, body in posts.items()} == dict.fromkeys(posts, change)
        assert put(api, str(upload.id), b"{}").status_code == change
        for path in (at, f"/package-uploads/{upload.id}"):
            assert api.client.delete(f"/api/v1{path}").status_code == change
    for path in ("/packages", "/package-uploads"):
        assert api_of(charlie).get(path).json()["items"] == []
    assert Client().get(f"/api/v1{at}").status_code == 401
    assert PackageVersion.objects.get().state == "ready"


def test_an_upload_of_a_package_is_none_of_tasks(team: Team, alice: User, api_of: Api) -> None:
    upload = Upload.objects.create(team=team, kind="package", name="up", files=[{"name": "a.tar", "bytes": 2}])
    for address in ("task-uploads", "dataset-uploads", "uploads"):
        assert api_of(alice).get(f"/{address}/{upload.id}").status_code == 404


def test_an_upload_becomes_one_version_however_often_it_is_completed(team: Team, alice: User, api_of: Api) -> None:
    api = api_of(alice)
    upload = api.post("/package-uploads", {"name": "game", "files": [{"name": "game.tar", "bytes": 3}]}).json()["id"]
    assert api.post(f"/package-uploads/{upload}/complete", {}).status_code == 409
    assert put(api, upload, b"tar").status_code == 200
    check = {"options": '{"every": 3}', "process": {"memory_mib": 256}}
    first = api.post(f"/package-uploads/{upload}/complete", {"check": check}).json()
    again = api.post(f"/package-uploads/{upload}/complete", {}).json()
    assert (first["id"], first["state"], first["check"]["process"]["memory_mib"]) == (again["id"], "importing", 256)
    assert PackageVersion.objects.count() == 1


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ([{"name": "a.zip", "bytes": 1}], "files.0.name"),
        ([{"name": "../a.whl", "bytes": 1}], "files.0.name"),
        ([{"name": "a.whl", "bytes": 1}, {"name": "b.whl", "bytes": 1}], "files"),
    ],
)
def test_what_is_no_package_is_refused_by_its_name(
    team: Team, alice: User, api_of: Api, files: Any, field: str
) -> None:
    answer = api_of(alice).post("/package-uploads", {"name": "game", "files": files})
    assert (answer.status_code, field in fields_of(answer)) == (422, True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": ".x", "folder": "own"}, "name"),
        ({"name": "x", "folder": "../own"}, "folder"),
        ({"name": "x", "folder": "own", "check": {"options": "[1]"}}, "check.options"),
        ({"name": "x", "folder": "own", "check": {"entry": "os.system"}}, "check.entry"),
        ({"name": "x", "folder": "own", "check": {"process": {"memory_mib": 1}}}, "check.process.memory_mib"),
        ({"name": "x", "folder": "own", "check": {"python": "/bin/sh"}}, "check.python"),
    ],
)
def test_a_bad_import_names_its_field(team: Team, alice: User, api_of: Api, body: Any, field: str) -> None:
    answer = api_of(alice).post("/package-imports", body)
    assert (answer.status_code, fields_of(answer)) == (422, [field])
    assert not PackageVersion.objects.exists()


def test_an_import_acts_once_for_one_key_and_stands_in_the_log(team: Team, alice: User, api_of: Api) -> None:
    api, key = api_of(alice), str(uuid4())
    assert api.get("/package-imports").json() == {"folders": ["own"]}
    answers = [api.post("/package-imports", {"name": "x", "folder": "own"}, **{"Idempotency-Key": key}) for _ in "ab"]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert PackageVersion.objects.count() == 1
    assert "imported the package x" in plain(AuditEntry.objects.latest("id"))


def test_a_version_is_published_when_nothing_is_wrong_and_never_again(team: Team, alice: User, api_of: Api) -> None:
    api = api_of(alice)
    faulty = stored_package(team, report=PackageReport(faults=["train: there is no task"]))
    refused = api.post(f"/package-versions/{faulty.id}/publish", None)
    assert (refused.status_code, "there is no task" in refused.text) == (409, True)
    good = stored_package(team, report=GOOD, version="2.0")
    assert [api.post(f"/package-versions/{good.id}/publish", None).json()["name"] for _ in "ab"] == ["game@1"] * 2
    detail = api.get(f"/package-versions/{good.id}").json()
    assert detail["report"]["tasks"] == {"train": 40, "heldout": 40}
    assert (detail["calls_itself"], detail["faults"], detail["live_runs"]) == ("guessing 2.0", 0, [])
    listed = api.get("/packages").json()["items"]
    assert [(found["name"], found["versions"], found["newest"]) for found in listed] == [("game", 1, 1)]
    assert [found["id"] for found in api.get(f"/packages/{good.package_id}/versions").json()["items"]] == [
        good.id, faulty.id,
    ]  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_two_versions_are_compared_and_one_is_downloaded(team: Team, alice: User, api_of: Api) -> None:
    api = api_of(alice)
    before, after = published_package(team), published_package(team, version="2.0", code="x = 1\n")
    found = api.get(f"/package-versions/{after.id}/differences?before={before.id}").json()
    assert (found["changed"], found["added"]) == (["pyproject.toml", "src/guessing.py"], [])
    with tarfile.open(fileobj=io.BytesIO(fetch(alice, f"/api/v1/package-versions/{after.id}/download")[1])) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"package.json", "package/pyproject.toml", "package/src/guessing.py"} <= names


def test_a_run_and_an_experiment_keep_a_version_from_being_deleted(team: Team, alice: User, api_of: Api) -> None:
    api, version = api_of(alice), published_package(team)
    assert api.post("/runs", SPEC).status_code == 201
    part = {"name": "a", "environment": SPEC["environment"]}
    mixture = {"id": "mixture", "parts": [{"name": "b", "environment": {"id": "sokoban"}}, part]}
    spec = RunSpec.model_validate(SPEC | {"environment": mixture}).model_dump(mode="json")
    Experiment.objects.create(team=team, name="both", spec=spec)
    refused = api.client.delete(f"/api/v1/package-versions/{version.id}")
    assert refused.status_code == 409
    assert fields_of(refused) == ["run", "experiment"]
    Run.objects.update(state="cancelled")
    Experiment.objects.all().delete()
    assert api.client.delete(f"/api/v1/package-versions/{version.id}").status_code == 204


def test_a_set_of_tasks_of_the_same_name_is_not_meant(team: Team, alice: User, api_of: Api) -> None:
    version = published_package(team, "shell")
    spec = {"name": "x", "environment": {"id": "terminal", "catalog": "shell@1"}}
    Experiment.objects.create(team=team, name="other", spec=spec)
    assert api_of(alice).get(f"/package-versions/{version.id}").json()["experiments"] == []


def test_an_environment_of_a_package_is_published_and_tried(team: Team, alice: User, api_of: Api) -> None:
    published_package(team)
    api = api_of(alice)
    made = api.post("/environments", {"name": "game", "environment": SPEC["environment"]})
    assert made.status_code == 201, made.text
    tried = api.post(f"/environments/{made.json()['id']}/tries", {"players": ["nop"], "tasks": 3})
    assert tried.status_code == 201, tried.text
    assert [str(version) for version in Run.objects.get().package_versions.all()] == ["game@1"]
    assert api.post("/environments", {"name": "own", "environment": {"id": "package", "path": "/x"}}).status_code == 422


def test_the_command_imports_and_says_what_is_wrong(team: Team, alice: User) -> None:
    out = StringIO()
    who = {"team": team.slug, "by": alice.email, "stdout": out}
    call_command("import_package", "game", "own", **who)
    version = PackageVersion.objects.get()
    assert (out.getvalue(), version.state) == (f"package-version {version.id}: importing\n", "importing")
    with pytest.raises(CommandError, match="options"):
        call_command("import_package", "game", "own", options="[", **who)
    with pytest.raises(CommandError, match="folder"):
        call_command("import_package", "game", "elsewhere", **who)
