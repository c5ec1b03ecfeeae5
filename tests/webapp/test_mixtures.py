"""What the service does not take as a part of a mixture is refused under that part's own field."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from webapp.accounts.models import User
from webapp.experiments.models import Experiment

pytestmark = pytest.mark.django_db
SUMS: dict[str, Any] = {"name": "sums", "weight": 3, "environment": {"id": "python-math", "levels": [1]}}
HOUSE: dict[str, Any] = {"name": "house", "environment": {"id": "household", "levels": [1]}}
SHELL = {"name": "shell", "environment": {"id": "terminal", "catalog": "shell-basics@1"}}
AGENT = {
    "id": "agent", "tasks": {"id": "terminal", "catalog": "shell-basics@1"},
    "agent": {"command": ["a"], "folder": {"path": "/srv/agent"}},
}  # fmt: skip


def mixed(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"name": "mixed", "environment": {"id": "mixture", "parts": list(parts)}}


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"id": "import", "path": "os:system"}, "id"),
        ({"id": "package", "path": "/srv/package"}, "id"),
        ({"id": "terminal", "tasks": "/etc"}, "tasks"),
        (AGENT, "agent.folder.path"),
        ({"id": "household", "levels": [77]}, "levels.0"),
        ({"id": "mixture", "parts": [SUMS, HOUSE]}, "id"),
    ],
)
def test_a_part_is_refused_under_its_own_field(
    api_of: Callable[..., Any], bob: User, part: dict[str, Any], field: str
) -> None:
    answer = api_of(bob).post("/experiments", mixed(SUMS, {"name": "other", "environment": part}))
    assert answer.status_code == 422
    assert [problem["field"] for problem in answer.json()["problems"]] == [f"environment.parts.1.environment.{field}"]
    assert Experiment.objects.count() == 0


def test_one_version_of_tasks_may_stand_in_several_parts_and_two_may_not(api_of: Callable[..., Any], bob: User) -> None:
    same = SHELL | {"name": "again", "weight": 2}
    other = {"name": "other", "environment": {"id": "terminal", "catalog": "git-basics@2"}}
    assert api_of(bob).post("/experiments", mixed(SHELL, same)).status_code == 201
    answer = api_of(bob).post("/experiments", mixed(SHELL, HOUSE, other))
    [problem] = answer.json()["problems"]
    assert (answer.status_code, problem["field"]) == (422, "environment.parts.2.environment.catalog")
    assert "shell-basics@1" in problem["message"]


def test_the_pages_of_an_experiment_and_its_environments_show_a_mixture(
    api_of: Callable[..., Any], bob: User, client: Client
) -> None:
    made = api_of(bob).post("/experiments", mixed(SUMS, HOUSE)).json()
    client.force_login(bob)
    for address in (f"/experiments/{made['id']}/", f"/experiments/{made['id']}/?as=toml", "/experiments/",
                    "/environments/"):  # fmt: skip
        assert client.get(address).status_code == 200
    assert "sums" in client.get(f"/experiments/{made['id']}/").content.decode()
