"""The pages of task sets: what stands on them, who may press what, and that nothing of a stranger's file is markup."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from tests.engine.environments.terminal.tasks import write_task
from tests.webapp.task_sets import OK, published_tasks, stored_tasks
from webapp.accounts.models import Team, User
from webapp.catalog.models import TaskSet, TaskSetVersion

pytestmark = pytest.mark.django_db
HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    write_task(tmp_path / "imports" / "own", "copy")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text_of(client: Client, path: str, status: int = 200, **options: Any) -> str:
    answer = client.get(path, **options)
    assert answer.status_code == status
    return answer.content.decode()


def page(version: TaskSetVersion, query: str = "") -> str:
    return f"/task-sets/versions/{version.id}/{query}"


def test_an_empty_list_says_what_to_do_and_to_whom(team: Team, alice: User, victor: User) -> None:
    assert "Add tasks" in text_of(signed_in(alice), "/task-sets/")
    assert "An owner or member of your team can do that" in text_of(signed_in(victor), "/task-sets/")


def test_faults_stand_on_the_page_with_file_and_remedy_and_without_markup(
    team: Team, alice: User, charlie: User
) -> None:
    fault = {"field": f"copy/{HOSTILE}", "value": HOSTILE, "message": "a symbolic link", "remedy": "put a copy there"}
    version = TaskSetVersion.objects.create(
        task_set=TaskSet.objects.create(team=team, name="bad"), origin={"kind": "folder", "path": "own"},
        state="failed", faults=7, problems=[fault], problem=fault,
    )  # fmt: skip
    text = text_of(signed_in(alice), page(version))
    assert "7 faults; nothing was kept" in text
    assert "Put a copy there" in text
    assert HOSTILE not in text
    text_of(signed_in(charlie), page(version), 404)
    assert "a symbolic link" in text_of(signed_in(alice), "/task-sets/")


def test_a_check_is_shown_while_it_goes_on_with_notes_as_text(team: Team, alice: User) -> None:
    tasks = {"a": OK, "b": {"oracle": [None], "nop": [0.0]}, "c": {"oracle": [], "nop": [0.0]}}
    version = stored_tasks(team, tasks=tasks, note=HOSTILE, state="checking")
    text = text_of(signed_in(alice), page(version))
    assert "5 of 6 trials" in text
    assert 'hx-trigger="every 2s"' in text
    assert "verifier-fails" in text
    assert HOSTILE not in text
    assert "Stop the check" in text
    only = text_of(signed_in(alice), page(version, "?status=unchecked"))
    assert '<span class="mono">c</span>' in only
    assert '<span class="mono">a</span>' not in only


def test_a_waiting_check_says_why(team: Team, alice: User) -> None:
    version = stored_tasks(team, state="checking", waiting_for="the image swe-a cannot be pulled")
    text = text_of(signed_in(alice), page(version))
    assert "The image swe-a cannot be pulled" in text
    assert "Waiting" in text


def test_publishing_is_offered_when_every_task_is_ok_and_to_those_who_may(
    team: Team, alice: User, victor: User
) -> None:
    good = stored_tasks(team)
    bad = stored_tasks(team, "bad", {"a": {"oracle": [0.0], "nop": [0.0]}})
    publish = f"{page(good)}publish"
    assert publish in text_of(signed_in(alice), page(good))
    assert "/publish" not in text_of(signed_in(alice), page(bad))
    assert "/publish" not in text_of(signed_in(victor), page(good))
    assert signed_in(victor).post(publish).status_code == 403
    refused = signed_in(alice).post(f"{page(bad)}publish", follow=True).content.decode()
    assert "A: its trials say: oracle-fails" in refused
    assert "shell@1 is published" in signed_in(alice).post(publish, follow=True).content.decode()
    assert 'environment.catalog = "shell@1"' in text_of(signed_in(alice), page(good))


def test_a_check_is_begun_with_what_was_typed_or_refused_in_words(team: Team, alice: User) -> None:
    version, client = stored_tasks(team), signed_in(alice)
    form = {"repeat": "0", "backend": "namespaces", "memory_mib": "1024", "disk_mib": "64"}
    assert "repeat" in client.post(f"{page(version)}check", form, follow=True).content.decode()
    version.refresh_from_db()
    assert version.state == "stored"
    client.post(f"{page(version)}check", form | {"repeat": "2", "memory_mib": "2048"})
    version.refresh_from_db()
    assert (version.state, version.check_wanted and version.check_wanted.sandbox.memory_mib) == ("checking", 2048)


def test_versions_are_compared_and_deleted_by_name(team: Team, alice: User) -> None:
    before, version = stored_tasks(team, tasks={"a": OK}), published_tasks(team, tasks={"a": OK, "b": OK})
    client = signed_in(alice)
    assert "Added: " in text_of(client, page(version, f"?before={before.id}"))
    client.post(f"{page(version)}delete", {"name": "other"})
    assert TaskSetVersion.objects.filter(id=version.id).exists()
    client.post(f"{page(version)}delete", {"name": "shell@1"})
    assert not TaskSetVersion.objects.filter(id=version.id).exists()


def test_importing_and_refusals_stand_at_their_fields(team: Team, alice: User, victor: User) -> None:
    client = signed_in(alice)
    refused = client.post("/task-sets/import", {"name": ".x", "folder": "own"})
    assert refused.status_code == 422
    assert "begins with no dot" in refused.content.decode()
    taken = client.post("/task-sets/import", {"name": "x", "folder": "own"})
    assert taken["Location"] == page(TaskSetVersion.objects.get())
    assert signed_in(victor).post("/task-sets/import", {"name": "x", "folder": "own"}).status_code == 403
