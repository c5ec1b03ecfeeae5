"""The pages of models: what stands on them, who may press what, and that nothing of a stranger's file is markup."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from engine.spec.run import RunSpec
from tests.webapp.forms import posted_by
from tests.webapp.models import judged_by, ready_version
from tests.webapp.test_pages_spec import about, browser, experiment, form_of, saved, shown
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team
from webapp.catalog.models import ModelVersion, Upload
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment
from webapp.runs.models import Run
from webapp.runs.services import submit_run

__all__ = ["browser", "experiment"]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    (tmp_path / "imports" / "qwen").mkdir(parents=True)
    (tmp_path / "imports" / "qwen" / "config.json").write_text("{}")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text_of(client: Client, path: str, status: int = 200, **options: Any) -> str:
    answer = client.get(path, **options)
    assert answer.status_code == status
    return answer.content.decode()


def named(version: str) -> RunSpec:
    return RunSpec.model_validate({"name": "x", "model": {"kind": "pretrained", "catalog": version}})


def test_an_empty_list_says_what_to_do_and_to_whom(team: Team, alice: User, victor: User) -> None:
    assert "Add a model" in text_of(signed_in(alice), "/models/")
    assert "An owner or member of your team can do that" in text_of(signed_in(victor), "/models/")
    assert "Add a model" not in text_of(signed_in(victor), "/models/").split("<main")[1]


def test_the_list_shows_what_a_version_is_and_what_was_wrong_with_another(team: Team, alice: User) -> None:
    version = ready_version(team)
    ModelVersion.objects.create(
        model=version.model, state="failed", origin=version.origin, problem={"message": "is damaged", "field": "folder"}
    )
    Upload.objects.create(team=team, name="big", files=[{"name": "x.safetensors", "bytes": 5}])
    page = text_of(signed_in(alice), "/models/")
    for shown_text in (
        "qwen@1",
        "Qwen3ForCausalLM",
        "4,022,468,096",
        "40,960",
        "bfloat16",
        "is damaged",
        "x.safetensors",
    ):
        assert shown_text in page
    assert "hx-trigger" not in page.split("<main")[1]


def test_a_list_with_something_on_its_way_keeps_itself_true(team: Team, alice: User) -> None:
    client = signed_in(alice)
    client.post("/models/import", {"name": "qwen", "folder": "qwen"})
    assert 'hx-trigger="every 3s"' in text_of(client, "/models/")
    piece = text_of(client, "/models/", headers={"HX-Request": "true"})
    assert "<html" not in piece
    assert "Importing" in piece


def test_an_import_leads_to_its_version_and_a_bad_one_keeps_what_was_typed(team: Team, alice: User) -> None:
    client = signed_in(alice)
    answer = client.post("/models/import", {"name": "qwen", "folder": "qwen"})
    version = ModelVersion.objects.get()
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/models/versions/{version.id}/")
    assert "the engine" not in text_of(client, answer.headers["Location"])
    bad = client.post("/models/import", {"name": "a b", "folder": "../etc"})
    page = bad.content.decode()
    assert bad.status_code == 422
    assert 'value="../etc"' in page
    assert "there is no such folder below the import root" in page.lower()
    bad = client.post("/models/import", {"name": "a b", "folder": "qwen"}).content.decode()
    assert "letters, digits" in bad
    assert ModelVersion.objects.count() == 1


def test_a_version_shows_its_lineage_and_what_depends_on_it(team: Team, alice: User) -> None:
    base = ready_version(team)
    run = submit_run(team, named("qwen@1"), acting_user=alice)
    origin = {"kind": "checkpoint", "run": str(run.id), "number": run.number, "name": run.name, "step": 40,
              "environment": "python-math", "data": {"train_tasks": 2000, "seed": 7}, "recipe": "grpo"}  # fmt: skip
    tuned = ready_version(team, "tuned", files={"config.json": b"{}"}, origin=origin, parent=base)
    client = signed_in(alice)
    assert f'href="/models/versions/{base.id}/">qwen@1' in text_of(client, f"/runs/{run.id}/")
    page = text_of(client, f"/models/versions/{tuned.id}/")
    for part in (f'href="/models/versions/{base.id}/">qwen@1', "step 40 of run #1", "python-math", "2,000", "grpo"):
        assert part in page
    page = text_of(client, f"/models/versions/{base.id}/")
    for part in ("Runs that use it", "tuned@1", "must end first", "Apache License 2.0", "disabled"):
        assert part in page


def test_a_run_and_the_version_that_judges_it_name_each_other(team: Team, alice: User) -> None:
    ready_version(team)
    judge = ready_version(team, "judge")
    run = submit_run(team, judged_by(catalog="judge@1"), acting_user=alice)
    client = signed_in(alice)
    assert f'<dt>Judge</dt><dd><a href="/models/versions/{judge.id}/">judge@1' in text_of(client, f"/runs/{run.id}/")
    page = text_of(client, f"/models/versions/{judge.id}/")
    for part in ("Runs that use it", f'href="/runs/{run.id}/"', "must end first", "disabled"):
        assert part in page


def test_what_strangers_wrote_is_text(team: Team, alice: User) -> None:
    version = ready_version(team, licence_text="<script>alert(1)</script>", architecture="<b>x</b>")
    for path in ("/models/", f"/models/versions/{version.id}/"):
        page = text_of(signed_in(alice), path)
        assert "<script>alert" not in page
        assert "<b>x</b>" not in page


def test_deleting_asks_for_the_name(team: Team, alice: User) -> None:
    version, client = ready_version(team), signed_in(alice)
    path = f"/models/versions/{version.id}/delete"
    answer = client.post(path, {"name": "qwen@2"}, follow=True)
    assert "another name was typed" in answer.content.decode()
    assert ModelVersion.objects.exists()
    answer = client.post(path, {"name": "qwen@1"}, follow=True)
    assert "qwen@1 is deleted" in answer.content.decode()
    assert not ModelVersion.objects.exists()


def test_strangers_see_nothing_and_viewers_press_nothing(team: Team, victor: User, charlie: User, run: Run) -> None:
    version = ready_version(team)
    paths = [f"/models/versions/{version.id}/cancel", f"/models/versions/{version.id}/delete",
             f"/runs/{run.id}/checkpoints/1/promote"]  # fmt: skip
    assert {signed_in(victor).post(path).status_code for path in paths} == {403}
    assert {signed_in(charlie).post(path).status_code for path in paths} == {404}
    assert signed_in(charlie).get(f"/models/versions/{version.id}/").status_code == 404
    assert "qwen@1" not in text_of(signed_in(charlie), "/models/")
    assert signed_in(victor).post("/models/import", {"name": "x", "folder": "qwen"}).status_code == 403
    assert "Delete" not in text_of(signed_in(victor), f"/models/versions/{version.id}/")
    assert Client().get("/models/").status_code == 302


def test_a_checkpoint_becomes_a_version_from_its_row(team: Team, alice: User, run: Run) -> None:
    ready_version(team)
    trained, client = submit_run(team, named("qwen@1"), acting_user=alice), signed_in(alice)
    for of in (run, trained):
        of.checkpoints.create(step=40, path="p", size_bytes=10, seconds=1.0, at=timezone.now())
    assert 'id="promote-40"' not in text_of(client, f"/runs/{run.id}/parts/checkpoints")
    page = text_of(client, f"/runs/{trained.id}/parts/checkpoints")
    assert 'id="promote-40"' in page
    assert 'value="qwen"' in page
    answer = client.post(f"/runs/{trained.id}/checkpoints/40/promote", {"name": "qwen"})
    version = ModelVersion.objects.get(state="importing")
    assert answer.headers["Location"] == f"/models/versions/{version.id}/"
    missing = client.post(f"/runs/{trained.id}/checkpoints/41/promote", {"name": "qwen"}, follow=True)
    assert "no checkpoint of this step" in missing.content.decode()


def test_the_form_offers_the_teams_ready_versions(browser: Client, experiment: Experiment, charlie: User) -> None:
    ready_version(experiment.team)
    ready_version(charlie.memberships.get().team, "theirs")
    form = form_of(browser, experiment) | {"model.kind": "pretrained"}
    page = shown(browser, experiment, form)
    assert 'name="model.catalog"' in page
    assert '<option value="qwen@1">' in page
    assert "theirs@1" not in page
    changed = form | {"base": '{"name": "x", "model": {"kind": "pretrained"}}', "model.catalog": "qwen@1"}
    assert saved(browser, experiment, changed).model.catalog == "qwen@1"  # type: ignore[union-attr]


def test_the_form_offers_them_for_a_judge_too(browser: Client, experiment: Experiment) -> None:
    ready_version(experiment.team, "judge")
    asked = {"kind": "llm", "endpoint": "resources.judge", "model": "judge"}
    form = form_of(browser, experiment) | {"recipe.credit.kind": "attribution"}
    form = posted_by(shown(browser, experiment, form)) | {"recipe.credit.judge.kind": "llm"}
    form = posted_by(shown(browser, experiment, form)) | {"resources.judge": "on"}
    form |= {f"recipe.credit.judge.{name}": value for name, value in asked.items()}
    page = shown(browser, experiment, form)
    field = page.split('name="resources.judge.catalog"')[1].split(">")[0]
    assert 'list="ready-models"' in field
    assert '<option value="judge@1">' in page
    assert "exactly one of path and catalog, not 0" in about(page, "resources.judge.path")
    judge = saved(browser, experiment, form | {"resources.judge.catalog": "judge@1"}).resources.judge
    assert judge is not None
    assert (judge.path, judge.catalog) == (None, "judge@1")


def test_launching_with_a_version_that_is_gone_says_so_on_the_page(team: Team, alice: User) -> None:
    made = create_experiment(team, named("gone@1"), acting_user=alice)
    client = signed_in(alice)
    form = form_of(client, made) | {"action": "launch"}
    answer = client.post(f"/experiments/{made.id}/", form, follow=True)
    (message,) = answer.context["messages"]
    assert "model.catalog: Your team has no such version of a model" in str(message)
    assert "(you gave gone@1)" in str(message)
    assert not Run.objects.exists()


def test_a_launch_with_a_judge_that_is_gone_names_the_judge(team: Team, alice: User) -> None:
    ready_version(team, name="policy")
    made = create_experiment(team, judged_by(trained="policy@1", catalog="gone@1"), acting_user=alice)
    client = signed_in(alice)
    answer = client.post(f"/experiments/{made.id}/", form_of(client, made) | {"action": "launch"}, follow=True)
    (message,) = answer.context["messages"]
    assert "resources.judge.catalog: Your team has no such version of a model" in str(message)
    assert "policy@1" in str(message)


def test_an_experiment_begins_with_a_version(team: Team, alice: User, charlie: User) -> None:
    version = ready_version(team, context_tokens=2048)
    page = text_of(signed_in(alice), f"/models/versions/{version.id}/")
    assert 'href="/experiments/new?model=qwen%401"' in page
    form = text_of(signed_in(alice), "/experiments/new?model=qwen%401")
    assert 'value="qwen@1"' in form
    assert 'value="2048"' in form
    for strange in ("qwen@2", "qwen", "@", "qwen@x", "qwen@99999999999999"):
        assert signed_in(alice).get("/experiments/new", {"model": strange}).status_code == 404
    assert signed_in(charlie).get("/experiments/new", {"model": "qwen@1"}).status_code == 404


def test_somebody_with_two_teams_says_which(team: Team, alice: User) -> None:
    create_team("Second", acting_user=alice)
    client = signed_in(alice)
    assert 'name="team"' in text_of(client, "/models/new")
    for of, status in (("", 422), ("blue-team", 302), ("blue-team\0", 302), ("none", 404)):
        answer = client.post("/models/import", {"name": "qwen", "folder": "qwen", "team": of})
        assert answer.status_code == status, of
    unsaid = client.post("/models/import", {"name": "q", "folder": "qwen"}).content.decode()
    assert "name the team by its slug" in unsaid


def test_the_page_of_a_version_leads_to_the_models_others(team: Team, alice: User) -> None:
    versions = [ready_version(team, files={"config.json": b"{}" + b" " * number}) for number in range(22)]
    other = ready_version(team, "other")
    page = text_of(signed_in(alice), f"/models/versions/{versions[3].id}/")
    assert "Other versions" in page
    assert "qwen@1<" in page
    assert "qwen@22<" in page
    assert f"/models/versions/{other.id}/" not in page
    listed = text_of(signed_in(alice), "/models/")
    assert "The newest 20 of 22" in listed
    assert "qwen@22<" in listed
    assert "qwen@2<" not in listed
