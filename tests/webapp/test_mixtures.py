"""What the service does not take as a part of a mixture is refused under that part's own field."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from engine.spec.run import RunSpec
from webapp.accounts.models import User
from webapp.experiments.models import Experiment
from webapp.runs.models import Run
from webapp.trajectories.models import Trajectory

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


def test_trajectories_of_a_mixture_are_listed_by_part(
    api_of: Callable[..., Any], bob: User, client: Client, run: Run
) -> None:
    run.spec = RunSpec.model_validate(mixed(SUMS, HOUSE)).model_dump(mode="json")
    run.save()
    for seq, part in enumerate(["sums", "house", "sums"]):
        Trajectory.objects.create(
            run=run, trajectory_id=f"train-{seq}-0", seq=seq, purpose="train", prompt=seq, member=0, part=part,
            sampled_at_version=0, level=1, success=True, reward=1, tool_calls=0, tool_errors=0, turns=1, tokens=4,
            stop_reason="answered",
        )  # fmt: skip
    api, here = api_of(bob), f"/runs/{run.id}/trajectories"
    listed = api.get(here, part="sums").json()["items"]
    assert [(found["id"], found["part"]) for found in listed] == [("train-2-0", "sums"), ("train-0-0", "sums")]
    client.force_login(bob)
    whole = client.get(f"{here}/").text
    assert "Any part" in whole
    only = client.get(f"{here}/?part=house").text
    assert ("train-1-0" in only, "train-0-0" in only) == (True, False)
    assert "part=house" in only
    assert "train-0-0" in client.get(f"{here}/?part=%27%3B").text


def test_a_run_without_parts_offers_none(bob: User, client: Client, run: Run) -> None:
    client.force_login(bob)
    assert "Any part" not in client.get(f"/runs/{run.id}/trajectories/").text
