"""Trying and deleting a team's environments: by page, REST and command, through one service."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from engine.spec.environment import Household
from tests.webapp.datasets import ready_dataset
from webapp.accounts.models import AuditEntry, Team, User
from webapp.catalog.environment_versions import environment_of_text, text_of
from webapp.catalog.models import Environment
from webapp.catalog.services import publish_environment
from webapp.experiments.models import Experiment
from webapp.runs.models import Run, RunStatus

pytestmark = pytest.mark.django_db
RATE = {"success": 1.0, "low": 0.7, "high": 1.0, "episodes": 10}
NEVER = {"success": 0.0, "low": 0.0, "high": 0.3, "episodes": 10}
SCRIPT = '{"call": "go", "arguments": {"to": "kitchen"}}\r\n{"answer": "done"}'


@pytest.fixture
def house(team: Team, bob: User) -> Environment:
    return publish_environment(team, "house", Household(levels=[1]), acting_user=bob)


def over(run_id: str, **rates: Any) -> Run:
    run = Run.objects.get(id=run_id)
    run.state, run.summary = RunStatus.SUCCEEDED, {"evaluation": rates}
    run.save()
    return run


def test_a_version_is_tried_over_rest_and_its_tries_tell_who_succeeded(
    api_of: Callable[..., Any], bob: User, house: Environment
) -> None:
    api = api_of(bob)
    begun = api.post(f"/environments/{house.id}/tries", {})
    assert (begun.status_code, begun.json()["state"]) == (201, "queued")
    run = Run.objects.get()
    assert run.spec["environment"] == house.spec
    assert run.spec["evaluation"]["players"] == ["oracle", "nop"]
    assert (run.total_steps, run.spec["recipe"]["objective"]["kind"]) == (0, "evaluation")
    [waiting] = api.get(f"/environments/{house.id}/tries").json()["items"]
    assert (waiting["played"], waiting["doubts"]) == ([], [])
    over(str(run.id), oracle=RATE, nop=NEVER)
    [fine] = api.get(f"/environments/{house.id}/tries").json()["items"]
    assert [(one["player"], one["success"]) for one in fine["played"]] == [("oracle", 1.0), ("nop", 0.0)]
    assert fine["doubts"] == []
    over(str(run.id), oracle=NEVER, nop=RATE)
    [wrong] = api.get(f"/environments/{house.id}/tries").json()["items"]
    assert wrong["doubts"] == ["its own solution does not always succeed", "doing nothing succeeds now and then"]
    assert AuditEntry.objects.filter(verb="environment.try").count() == 1


def test_a_draft_is_tried_and_its_tries_stand_on_the_version_that_it_becomes(
    api_of: Callable[..., Any], bob: User, client: Client
) -> None:
    document = Household(levels=[2]).model_dump(mode="json")
    tried = api_of(bob).post("/environments/tries", {"environment": document, "wanted": {"tasks": 3}})
    assert tried.status_code == 201
    assert Environment.objects.count() == 0
    version = api_of(bob).post("/environments", {"name": "house", "environment": document}).json()
    [found] = api_of(bob).get(f"/environments/{version['id']}/tries").json()["items"]
    assert found["run"]["id"] == tried.json()["id"]
    client.force_login(bob)
    typed = {"name": "a/b <x>", "description": "", "environment": text_of(document)}
    answer = client.post("/environments/try", typed)
    newest = Run.objects.order_by("-number").first()
    assert newest is not None
    assert (answer.status_code, answer["Location"]) == (302, f"/runs/{newest.id}/")
    assert newest.name == "Try a-b -x-"
    wrong = client.post("/environments/try", {**typed, "environment": "[environment]\nid = 'household'\nlevels = [9]"})
    assert (wrong.status_code, "environment.levels.0" in wrong.content.decode()) == (422, True)


def test_a_page_tries_with_a_script_and_shows_what_came_of_it(client: Client, bob: User, house: Environment) -> None:
    client.force_login(bob)
    page = f"/environments/{house.id}/"
    assert "Nobody has tried it" in client.get(page).content.decode()
    posted = {"players": ["script", "nop"], "script": SCRIPT, "tasks": "4", "model": "ignored@1"}
    assert client.post(f"{page}try", posted).status_code == 302
    run = Run.objects.get()
    assert run.spec["evaluation"]["script"] == SCRIPT.replace("\r\n", "\n")
    assert 'hx-trigger="every 2s"' in client.get(page).content.decode()
    part = client.get(page, headers={"HX-Request": "true"}).content.decode()
    assert part.lstrip().startswith('<section class="card" id="tries"')
    over(str(run.id), script=RATE, nop=NEVER)
    shown = client.get(page).content.decode()
    assert "The script: <b>100" in shown
    assert 'hx-trigger="every 2s"' not in shown


@pytest.mark.parametrize(("wanted", "field"), [
    ({"players": []}, "players"), ({"players": ["oracle", "oracle"]}, "evaluation.players"), ({"tasks": 0}, "tasks"),
    ({"players": ["script"]}, "evaluation.script"), ({"players": ["script"], "script": "{"}, "evaluation.script"),
    ({"model": "mine@1"}, "model"), ({"players": ["model"], "model": "mine@1"}, "model.catalog"),
    ({"dataset": "rows@1"}, "dataset"), ({"sandboxes": 3}, "sandboxes")])  # fmt: skip
def test_a_try_that_cannot_be_begun_names_its_field(
    api_of: Callable[..., Any], bob: User, house: Environment, wanted: dict[str, Any], field: str
) -> None:
    answer = api_of(bob).post(f"/environments/{house.id}/tries", wanted)
    assert answer.status_code == 422
    assert [problem["field"] for problem in answer.json()["problems"]] == [field]
    assert Run.objects.count() == 0


def test_an_environment_over_rows_is_tried_on_a_version_and_on_no_more_rows_than_it_has(
    api_of: Callable[..., Any], team: Team, bob: User
) -> None:
    dataset = ready_dataset(team)
    environment = environment_of_text('[environment]\nid = "qa"\n')
    version = publish_environment(team, "questions", environment, acting_user=bob)
    missing = api_of(bob).post(f"/environments/{version.id}/tries", {})
    assert (missing.status_code, missing.json()["problems"][0]["field"]) == (422, "dataset.catalog")
    wanted = {"dataset": str(dataset), "tasks": 900}
    without = api_of(bob).post(f"/environments/{version.id}/tries", wanted)
    assert (without.status_code, "no rows that are held out" in str(without.json()["problems"])) == (422, True)
    dataset.splits = [{"name": name, "rows": 7, "bytes": 99} for name in ("heldout", "train")]
    dataset.save()
    begun = api_of(bob).post(f"/environments/{version.id}/tries", wanted)
    assert begun.status_code == 201
    run = Run.objects.get()
    assert (run.dataset_version, run.spec["evaluation"]["tasks"]) == (dataset, 7)


def test_viewers_and_strangers_neither_try_nor_delete(
    api_of: Callable[..., Any], victor: User, charlie: User, house: Environment, client: Client
) -> None:
    assert api_of(victor).post(f"/environments/{house.id}/tries", {}).status_code == 403
    assert api_of(victor).client.delete(f"/api/v1/environments/{house.id}").status_code == 403
    assert api_of(charlie).post(f"/environments/{house.id}/tries", {}).status_code == 404
    assert api_of(charlie).get(f"/environments/{house.id}/tries").status_code == 404
    assert api_of(charlie).client.delete(f"/api/v1/environments/{house.id}").status_code == 404
    client.force_login(charlie)
    assert client.post(f"/environments/{house.id}/try", {"players": ["nop"]}).status_code == 404
    assert client.post(f"/environments/{house.id}/delete", {"name": "house v1"}).status_code == 404
    assert Run.objects.count() == 0
    assert Environment.objects.get().deleted_at is None


def test_what_runs_and_experiments_depend_on_is_not_deleted_and_they_are_named(
    api_of: Callable[..., Any], bob: User, house: Environment
) -> None:
    api = api_of(bob)
    run = api.post(f"/environments/{house.id}/tries", {}).json()
    experiment = api.post("/experiments", {"name": "in-the-house", "environment": house.spec}).json()
    refused = api.client.delete(f"/api/v1/environments/{house.id}")
    assert refused.status_code == 409
    assert {problem["value"] for problem in refused.json()["problems"]} == {run["id"], experiment["id"]}
    assert "in-the-house" in str(refused.json()["problems"])
    over(run["id"])
    Experiment.objects.all().delete()
    assert api.client.delete(f"/api/v1/environments/{house.id}").status_code == 204


def test_a_deleted_version_is_shown_to_nobody_and_its_number_is_never_given_again(
    api_of: Callable[..., Any], team: Team, bob: User, house: Environment, client: Client
) -> None:
    api = api_of(bob)
    client.force_login(bob)
    mistyped = client.post(f"/environments/{house.id}/delete", {"name": "house"}, follow=True)
    assert "another name was typed" in mistyped.content.decode()
    deleted = client.post(f"/environments/{house.id}/delete", {"name": "house v1"}, follow=True)
    assert "house v1 is deleted" in deleted.content.decode()
    assert api.get(f"/environments/{house.id}").status_code == 404
    assert client.get(f"/environments/{house.id}/").status_code == 404
    assert client.get(f"/environments/new?from={house.id}").status_code == 404
    assert api.get("/environments").json()["items"] == []
    assert api.client.delete(f"/api/v1/environments/{house.id}").status_code == 404
    assert publish_environment(team, "house", Household(levels=[1]), acting_user=bob).version == 2
    assert AuditEntry.objects.filter(verb="environment.delete").count() == 1


def test_the_command_tries_the_newest_version_that_is_there(
    team: Team, bob: User, house: Environment, tmp_path: Path
) -> None:
    printed = StringIO()
    (tmp_path / "script.jsonl").write_text(SCRIPT)
    by = {"team": team.slug, "by": bob.email, "stdout": printed}
    call_command("try_environment", "house", players="nop,script", script=tmp_path / "script.jsonl", **by)
    assert "house v1 is being tried by run 1" in printed.getvalue()
    assert Run.objects.get().spec["evaluation"]["players"] == ["nop", "script"]
    for wrong, why in (({"players": "human"}, "players"), ({"number": 7}, "no such version"),
                       ({"script": tmp_path / "none"}, "cannot be read"), ({"tasks": "many"}, "tasks")):  # fmt: skip
        with pytest.raises(CommandError, match=why):
            call_command("try_environment", "house", **by, **wrong)


def test_the_page_asks_again_for_tries_alone(client: Client, bob: User, house: Environment) -> None:
    client.force_login(bob)
    client.post(f"/environments/{house.id}/try", {"players": ["nop"], "tasks": "3"})
    shown = client.get(f"/environments/{house.id}/", headers={"HX-Request": "true"})
    assert shown.templates[0].name == "environments/tries.html"
    assert "every 2s" in shown.text


def test_a_version_of_a_form_that_is_read_no_more_is_shown_and_said_to_be(
    client: Client, bob: User, house: Environment
) -> None:
    Environment.objects.filter(id=house.id).update(spec={"id": "household", "levels": [1], "curtains": 3})
    client.force_login(bob)
    listed = client.get("/environments/")
    assert (listed.status_code, "a form that is read no more" in listed.text) == (200, True)
    assert "curtains = 3" in client.get(f"/environments/{house.id}/").text
