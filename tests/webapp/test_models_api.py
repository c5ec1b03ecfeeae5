"""Models over REST: who may do what with whose, what is refused and how, and that nothing of a cut upload is lost."""

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client
from django.utils import timezone

from engine.spec.run import RunSpec
from tests.webapp.at_once import at_once
from tests.webapp.models import FILES, judged_by, ready_version
from webapp.accounts.models import AuditEntry, Team, User
from webapp.catalog import uploads
from webapp.catalog.models import ModelVersion, Upload, UploadPart
from webapp.catalog.storage import upload_folder
from webapp.refusals import Invalid
from webapp.runs.models import Run, RunStatus
from webapp.runs.services import submit_run

pytestmark = pytest.mark.django_db(transaction=True)
SHA = "0" * 64


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    (tmp_path / "imports" / "qwen").mkdir(parents=True)
    (tmp_path / "imports" / "qwen" / "config.json").write_text("{}")
    monkeypatch.setattr(uploads, "PART_BYTES", 1000)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(api: Any, upload: str, content: bytes, *, file: int = 0, number: int = 0, sha256: str | None = None) -> Any:
    address = f"/api/v1/model-uploads/{upload}/files/{file}/parts/{number}?sha256={sha256 or digest(content)}"
    return api.client.put(address, content, content_type="application/octet-stream")


def begun(api: Any, size: int = 2500, name: str = "model.safetensors") -> str:
    answer = api.post("/model-uploads", {"name": "up", "files": [{"name": name, "bytes": size}]})
    assert answer.status_code == 201, answer.json()
    return str(answer.json()["id"])


def named(spec_catalog: str) -> RunSpec:
    return RunSpec.model_validate({"name": "x", "model": {"kind": "pretrained", "catalog": spec_catalog}})


def fields_of(answer: Any) -> list[str]:
    return [problem["field"] for problem in answer.json()["problems"]]


# Who
def test_strangers_find_nothing_and_viewers_change_nothing(
    team: Team, victor: User, charlie: User, api_of: Callable[..., Any], alice: User, run: Run
) -> None:
    version = ready_version(team)
    upload = Upload.objects.create(team=team, name="up", files=[{"name": "config.json", "bytes": 2}])
    reads = [f"/models/{version.model_id}/versions", f"/model-versions/{version.id}",
             f"/model-versions/{version.id}/download", f"/model-uploads/{upload.id}"]  # fmt: skip
    posts = [f"/model-versions/{version.id}/cancel", f"/model-uploads/{upload.id}/complete"]
    promote = f"/runs/{run.id}/checkpoints/1/promote"
    for user, read, change in ((charlie, 404, 404), (victor, 200, 403)):
        api = api_of(user, scopes=("read", "launch"))
        assert {api.get(path).status_code for path in reads} == {read}
        assert {api.post(path).status_code for path in posts} == {change}
        assert api.post(promote, {"name": "x"}).status_code == change
        assert put(api, str(upload.id), b"{}").status_code == change
        for path in (f"/model-versions/{version.id}", f"/model-uploads/{upload.id}"):
            assert api.client.delete(f"/api/v1{path}").status_code == change
    assert api_of(charlie).get("/models").json()["items"] == []
    assert api_of(charlie).get("/model-versions").json()["items"] == []
    assert api_of(charlie).get("/model-uploads").json()["items"] == []
    assert api_of(victor).post("/model-imports", {}).status_code == 403
    assert ModelVersion.objects.count() == 1
    assert Client().get(f"/api/v1/model-versions/{version.id}").status_code == 401


def test_a_key_that_only_reads_changes_nothing(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    api = api_of(alice, scopes=("read",))
    assert api.post("/model-imports", {"name": "x", "folder": "qwen"}).status_code == 403
    assert api.client.delete(f"/api/v1/model-versions/{ready_version(team).id}").status_code == 403
    assert api_of(alice, scopes=("launch",)).get("/model-imports").status_code == 403


def test_a_team_that_is_named_must_be_the_callers(alice: User, charlie: User, api_of: Callable[..., Any]) -> None:
    other = charlie.memberships.get().team.slug
    body = {"name": "x", "files": [{"name": "config.json", "bytes": 2}]}
    assert api_of(alice).post(f"/model-uploads?team={other}", body).status_code == 404


# Importing and listing
def test_an_import_is_queued_once_however_often_it_is_sent(
    team: Team, alice: User, api_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr("webapp.queue._send_now", lambda *message: sent.append(message))
    api, key = api_of(alice), str(uuid4())
    assert api.get("/model-imports").json() == {"folders": ["qwen"]}
    bodies = [
        api.post("/model-imports", {"name": "qwen", "folder": "qwen"}, **{"Idempotency-Key": key}).json()
        for _ in range(2)
    ]
    assert bodies[0] == bodies[1]
    assert (bodies[0]["state"], bodies[0]["origin"]) == ("importing", {"kind": "folder", "path": "qwen"})
    assert sent == [("catalog.store", (str(bodies[0]["id"]), "importing-0"))]
    assert AuditEntry.objects.filter(verb="model.import").count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "folder": "../x"}, "folder"),
        ({"name": "x", "folder": "/etc"}, "folder"),
        ({"name": "../x", "folder": "qwen"}, "name"),
        ({"name": "", "folder": "qwen"}, "name"),
        ({"name": "x@1", "folder": "qwen"}, "name"),
        ({"name": "x", "folder": "qwen", "force": True}, "force"),
        ({"name": "x"}, "folder"),
    ],
)
def test_a_bad_import_names_its_field(
    team: Team, alice: User, api_of: Callable[..., Any], body: Any, field: str
) -> None:
    answer = api_of(alice).post("/model-imports", body)
    assert (answer.status_code, fields_of(answer)) == (422, [field])
    assert all(problem["remedy"] for problem in answer.json()["problems"])
    assert not ModelVersion.objects.exists()


def test_lists_have_pages_and_say_what_is_ready(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    first, second = ready_version(team), ready_version(team, files={"config.json": b"{}"})
    failed = ModelVersion.objects.create(model=first.model, state="failed", origin=first.origin, problem={"field": "x"})
    api = api_of(alice)
    assert [(row["name"], row["versions"], row["newest"]) for row in api.get("/models").json()["items"]] == [
        ("qwen", 2, 2)
    ]
    page = api.get(f"/models/{first.model_id}/versions", limit=2).json()
    assert [row["id"] for row in page["items"]] == [failed.id, second.id]
    rest = api.get(f"/models/{first.model_id}/versions", limit=2, cursor=page["next_cursor"]).json()
    assert [row["name"] for row in rest["items"]] == ["qwen@1"]
    assert [row["id"] for row in api.get("/model-versions", state="failed").json()["items"]] == [failed.id]
    assert api.get("/model-versions", state="odd").status_code == 422


# Use
def test_a_run_uses_the_version_that_its_spec_names(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    version = ready_version(team)
    run = submit_run(team, named("qwen@1"), acting_user=alice)
    assert run.model_version == version
    detail = api_of(alice).get(f"/model-versions/{version.id}").json()
    assert [row["id"] for row in detail["live_runs"]] == [str(run.id)]


def test_a_run_judges_with_the_version_that_its_spec_names(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    trained, judge = ready_version(team), ready_version(team, "judge")
    run = submit_run(team, judged_by(catalog="judge@1"), acting_user=alice)
    assert (run.model_version, run.judge_version) == (trained, judge)
    api = api_of(alice)
    for version in (trained, judge):
        assert [row["id"] for row in api.get(f"/model-versions/{version.id}").json()["live_runs"]] == [str(run.id)]
    checkpointed(run, 1)
    promoted = api.post(f"/runs/{run.id}/checkpoints/1/promote", {"name": "tuned"}).json()
    assert promoted["parent"] == trained.id


@pytest.mark.parametrize("name", ["judge@2", "theirs@1", "judge@latest"])
def test_a_judges_version_that_is_not_the_teams_is_refused_as_a_models_is(
    team: Team, alice: User, charlie: User, name: str
) -> None:
    ready_version(charlie.memberships.get().team, "theirs")
    ready_version(team)
    ready_version(team, "judge")
    refusals = []
    for spec in (judged_by(catalog=name), named(name)):
        with pytest.raises(Invalid) as refused:
            submit_run(team, spec, acting_user=alice)
        refusals.append((str(refused.value), refused.value.problems[0]))
    (why, problem), (why_of_model, problem_of_model) = refusals
    assert why == why_of_model
    assert (problem.field, problem.value) == ("resources.judge.catalog", name)
    assert (problem.message, problem.remedy) == (problem_of_model.message, problem_of_model.remedy)
    assert "theirs" not in problem.remedy
    assert not Run.objects.exists()


@pytest.mark.parametrize("name", ["qwen@2", "other@1", "qwen@latest", "qwen@01x", "qwen@9999999999999999999"])
def test_a_version_that_is_not_there_is_refused_with_those_that_are(team: Team, alice: User, name: str) -> None:
    ready_version(team)
    with pytest.raises(Invalid) as refused:
        submit_run(team, named(name), acting_user=alice)
    problem = refused.value.problems[0]
    assert (problem.field, problem.value, problem.remedy) == ("model.catalog", name, "use one of: qwen@1")


def test_a_version_of_another_team_and_one_that_is_not_ready_are_not_there(
    team: Team, alice: User, charlie: User
) -> None:
    ready_version(charlie.memberships.get().team)
    with pytest.raises(Invalid) as refused:
        submit_run(team, named("qwen@1"), acting_user=alice)
    assert refused.value.problems[0].remedy == "import a model first"
    own = ready_version(team)
    for state in ("checking", "failed"):
        ModelVersion.objects.filter(id=own.id).update(state=state)
        with pytest.raises(Invalid):
            submit_run(team, named("qwen@1"), acting_user=alice)


@pytest.mark.parametrize("path", ["catalog/1/" + SHA, "./catalog/1", "catalog", "uploads/x", "catalog//2"])
def test_no_path_leads_into_what_belongs_to_teams(team: Team, alice: User, path: str) -> None:
    spec = RunSpec.model_validate({"name": "x", "model": {"kind": "pretrained", "path": path}})
    with pytest.raises(Invalid) as refused:
        submit_run(team, spec, acting_user=alice)
    assert refused.value.problems[0].field == "model.path"


@pytest.mark.parametrize("path", ["catalog/1/" + SHA, "uploads/x", "/etc", "../outside"])
def test_no_path_of_a_judge_leads_there_or_out_of_the_models_folder(team: Team, alice: User, path: str) -> None:
    ready_version(team)
    with pytest.raises(Invalid) as refused:
        submit_run(team, judged_by(path=path), acting_user=alice)
    problem = refused.value.problems[0]
    assert (problem.field, problem.value) == ("resources.judge.path", path)
    if path.startswith(("catalog", "uploads")):
        assert problem.remedy == 'set resources.judge.catalog = "name@version"'
    assert submit_run(team, judged_by(path="a-judge"), acting_user=alice).judge_version is None


# Uploading
def test_a_cut_upload_goes_on_where_it_stopped(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    api, content = api_of(alice), bytes(range(250)) * 10
    upload = begun(api)
    assert put(api, upload, content[1000:2000], number=1).status_code == 200
    assert put(api, upload, content[:700]).status_code == 422  # cut on its way
    there = api.get(f"/model-uploads/{upload}").json()
    assert (there["part_bytes"], there["files"]) == (
        1000, [{"name": "model.safetensors", "bytes": 2500, "parts": 3, "stored": [1]}],
    )  # fmt: skip
    refused = api.post(f"/model-uploads/{upload}/complete")
    assert (refused.status_code, refused.json()["problems"][0]["remedy"]) == (409, "send the parts 0, 2")
    for number in (0, 2):
        assert put(api, upload, content[number * 1000 :][:1000], number=number).status_code == 200
    done = api.post(f"/model-uploads/{upload}/complete").json()
    assert (done["state"], done["bytes"]) == ("importing", 2500)
    assert not list(upload_folder(upload).glob(".arriving*"))


def test_completing_twice_is_completing_once(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    api = api_of(alice)
    upload = begun(api, 3)
    put(api, upload, b"abc")
    answers = [api.post(f"/model-uploads/{upload}/complete").json() for _ in range(2)]
    assert answers[0]["id"] == answers[1]["id"]
    assert ModelVersion.objects.count() == 1
    assert put(api, upload, b"abc").status_code == 409
    assert api.client.delete(f"/api/v1/model-uploads/{upload}").status_code == 409


def test_completing_at_once_makes_one_version(team: Team, alice: User) -> None:
    upload = uploads.begin_upload(team, "up", [{"name": "config.json", "bytes": 2}], acting_user=alice)
    uploads.put_part(upload, 0, 0, digest(b"{}"), io.BytesIO(b"{}"))
    done = at_once(*[partial(uploads.complete_upload, upload, acting_user=alice)] * 4)
    assert len({version.id for version in done}) == 1


def test_the_same_part_at_once_and_again_is_one_part(team: Team, alice: User) -> None:
    upload = uploads.begin_upload(team, "up", [{"name": "config.json", "bytes": 2}], acting_user=alice)
    bodies = [io.BytesIO(b"{}") for _ in range(4)]
    at_once(*[partial(uploads.put_part, upload, 0, 0, digest(b"{}"), body) for body in bodies])
    assert UploadPart.objects.count() == 1
    assert [path.read_bytes() for path in upload_folder(upload.id).iterdir()] == [b"{}"]


def test_another_content_under_a_parts_number_is_refused_and_leaves_the_first(
    team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    api = api_of(alice)
    upload = begun(api, 3)
    assert put(api, upload, b"abc").status_code == 200
    assert put(api, upload, b"abc").status_code == 200
    assert put(api, upload, b"xyz").status_code == 409
    assert [path.read_bytes() for path in upload_folder(upload).iterdir()] == [b"abc"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"sha256": SHA}, "sha256"), ({"sha256": "X" * 64}, "sha256"), ({"sha256": "../../x"}, "sha256"),
        ({"content": b"abcd"}, "body"), ({"content": b"ab"}, "body"), ({"content": b""}, "body"),
        ({"content": b"x" * 5000}, "body"), ({"number": 1}, "number"), ({"file": 1}, "file"),
        ({"number": 10**30}, "number"),
    ],
)  # fmt: skip
def test_a_part_that_is_not_what_was_announced_is_refused_and_not_kept(
    team: Team, alice: User, api_of: Callable[..., Any], changed: dict[str, Any], field: str
) -> None:
    api = api_of(alice)
    upload = begun(api, 3)
    answer = put(api, upload, **{"content": b"abc"} | changed)
    assert (answer.status_code, fields_of(answer)) == (422, [field])
    folder = upload_folder(upload)
    assert not (list(folder.iterdir()) if folder.exists() else [])
    assert not UploadPart.objects.exists()


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ([{"name": "../x.json", "bytes": 1}], "files.0.name"),
        ([{"name": "a/x.json", "bytes": 1}], "files.0.name"),
        ([{"name": "weights.bin", "bytes": 1}], "files.0.name"),
        ([{"name": "run.py", "bytes": 1}], "files.0.name"),
        ([{"name": "../m.tar", "bytes": 1}], "files.0.name"),
        ([{"name": "x.json", "bytes": 0}], "files.0.bytes"),
        ([{"name": "x.json", "bytes": -1}], "files.0.bytes"),
        ([{"name": "x.json", "bytes": 10**18}], "files.0.bytes"),
        ([{"name": "x.json", "bytes": 1}, {"name": "x.json", "bytes": 1}], "files.1.name"),
        ([{"name": "m.tar", "bytes": 1}, {"name": "x.json", "bytes": 1}], "files"),
        ([], "files"),
    ],
)
def test_files_that_no_version_may_have_are_refused_when_they_are_announced(
    team: Team, alice: User, api_of: Callable[..., Any], files: Any, field: str
) -> None:
    answer = api_of(alice).post("/model-uploads", {"name": "up", "files": files})
    assert (answer.status_code, fields_of(answer)) == (422, [field])


def test_what_uploads_may_take_is_bounded_in_bytes_and_in_number(
    team: Team, alice: User, api_of: Callable[..., Any], settings: Any
) -> None:
    settings.PALESTRA_MODEL_BYTES_PER_TEAM = 5000
    api = api_of(alice)
    begun(api, 3000)
    over = api.post("/model-uploads", {"name": "up", "files": [{"name": "x.safetensors", "bytes": 2001}]})
    assert (over.status_code, fields_of(over)) == (409, ["bytes"])
    for _ in range(uploads.MOST_OPEN - 1):
        begun(api, 1)
    body = {"name": "up", "files": [{"name": "x.json", "bytes": 1}]}
    assert "on their way" in api.post("/model-uploads", body).json()["detail"]


def test_an_upload_at_the_bound_can_be_completed(
    team: Team, alice: User, api_of: Callable[..., Any], settings: Any
) -> None:
    settings.PALESTRA_MODEL_BYTES_PER_TEAM = 3
    api = api_of(alice)
    upload = begun(api, 3)
    put(api, upload, b"abc")
    assert api.post(f"/model-uploads/{upload}/complete").status_code == 200


def test_a_deleted_upload_leaves_nothing(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    api = api_of(alice)
    upload = begun(api, 3)
    put(api, upload, b"abc")
    assert api.client.delete(f"/api/v1/model-uploads/{upload}").status_code == 204
    assert not upload_folder(upload).exists()
    assert api.get(f"/model-uploads/{upload}").status_code == 404
    assert put(api, upload, b"abc").status_code == 404


def test_a_browser_needs_its_token_to_send_a_part(team: Team, alice: User) -> None:
    upload = uploads.begin_upload(team, "up", [{"name": "config.json", "bytes": 2}], acting_user=alice)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice)
    address = f"/api/v1/model-uploads/{upload.id}/files/0/parts/0?sha256={digest(b'{}')}"
    assert browser.put(address, b"{}", content_type="application/octet-stream").status_code == 403


# Download
def fetch(user: User, path: str, **headers: str) -> tuple[int, bytes, Any]:
    async def get() -> tuple[int, bytes, Any]:
        client = AsyncClient()
        await client.aforce_login(user)
        answer = await client.get(path, headers=headers)
        pieces = [chunk async for chunk in answer.streaming_content] if answer.streaming else [answer.content]
        await sync_to_async(connections.close_all)()  # those of the thread that answered
        return answer.status_code, b"".join(pieces), answer.headers

    return asyncio.run(get())


def test_a_download_is_a_tar_of_the_files_and_any_part_of_it_can_be_had(team: Team, alice: User) -> None:
    version = ready_version(team)
    path = f"/api/v1/model-versions/{version.id}/download"
    status, whole, headers = fetch(alice, path)
    assert (status, headers["Content-Length"]) == (200, str(len(whole)))
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert files == {f"qwen-1/{name}": content for name, content in FILES.items()}
    size = len(whole)
    for asked, first, last in (
        ("0-0", 0, 0),
        ("100-3000", 100, 3000),
        (f"{size - 5}-", size - 5, size - 1),
        ("-7", size - 7, size - 1),
    ):
        status, part, headers = fetch(alice, path, range=f"bytes={asked}")
        assert (status, part) == (206, whole[first : last + 1])
        assert headers["Content-Range"] == f"bytes {first}-{last}/{size}"
    for asked in (f"bytes={size}-", "bytes=5-4", "bytes=-0", "bytes=-", "lines=1-2", "bytes=0-1,3-4"):
        assert fetch(alice, path, range=asked)[0] == 416
    assert fetch(alice, path, range="bytes=0-0", **{"if-range": '"another"'})[0] == 200


def test_only_a_ready_version_whose_files_are_there_is_downloaded(
    team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    version = ready_version(team)
    version.folder.rename(version.folder.with_name("moved"))
    path = f"/model-versions/{version.id}/download"
    assert "not on this machine" in api_of(alice).get(path).json()["detail"]
    ModelVersion.objects.update(state="failed")
    assert api_of(alice).get(path).status_code == 409


# Promotion, lineage, deletion
def checkpointed(run: Run, *steps: int) -> Run:
    for step in steps:
        run.checkpoints.create(step=step, path="p", size_bytes=10, seconds=1.0, at=timezone.now())
    return run


def test_a_promoted_checkpoint_knows_where_it_comes_from(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    base = ready_version(team)
    first = checkpointed(submit_run(team, named("qwen@1"), acting_user=alice), 10, 20)
    warm = RunSpec.model_validate({"name": "warm", "model": {"kind": "checkpoint", "run": str(first.id)}})
    second = checkpointed(submit_run(team, warm, acting_user=alice), 5)
    answer = api_of(alice).post(f"/runs/{second.id}/checkpoints/5/promote", {"name": "tuned"})
    assert answer.status_code == 201, answer.json()
    promoted = answer.json()
    assert promoted["parent"] == base.id
    origin = promoted["origin"]
    assert (origin["run"], origin["step"], origin["environment"]) == (str(second.id), 5, "python-math")
    assert origin["data"] == second.spec["dataset"]
    ModelVersion.objects.filter(id=promoted["id"]).update(state="ready", number=1, sha256=SHA)
    assert api_of(alice).get(f"/model-versions/{base.id}").json()["descendants"] == [promoted["id"]]


def test_a_checkpoint_that_is_not_there_and_one_of_the_built_in_network_are_refused(
    team: Team, alice: User, api_of: Callable[..., Any], run: Run
) -> None:
    api = api_of(alice)
    none = api.post(f"/runs/{run.id}/checkpoints/1/promote", {"name": "x"})
    assert (none.status_code, fields_of(none)) == (422, ["step"])
    built_in = api.post(f"/runs/{checkpointed(run, 1).id}/checkpoints/1/promote", {"name": "x"})
    assert (built_in.status_code, fields_of(built_in)) == (409, ["run"])


@pytest.mark.parametrize(("export", "status"), [("adapter", 409), ("merged", 201)])
def test_an_adapter_without_its_model_is_refused_at_once_with_what_to_do(
    team: Team, alice: User, api_of: Callable[..., Any], export: str, status: int
) -> None:
    ready_version(team)
    model = {"kind": "pretrained", "catalog": "qwen@1", "lora": {"rank": 4, "export": export}}
    spec = RunSpec.model_validate({"name": "adapted", "model": model})
    run = checkpointed(submit_run(team, spec, acting_user=alice), 1)
    answer = api_of(alice).post(f"/runs/{run.id}/checkpoints/1/promote", {"name": "x"})
    assert answer.status_code == status, answer.json()
    assert ModelVersion.objects.filter(model__name="x").count() == (1 if status == 201 else 0)
    if status == 409:
        assert fields_of(answer) == ["run"]
        assert "merge_and_unload" in answer.content.decode()


def test_what_a_live_run_uses_is_not_deleted(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    version = ready_version(team)
    first = submit_run(team, named("qwen@1"), acting_user=alice)
    api, path = api_of(alice), f"/api/v1/model-versions/{version.id}"
    refused = api.client.delete(path)
    assert (refused.status_code, fields_of(refused)) == (409, ["run"])
    assert first.move_to(RunStatus.CANCELLED, by="test")
    warm = RunSpec.model_validate({"name": "warm", "model": {"kind": "checkpoint", "run": str(first.id)}})
    second = submit_run(team, warm, acting_user=alice)
    assert api.client.delete(path).status_code == 409
    assert second.move_to(RunStatus.CANCELLED, by="test")
    assert len(api.get(f"/model-versions/{version.id}").json()["ended_runs"]) == 1
    assert api.client.delete(path).status_code == 204
    assert api.client.delete(path).status_code == 404
    first.refresh_from_db()
    assert first.model_version is None


def test_what_a_live_run_judges_with_is_not_deleted(team: Team, alice: User, api_of: Callable[..., Any]) -> None:
    ready_version(team)
    judge = ready_version(team, "judge")
    run = submit_run(team, judged_by(catalog="judge@1"), acting_user=alice)
    api, path = api_of(alice), f"/api/v1/model-versions/{judge.id}"
    refused = api.client.delete(path)
    assert (refused.status_code, fields_of(refused)) == (409, ["run"])
    assert run.move_to(RunStatus.CANCELLED, by="test")
    assert [row["id"] for row in api.get(f"/model-versions/{judge.id}").json()["ended_runs"]] == [str(run.id)]
    assert api.client.delete(path).status_code == 204
    run.refresh_from_db()
    assert (run.judge_version, str(run.model_version)) == (None, "qwen@1")


def test_a_run_cannot_take_a_version_while_it_is_deleted(team: Team, alice: User) -> None:
    from webapp.library.services import delete_version
    from webapp.refusals import Refused

    version = ready_version(team)

    def delete() -> str:
        try:
            delete_version(version, acting_user=alice)
        except Refused:
            return "kept"
        return "deleted"

    def submit() -> str:
        try:
            submit_run(team, named("qwen@1"), acting_user=alice)
        except Invalid:
            return "refused"
        return "taken"

    assert sorted(at_once(delete, submit)) in (["deleted", "refused"], ["kept", "taken"])


def test_the_number_of_a_deleted_version_is_never_given_again(team: Team, alice: User) -> None:
    from webapp.library.services import delete_version

    delete_version(ready_version(team), acting_user=alice)
    assert ready_version(team).number == 2


def test_only_what_is_being_made_can_be_cancelled_and_it_cannot_be_deleted(
    team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    api = api_of(alice)
    version = api.post("/model-imports", {"name": "qwen", "folder": "qwen"}).json()["id"]
    assert api.client.delete(f"/api/v1/model-versions/{version}").status_code == 409
    assert [api.post(f"/model-versions/{version}/cancel").status_code for _ in range(2)] == [200, 200]
    assert ModelVersion.objects.get().cancel_asked
    assert AuditEntry.objects.filter(verb="model.cancel").count() == 1
    assert api.post(f"/model-versions/{ready_version(team).id}/cancel").status_code == 409


def test_the_document_describes_every_address_of_models() -> None:
    document = json.loads(Client().get("/api/v1/openapi.json").content)
    operations = {
        operation["operationId"] for path in document["paths"].values() for operation in path.values()
        if "models" in operation["tags"]
    }  # fmt: skip
    assert operations == {
        "list_models", "list_versions_of_model", "list_model_versions", "get_model_version", "list_importable_folders",
        "import_model", "promote_checkpoint", "cancel_version", "delete_version", "download_version", "list_uploads",
        "begin_upload", "get_upload", "put_part", "complete_upload", "delete_upload",
    }  # fmt: skip
