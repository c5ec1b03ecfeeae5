"""A team's environments: checked, published, compared and begun with, by page, REST and command."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from engine.spec.environment import Household, PythonMath
from tests.webapp.at_once import at_once
from webapp.accounts.models import AuditEntry, Team, User
from webapp.catalog.environment_versions import changed_fields, environment_of_text, text_of
from webapp.catalog.models import Environment
from webapp.catalog.services import publish_environment
from webapp.refusals import Invalid, Refused

pytestmark = pytest.mark.django_db
HOUSE = {"id": "household", "levels": [1, 2], "max_turns": 9}
TERMINAL = {"id": "terminal", "catalog": "shell-basics@1"}
HOSTILE = "<script>alert(1)</script>"


def typed(document: dict[str, Any], **changes: str) -> dict[str, str]:
    return {"name": "house", "description": "", "environment": text_of(document), **changes}


def test_a_version_is_published_over_rest_checked_compared_and_never_changes(
    api_of: Callable[..., Any], bob: User, victor: User, charlie: User
) -> None:
    api = api_of(bob)
    checked = api.post("/environments/check", {"environment": HOUSE})
    assert (checked.status_code, checked.json()["environment"]["max_turns"]) == (200, 9)
    assert Environment.objects.count() == 0
    first = api.post("/environments", {"name": "house", "environment": HOUSE}).json()
    second = api.post(
        "/environments", {"name": "house", "environment": {**HOUSE, "max_turns": 12, "levels": [1, 2, 3]}}
    ).json()
    assert [first["version"], second["version"]] == [1, 2]
    found = api.get(f"/environments/{second['id']}/differences", before=first["id"]).json()["items"]
    assert found == [
        {"field": "levels.2", "before": "(absent)", "after": 3},
        {"field": "max_turns", "before": 9, "after": 12},
    ]
    assert api_of(victor).get(f"/environments/{first['id']}").json()["spec"]["max_turns"] == 9
    assert api_of(charlie).get(f"/environments/{first['id']}").status_code == 404
    assert api_of(charlie).get(f"/environments/{second['id']}/differences", before=first["id"]).status_code == 404
    assert AuditEntry.objects.filter(verb="environment.publish").count() == 2


def test_what_the_newest_version_says_is_not_published_again(api_of: Callable[..., Any], bob: User) -> None:
    api = api_of(bob)
    assert api.post("/environments", {"name": "house", "environment": HOUSE}).status_code == 201
    again = api.post("/environments", {"name": "house", "environment": HOUSE})
    assert (again.status_code, "house v1 says the same" in again.json()["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("environment", "fields"),
    [
        ({"id": "household", "levels": [9], "max_turns": 0}, {"environment.levels.0", "environment.max_turns"}),
        ({"id": "housold"}, {"environment.id"}),
        ({"levels": [1]}, {"environment.id"}),
        ({"id": "household", "colour": "red"}, {"environment.colour"}),
        ({"id": "import", "path": "os:system"}, {"environment.id"}),
        ({"id": "terminal", "tasks": "/etc"}, {"environment.tasks"}),
    ],
)
def test_every_problem_is_named_by_rest_and_on_the_page(
    api_of: Callable[..., Any], bob: User, client: Client, environment: dict[str, Any], fields: set[str]
) -> None:
    for path, body in (("/environments/check", {}), ("/environments", {"name": "x"})):
        answer = api_of(bob).post(path, {"environment": environment, **body})
        assert answer.status_code == 422
        problems = answer.json()["problems"]
        assert {problem["field"] for problem in problems} == fields
        assert all(problem["remedy"] for problem in problems)
    with pytest.raises(Invalid) as refusal:
        environment_of_text(text_of(environment))
    assert {problem.field for problem in refusal.value.problems} == fields
    client.force_login(bob)
    shown = client.post("/environments/new", typed(environment))
    assert shown.status_code == 422
    assert all(field in shown.content.decode() for field in fields)
    assert Environment.objects.count() == 0


def test_viewers_see_and_do_not_publish(api_of: Callable[..., Any], victor: User, client: Client) -> None:
    assert api_of(victor).post("/environments", {"name": "house", "environment": HOUSE}).status_code == 403
    client.force_login(victor)
    assert client.post("/environments/new", typed(HOUSE)).status_code in (403, 404, 422)
    assert Environment.objects.count() == 0


def test_a_page_defines_publishes_compares_and_begins_an_experiment(client: Client, team: Team, bob: User) -> None:
    client.force_login(bob)
    begun = client.get("/environments/new?kind=household").content.decode()
    assert "It can be used" in begun
    published = client.post("/environments/new", typed(HOUSE, description="Two rooms"))
    first = Environment.objects.get()
    assert (published.status_code, published["Location"]) == (302, f"/environments/{first.id}/")
    next_one = client.get(f"/environments/new?from={first.id}").content.decode()
    assert "max_turns = 9" in next_one
    client.post("/environments/new", typed({**HOUSE, "max_turns": 12}))
    second = Environment.objects.get(version=2)
    compared = client.get(f"/environments/{second.id}/?before={first.id}").content.decode()
    assert '<td class="mono">max_turns</td>' in compared
    form = client.get(f"/experiments/new?environment={second.id}").content.decode()
    assert "household" in form
    assert "house-first" in form


def test_an_experiment_of_just_these_settings_is_named(client: Client, api_of: Callable[..., Any], bob: User) -> None:
    made = api_of(bob).post("/environments", {"name": "house", "environment": HOUSE}).json()
    api_of(bob).post("/experiments", {"name": "in-the-house", "environment": HOUSE})
    api_of(bob).post("/experiments", {"name": "elsewhere", "environment": {"id": "sokoban"}})
    client.force_login(bob)
    page = client.get(f"/environments/{made['id']}/").content.decode()
    assert "in-the-house" in page
    assert "elsewhere" not in page


def test_versions_of_every_kind_are_listed(client: Client, team: Team, bob: User) -> None:
    for name, text in {
        "tasks": text_of(TERMINAL),
        "questions": '[environment]\nid = "qa"\n',
        "house": text_of(HOUSE),
    }.items():
        publish_environment(team, name, environment_of_text(text), acting_user=bob)
    client.force_login(bob)
    page = client.get("/environments/").content.decode()
    for name in ("tasks", "questions", "house"):
        assert f'aria-label="{name} v1 of' in page
    assert "shell-basics@1" in page


@pytest.mark.parametrize("address", ["/environments/new?from=x", "/environments/new?kind=none", "/environments/999/",
                                     "/environments/new?from=99999999999999999999", "/experiments/new?environment=-1",
                                     "/experiments/new?environment=999"])  # fmt: skip
def test_what_is_not_there_is_not_found(client: Client, bob: User, address: str) -> None:
    client.force_login(bob)
    assert client.get(address).status_code == 404


def test_another_teams_version_is_not_there(client: Client, team: Team, bob: User, charlie: User) -> None:
    version = publish_environment(team, "house", Household(), acting_user=bob)
    client.force_login(charlie)
    for address in (f"/environments/{version.id}/", f"/environments/new?from={version.id}",
                    f"/experiments/new?environment={version.id}"):  # fmt: skip
        assert client.get(address).status_code == 404


def test_names_and_texts_are_shown_as_text(client: Client, team: Team, bob: User) -> None:
    client.force_login(bob)
    client.post("/environments/new", typed(HOUSE, name=HOSTILE, description=HOSTILE))
    version = Environment.objects.get()
    for address in ("/environments/", f"/environments/{version.id}/", f"/environments/new?from={version.id}"):
        assert HOSTILE not in client.get(address).content.decode()
    answer = client.post("/environments/check", {"environment": f'[environment]\nid = "{HOSTILE}"\n'})
    assert HOSTILE not in answer.content.decode()


def test_the_check_says_what_it_comes_to_and_what_is_wrong(client: Client, bob: User) -> None:
    client.force_login(bob)
    good = client.post("/environments/check", {"environment": text_of(HOUSE)}).content.decode()
    assert "It can be used" in good
    bad = client.post("/environments/check", {"environment": "[environment\n"}).content.decode()
    assert "this is no TOML" in bad.replace("This", "this")


def test_a_command_publishes_a_file_and_refuses_in_the_same_words(team: Team, bob: User, tmp_path: Path) -> None:
    file, printed = tmp_path / "house.toml", StringIO()
    file.write_text(text_of(HOUSE))
    call_command("publish_environment", "house", file, team=team.slug, by=bob.email, stdout=printed)
    assert printed.getvalue() == "house v1 is published\n"
    for text, words in (
        (text_of(HOUSE), "says the same"),
        ('[environment]\nid = "household"\nmax_turns = 0\n', "environment.max_turns = 0"),
        ("no toml", "this is no TOML"),
        ("a." * 30000 + "a = 1", "line 1: a key of 30001 parts"),
        ("\na = " + "1" * 5000, "line 2: a number or word of 5000 characters"),
        ("a = " + "[" * 5000, "nested too deeply"),
        ("#" * (2**18 + 1), "more than 262144 characters"),
    ):
        file.write_text(text)
        with pytest.raises(CommandError, match=words):
            call_command("publish_environment", "house", file, team=team.slug, by=bob.email)
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("publish_environment", "house", tmp_path / "none", team=team.slug, by=bob.email)


def test_a_field_that_one_kind_does_not_have_is_absent_in_the_difference() -> None:
    before = Environment(spec=Household().model_dump(mode="json"))
    after = Environment(spec=PythonMath().model_dump(mode="json"))
    changed = {field.field: (field.before, field.after) for field in changed_fields(before, after)}
    assert changed["id"] == ("household", "python-math")
    assert changed["sandbox.network"][0] == "(absent)"


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"name": "n" * 101}, "name"), ({"description": "d" * 2001}, "description"), ({"name": "  "}, "name")],
)
def test_names_and_descriptions_are_refused_and_not_cut(
    client: Client, bob: User, team: Team, tmp_path: Path, changed: dict[str, str], field: str
) -> None:
    client.force_login(bob)
    shown = client.post("/environments/new", typed(HOUSE, **changed))
    assert (shown.status_code, f'<span class="mono">{field}</span>' in shown.content.decode()) == (422, True)
    given = {"name": "house", "description": "", **changed}
    with pytest.raises(Invalid) as refusal:
        publish_environment(team, given["name"].strip(), Household(), acting_user=bob, description=given["description"])
    assert refusal.value.problems[0].field == field
    assert Environment.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_two_who_publish_the_same_at_once_publish_it_once(team: Team, bob: User) -> None:
    def publish() -> str:
        try:
            return str(publish_environment(team, "house", Household(), acting_user=bob))
        except Refused:
            return "refused"

    assert sorted(at_once(publish, publish)) == ["house v1", "refused"]
