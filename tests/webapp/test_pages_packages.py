"""The pages of packages: what stands on them, who may press what, and that nothing of a stranger's file is markup."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from engine.spec.package_check import PackageReport
from tests.engine.environments.process.packages import write_package
from tests.webapp.packages import GOOD, published_package, stored_package
from webapp.accounts.models import Team, User
from webapp.catalog.models import EnvironmentPackage, PackageVersion

pytestmark = pytest.mark.django_db
HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    write_package(tmp_path / "imports" / "own")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text_of(client: Client, path: str, status: int = 200, **options: Any) -> str:
    answer = client.get(path, **options)
    assert answer.status_code == status
    return answer.content.decode()


def page(version: PackageVersion, query: str = "") -> str:
    return f"/packages/versions/{version.id}/{query}"


def test_an_empty_list_says_what_to_do_and_to_whom(team: Team, alice: User, victor: User) -> None:
    assert "Add a package" in text_of(signed_in(alice), "/packages/")
    assert "An owner or member of your team can do that" in text_of(signed_in(victor), "/packages/")


def test_a_folder_of_the_server_is_imported_by_the_form(team: Team, alice: User) -> None:
    client = signed_in(alice)
    assert 'value="own"' in text_of(client, "/packages/new")
    answer = client.post("/packages/import", {"name": "game", "folder": "own"})
    version = PackageVersion.objects.get()
    assert answer["Location"] == page(version)
    wrong = client.post("/packages/import", {"name": "game", "folder": "../own"})
    assert wrong.status_code == 422
    assert PackageVersion.objects.count() == 1


def test_faults_stand_on_the_page_with_remedy_and_without_markup(team: Team, alice: User, charlie: User) -> None:
    fault = {"field": f"src/{HOSTILE}", "value": HOSTILE, "message": "a symbolic link", "remedy": "put a copy there"}
    version = PackageVersion.objects.create(
        package=EnvironmentPackage.objects.create(team=team, name="bad"), origin={"kind": "folder", "path": "own"},
        state="failed", faults=7, problems=[fault], problem=fault,
    )  # fmt: skip
    text = text_of(signed_in(alice), page(version))
    assert "7 faults; nothing was kept" in text
    assert "Put a copy there" in text
    assert HOSTILE not in text
    text_of(signed_in(charlie), page(version), 404)
    assert "a symbolic link" in text_of(signed_in(alice), "/packages/")


def test_what_playing_has_shown_stands_on_the_page_as_text(team: Team, alice: User) -> None:
    report = GOOD.model_copy(update={"tools": ["look", HOSTILE], "notes": [HOSTILE], "faults": [HOSTILE]})
    text = text_of(signed_in(alice), page(stored_package(team, report=report)))
    assert "16 episodes played" in text
    assert "A run could not use it" in text
    assert HOSTILE not in text
    assert "/publish" not in text


def test_a_check_is_begun_with_what_was_typed_and_shown_while_it_goes_on(team: Team, alice: User, victor: User) -> None:
    version, client = stored_package(team), signed_in(alice)
    assert "not played yet" in text_of(client, page(version))
    typed = {"options": '{"every": 5}', "memory_mib": "256", "call_timeout_s": "2.5", "entry": ""}
    client.post(page(version, "check"), typed)
    version.refresh_from_db()
    assert version.state == "checking"
    assert version.check_settings["process"]["call_timeout_s"] == 2.5
    shown = text_of(client, page(version))
    assert 'hx-trigger="every 2s"' in shown
    assert "Stop the check" in shown
    assert "Stop the check" not in text_of(signed_in(victor), page(version))
    assert signed_in(victor).post(page(version, "check"), typed).status_code == 403


def test_a_bad_check_is_refused_on_the_page_with_its_field(team: Team, alice: User) -> None:
    version, client = stored_package(team), signed_in(alice)
    answer = client.post(page(version, "check"), {"options": "[1]"}, follow=True)
    assert "No JSON object" in answer.text
    version.refresh_from_db()
    assert version.state == "stored"


def test_publishing_is_offered_without_faults_and_to_those_who_may(team: Team, alice: User, victor: User) -> None:
    good, bad = stored_package(team, report=GOOD), stored_package(team, "bad", report=PackageReport(faults=["x"]))
    publish = f"{page(good)}publish"
    assert publish in text_of(signed_in(alice), page(good))
    assert "/publish" not in text_of(signed_in(alice), page(bad))
    assert "/publish" not in text_of(signed_in(victor), page(good))
    answer = signed_in(alice).post(publish, follow=True)
    assert "game@1 is published" in answer.text


def test_an_environment_and_an_experiment_begin_with_a_published_version(team: Team, alice: User) -> None:
    version = published_package(team)
    client = signed_in(alice)
    begun = text_of(client, f"/environments/new?package={version.id}")
    assert "catalog = &quot;game@1&quot;" in begun
    assert "nothing says" not in begun
    text_of(client, f"/environments/new?package={stored_package(team, 'raw').id}", 404)
    answer = client.post("/experiments/new", {"as": "toml", "action": "show", "toml": 'name = "x"'})
    assert "game@1" in answer.text


def test_a_version_is_compared_and_deleted_by_its_name(team: Team, alice: User) -> None:
    before, after = published_package(team), published_package(team, version="2.0")
    client = signed_in(alice)
    assert "pyproject.toml" in text_of(client, page(after, f"?before={before.id}"))
    client.post(page(after, "delete"), {"name": "game@9"})
    assert PackageVersion.objects.count() == 2
    client.post(page(after, "delete"), {"name": "game@2"})
    assert PackageVersion.objects.get() == before
