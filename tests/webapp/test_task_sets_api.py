"""Task sets over REST: who may do what with whose, what is refused and how, and what a run may name."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from engine.spec.run import RunSpec
from tests.engine.environments.terminal.tasks import write_task
from tests.webapp.task_sets import OK, published_tasks, stored_tasks
from tests.webapp.test_models_api import fetch
from webapp.accounts.models import AuditEntry, Team, User
from webapp.audit.sentences import plain
from webapp.catalog.models import TaskSetVersion, Upload
from webapp.experiments.models import Experiment
from webapp.runs.models import Run
from webapp.task_sets.management.commands import import_tasks

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]
SPEC: dict[str, Any] = {
    "name": "x", "environment": {"id": "terminal", "catalog": "shell@1"},
    "dataset": {"train_tasks": 1, "heldout_tasks": 1}, "evaluation": {"tasks": 1, "interim_tasks": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    write_task(tmp_path / "imports" / "own", "copy")


def put(api: Any, upload: str, content: bytes) -> Any:
    digest = hashlib.sha256(content).hexdigest()
    address = f"/api/v1/task-uploads/{upload}/files/0/parts/0?sha256={digest}"
    return api.client.put(address, content, content_type="application/octet-stream")


def fields_of(answer: Any) -> list[str]:
    return [problem["field"] for problem in answer.json()["problems"]]


def test_strangers_find_nothing_and_viewers_change_nothing(
    team: Team, victor: User, charlie: User, api_of: Api
) -> None:
    version = published_tasks(team)
    upload = Upload.objects.create(team=team, kind="tasks", name="up", files=[{"name": "a.tar", "bytes": 2}])
    at = f"/task-set-versions/{version.id}"
    reads = [at, f"{at}/tasks", f"{at}/download", f"/task-sets/{version.task_set_id}/versions",
             f"{at}/differences?before={version.id}", f"/task-uploads/{upload.id}"]  # fmt: skip
    posts = {f"{at}/check": {}, f"{at}/publish": None, f"{at}/cancel": None, f"/task-uploads/{upload.id}/complete": {}}
    for user, read, change in ((charlie, 404, 404), (victor, 200, 403)):
        api = api_of(user, scopes=("read", "launch"))
        assert {path: api.get(path).status_code for path in reads} == dict.fromkeys(reads, read)
        assert {path: api.post(path, body).status_code for path, body in posts.items()} == dict.fromkeys(posts, change)
        assert put(api, str(upload.id), b"{}").status_code == change
        for path in (at, f"/task-uploads/{upload.id}"):
            assert api.client.delete(f"/api/v1{path}").status_code == change
    for path in ("/task-sets", "/task-uploads"):
        assert api_of(charlie).get(path).json()["items"] == []
    assert Client().get(f"/api/v1{at}").status_code == 401
    assert TaskSetVersion.objects.get().state == "ready"


def test_an_upload_of_tasks_is_none_of_a_dataset(team: Team, alice: User, api_of: Api) -> None:
    upload = Upload.objects.create(team=team, kind="tasks", name="up", files=[{"name": "a.tar", "bytes": 2}])
    assert api_of(alice).get(f"/dataset-uploads/{upload.id}").status_code == 404
    assert api_of(alice).get(f"/uploads/{upload.id}").status_code == 404


def test_an_upload_becomes_one_version_however_often_it_is_completed(team: Team, alice: User, api_of: Api) -> None:
    api = api_of(alice)
    begun = api.post("/task-uploads", {"name": "shell", "files": [{"name": "tasks.tar", "bytes": 3}]})
    assert begun.status_code == 201
    upload = begun.json()["id"]
    assert api.post(f"/task-uploads/{upload}/complete", {}).status_code == 409
    assert put(api, upload, b"tar").status_code == 200
    first = api.post(f"/task-uploads/{upload}/complete", {"check": {"repeat": 2}}).json()
    again = api.post(f"/task-uploads/{upload}/complete", {}).json()
    assert (first["id"], first["state"], first["check"]["repeat"]) == (again["id"], "importing", 2)
    assert TaskSetVersion.objects.count() == 1


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ([{"name": "a.zip", "bytes": 1}], "files.0.name"),
        ([{"name": "../a.tar", "bytes": 1}], "files.0.name"),
        ([{"name": "a.tar", "bytes": 1}, {"name": "b.tar", "bytes": 1}], "files"),
        ([{"name": "a.jsonl", "bytes": 1}, {"name": "b.jsonl", "bytes": 1}], "files"),
    ],
)
def test_what_is_no_package_of_tasks_is_refused_by_its_name(
    team: Team, alice: User, api_of: Api, files: Any, field: str
) -> None:
    answer = api_of(alice).post("/task-uploads", {"name": "shell", "files": files})
    assert answer.status_code == 422
    assert field in fields_of(answer)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": ".x", "folder": "own"}, "name"),
        ({"name": "x", "folder": "../own"}, "folder"),
        ({"name": "x", "folder": "own", "check": {"repeat": 0}}, "check.repeat"),
        ({"name": "x", "folder": "own", "check": {"sandbox": {"memory_mib": -1}}}, "check.sandbox.memory_mib"),
        ({"name": "x", "folder": "own", "oracle": True}, "oracle"),
    ],
)
def test_a_bad_import_names_its_field(team: Team, alice: User, api_of: Api, body: Any, field: str) -> None:
    answer = api_of(alice).post("/task-imports", body)
    assert (answer.status_code, fields_of(answer)) == (422, [field])
    assert not TaskSetVersion.objects.exists()


def test_an_import_acts_once_for_one_key(team: Team, alice: User, api_of: Api) -> None:
    api, key = api_of(alice), str(uuid4())
    assert api.get("/task-imports").json() == {"folders": ["own"]}
    answers = [api.post("/task-imports", {"name": "x", "folder": "own"}, **{"Idempotency-Key": key}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert TaskSetVersion.objects.count() == 1


def test_the_tasks_show_their_trials_and_statuses_while_the_check_goes_on(team: Team, alice: User, api_of: Api) -> None:
    tasks = {"a": OK, "b": {"oracle": [None], "nop": [0.0]}, "c": {"oracle": [], "nop": [0.0]}}
    version, api = stored_tasks(team, tasks=tasks, note="the tests hung", state="checking"), api_of(alice)
    detail = api.get(f"/task-set-versions/{version.id}").json()
    assert detail["progress"] == {
        "tasks": 3, "trials": 5, "of": 6, "statuses": {"ok": 1, "unchecked": 1, "verifier-fails": 1},
    }  # fmt: skip
    items = api.get(f"/task-set-versions/{version.id}/tasks", limit=2).json()
    assert items["next_cursor"]
    by_name = {task["name"]: task for task in items["items"]}
    assert by_name["b"]["status"] == "verifier-fails"
    assert by_name["b"]["trials"][1] == {
        "kind": "oracle", "repetition": 0, "reward": None, "seconds": 0.5, "note": "the tests hung",
    }  # fmt: skip


def test_publishing_is_refused_with_every_reason_and_gives_one_number(team: Team, alice: User, api_of: Api) -> None:
    api = api_of(alice)
    tasks = {"a": {"oracle": [0.0], "nop": [0.0]}, "b": OK, "c": {"oracle": [1.0], "nop": [1.0]}}
    bad = stored_tasks(team, "bad", tasks)
    answer = api.post(f"/task-set-versions/{bad.id}/publish")
    assert answer.status_code == 409
    assert [(problem["field"], problem["value"]) for problem in answer.json()["problems"]] == [
        ("tasks.a", "oracle-fails"), ("tasks.c", "nop-passes"),
    ]  # fmt: skip
    good = stored_tasks(team, "good")
    published = [api.post(f"/task-set-versions/{good.id}/publish").json()["name"] for _ in range(2)]
    assert published == ["good@1", "good@1"]
    assert api.post(f"/task-set-versions/{good.id}/check", {}).status_code == 409
    (entry,) = AuditEntry.objects.filter(verb="task-set.publish")
    assert plain(entry) == "published the tasks good@1"
    (listed,) = (task_set for task_set in api.get("/task-sets").json()["items"] if task_set["name"] == "good")
    assert (listed["versions"], listed["newest"]) == (1, 1)


def test_a_new_check_forgets_the_last_one(team: Team, alice: User, api_of: Api) -> None:
    version, api = stored_tasks(team), api_of(alice)
    answer = api.post(f"/task-set-versions/{version.id}/check", {"repeat": 5})
    assert (answer.status_code, answer.json()["state"]) == (202, "checking")
    progress = api.get(f"/task-set-versions/{version.id}").json()["progress"]
    assert (progress["trials"], progress["of"], progress["statuses"]) == (0, 20, {"unchecked": 2})
    assert api.post(f"/task-set-versions/{version.id}/publish").status_code == 409
    assert api.client.delete(f"/api/v1/task-set-versions/{version.id}").status_code == 409


@pytest.mark.parametrize("named", ["shell@2", "other@1", "shell", "shell@01x", "sums@1"])
def test_a_run_takes_published_tasks_of_its_team_alone(
    team: Team, alice: User, charlie: User, api_of: Api, named: str
) -> None:
    published_tasks(team)
    stored_tasks(team, "other")
    assert api_of(alice).post("/runs", SPEC).status_code == 201
    answer = api_of(alice).post("/runs", SPEC | {"environment": {"id": "terminal", "catalog": named}})
    assert (answer.status_code, fields_of(answer)) == (422, ["environment.catalog"])
    assert api_of(charlie).post("/runs", SPEC).status_code == 422
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("tasks", "field"),
    [
        ({"catalog": "shell@2"}, "environment.tasks.catalog"),
        ({"tasks": "/etc"}, "environment.tasks.tasks"),
        ({}, "environment.tasks.catalog"),
    ],
)
def test_an_agent_takes_published_tasks_of_its_team_alone(
    team: Team, alice: User, charlie: User, api_of: Api, tasks: dict[str, str], field: str
) -> None:
    version = published_tasks(team)

    def with_agent(of_tasks: dict[str, str]) -> dict[str, Any]:
        agent = {"id": "agent", "agent": {"command": ["true"]}, "tasks": {"id": "terminal", **of_tasks}}
        return SPEC | {"environment": agent}

    assert api_of(alice).post("/runs", with_agent({"catalog": "shell@1"})).status_code == 201
    answer = api_of(alice).post("/runs", with_agent(tasks))
    assert (answer.status_code, fields_of(answer)) == (422, [field])
    assert api_of(charlie).post("/runs", with_agent({"catalog": "shell@1"})).status_code == 422
    assert Run.objects.get().task_version == version


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({}, "environment.catalog"),
        ({"tasks": "/etc"}, "environment.tasks"),
        ({"tasks": "/etc", "catalog": "shell@1"}, "environment.tasks"),
        ({"catalog": "shell@1", "digest": "sha256:" + "0" * 64}, "environment.digest"),
    ],
)
def test_tasks_come_from_the_catalog_alone(
    team: Team, alice: User, api_of: Api, environment: dict[str, str], field: str
) -> None:
    published_tasks(team)
    for path in ("/runs", "/experiments"):
        answer = api_of(alice).post(path, SPEC | {"environment": {"id": "terminal", **environment}})
        assert (answer.status_code, fields_of(answer)) == (422, [field])


def test_deleting_is_refused_with_the_names_of_what_needs_it(team: Team, alice: User, api_of: Api) -> None:
    version, api = published_tasks(team), api_of(alice)
    run = api.post("/runs", SPEC).json()["id"]
    experiment = Experiment.objects.create(
        team=team, name="again", spec=RunSpec.model_validate(SPEC).model_dump(mode="json")
    )
    answer = api.client.delete(f"/api/v1/task-set-versions/{version.id}")
    assert (answer.status_code, fields_of(answer)) == (409, ["run", "experiment"])
    detail = api.get(f"/task-set-versions/{version.id}").json()
    assert [live["id"] for live in detail["live_runs"]] == [run]
    assert [experiment["name"] for experiment in detail["experiments"]] == ["again"]
    experiment.delete()
    api.post(f"/runs/{run}/cancel")
    assert api.client.delete(f"/api/v1/task-set-versions/{version.id}").status_code == 204


def test_two_versions_are_compared_by_their_tasks(team: Team, alice: User, charlie: User, api_of: Api) -> None:
    before, after = stored_tasks(team, tasks={"a": OK, "b": OK}), stored_tasks(team, tasks={"b": OK, "c": OK})
    foreign, api = stored_tasks(charlie.memberships.get().team), api_of(alice)
    found = api.get(f"/task-set-versions/{after.id}/differences", before=before.id).json()
    assert found == {"added": ["c"], "removed": ["a"], "changed": [], "same": 1}
    assert api.get(f"/task-set-versions/{after.id}/differences", before=foreign.id).status_code == 404


@pytest.mark.django_db(transaction=True)
def test_a_download_is_a_tar_that_can_be_uploaded_again(team: Team, alice: User, tmp_path: Path) -> None:
    from engine.environments.terminal.storing import store

    version = published_tasks(team)
    status, whole, _ = fetch(alice, f"/api/v1/task-set-versions/{version.id}/download")
    assert status == 200
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        archive.extractall(tmp_path / "down", filter="data")
    assert store(tmp_path / "down" / "shell-1" / "tasks", tmp_path / "again").faults == 0
    again = (tmp_path / "again" / "sealed" / "tasks.json").read_bytes()
    assert hashlib.sha256(again).hexdigest() == version.sha256


# The command
def test_the_command_does_what_the_api_does(team: Team, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    call_command("import_tasks", "x", "own", "--team", team.slug, "--by", alice.email, "--repeat", "2")
    version = TaskSetVersion.objects.get()
    assert (version.state, version.check_wanted and version.check_wanted.repeat) == ("importing", 2)
    with pytest.raises(CommandError, match="no owner or member"):
        call_command("import_tasks", "x", "own", "--team", team.slug, "--by", "nobody@example.org")
    with pytest.raises(CommandError, match="folder"):
        call_command("import_tasks", "x", "../own", "--team", team.slug, "--by", alice.email)
    tasks = {"a": {"oracle": [0.0], "nop": [0.0]}}
    bad = stored_tasks(team, "bad", tasks)
    monkeypatch.setattr(import_tasks, "import_tasks", lambda *_, **__: bad)
    with pytest.raises(CommandError, match=r"tasks\.a"):
        call_command("import_tasks", "x", "own", "--team", team.slug, "--by", alice.email, "--publish")
    bad.refresh_from_db()
    assert bad.state == "stored"
