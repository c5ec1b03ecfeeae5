"""What whoever runs the service has not allowed is refused when it is named, and once more by the job."""

from pathlib import Path
from typing import Any

import pytest

from engine.launch.job import launch_from_file
from engine.launch.preflight import BadSpec
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team
from webapp.refusals import Invalid
from webapp.runs.models import Run
from webapp.runs.services import submit_run
from workers import launch

pytestmark = pytest.mark.django_db
SERVER = "http://10.0.0.5:30000"


@pytest.fixture
def team(user: User) -> Team:
    return create_team("Blue", acting_user=user)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PALESTRA_RUNS, settings.PALESTRA_MODELS = tmp_path / "runs", tmp_path / "models"
    monkeypatch.setenv("PALESTRA_MODELS", str(tmp_path / "models"))
    settings.PALESTRA_EXCHANGE = "/shared/weights"


def served(**sglang: Any) -> RunSpec:
    model = {"kind": "pretrained", "path": "tiny"}
    return RunSpec.model_validate({"name": "x", "model": model, "resources": {"generator": "sglang", "sglang": sglang}})


def refused(team: Team, spec: RunSpec) -> list[Problem]:
    with pytest.raises(Invalid) as refusal:
        submit_run(team, spec, acting_user=team.memberships.get().user)
    assert not Run.objects.exists()
    return list(refusal.value.problems)


def launched(team: Team, spec: RunSpec) -> Path:
    return launch._write_launch_file(submit_run(team, spec, acting_user=team.memberships.get().user))


@pytest.mark.parametrize(
    "folder",
    [
        "/etc/palestra",
        "/shared/weights",
        "/shared/weights/../runs",
        "/shared/weights-of-others",
        "//shared/weights/x",
        "weights",
        "/",
    ],
)
def test_weights_are_handed_over_below_the_folder_of_the_setting_alone(team: Team, folder: str) -> None:
    [problem] = refused(team, served(exchange_folder=folder))
    assert (problem.field, problem.value) == ("resources.sglang.exchange_folder", folder)
    assert "below /shared/weights" in problem.remedy


def test_a_folder_below_the_settings_is_taken_until_the_setting_changes(team: Team, settings: Any) -> None:
    spec = served(exchange_folder="/shared/weights/blue")
    path = launched(team, spec)
    assert launch_from_file(path).spec.resources == spec.resources
    settings.PALESTRA_EXCHANGE = None
    run = Run.objects.get()
    with pytest.raises(BadSpec, match=r"exchange_folder = '/shared/weights/blue': .*PALESTRA_EXCHANGE"):
        launch_from_file(launch._write_launch_file(run))
    run.delete()
    [problem] = refused(team, spec)
    assert "PALESTRA_EXCHANGE" in problem.remedy
