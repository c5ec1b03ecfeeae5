"""What whoever runs the service has not allowed is refused when it is named, and once more by the job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.launch.job import launch_from_file
from engine.launch.preflight import BadSpec
from engine.spec.launch import Launch
from engine.spec.mixture import Mixture
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team
from webapp.foreign_code import allowed_by_settings, refuse_code_to_import
from webapp.refusals import Invalid
from webapp.runs.models import Run
from webapp.runs.services import submit_run
from workers import launch

pytestmark = pytest.mark.django_db
SERVER = "http://10.0.0.5:30000"
JUDGE = "https://judge.example.org/v1"
VARIABLE = "PALESTRA_JUDGE_PROD"
ELSEWHERE = [
    "http://attacker.example/v1",
    "http://127.0.0.1/v1",
    "http://2130706433/v1",
    "http://0x7f000001/v1",
    "http://[::ffff:127.0.0.1]/v1",
    "http://169.254.169.254/v1",
    "http://judge.example.org/v1",
    "https://judge.example.org:8443/v1",
    "https://judge.example.org/v1/other",
    "https://judge.example.org.attacker.example/v1",
]


@pytest.fixture
def team(user: User) -> Team:
    return create_team("Blue", acting_user=user)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PALESTRA_RUNS, settings.PALESTRA_MODELS = tmp_path / "runs", tmp_path / "models"
    monkeypatch.setenv("PALESTRA_MODELS", str(tmp_path / "models"))
    settings.PALESTRA_EXCHANGE = "/shared/weights"
    settings.PALESTRA_JUDGES, settings.PALESTRA_SGLANG_URLS = [JUDGE], [SERVER]


def served(**sglang: Any) -> RunSpec:
    model = {"kind": "pretrained", "path": "tiny"}
    return RunSpec.model_validate({"name": "x", "model": model, "resources": {"generator": "sglang", "sglang": sglang}})


def judged(endpoint: str, **judge: Any) -> RunSpec:
    """A run whose turns are judged."""
    asked = {"kind": "llm", "endpoint": endpoint, "model": "m"} | judge
    return RunSpec.model_validate({"name": "x", "recipe": {"credit": {"kind": "attribution", "judge": asked}}})


def graded(endpoint: str, **judge: Any) -> RunSpec:
    """A run whose answers are judged by a rubric, in one of two environments."""
    asked = {"endpoint": endpoint, "model": "m"} | judge
    verifier = {"kind": "rubric", "rubric": "Courtesy.", "judge": asked}
    polite = {"name": "polite", "environment": {"id": "qa", "verifier": verifier}}
    parts = [{"name": "house", "environment": {"id": "household"}}, polite]
    rows = {"catalog": "questions@1"}
    return RunSpec.model_validate({"name": "x", "environment": {"id": "mixture", "parts": parts}, "dataset": rows})


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


@pytest.mark.parametrize("endpoint", ELSEWHERE)
def test_no_judge_is_asked_that_was_not_allowed(team: Team, endpoint: str) -> None:
    [problem] = refused(team, judged(endpoint, api_key_variable=VARIABLE))
    assert (problem.field, problem.value) == ("recipe.credit.judge.endpoint", endpoint)
    assert "PALESTRA_JUDGES" in problem.remedy


def test_a_judge_is_asked_until_the_setting_changes(team: Team, settings: Any) -> None:
    path = launched(team, judged(f"{JUDGE}/"))
    assert launch_from_file(path).spec.recipe == judged(f"{JUDGE}/").recipe
    settings.PALESTRA_JUDGES = []
    with pytest.raises(BadSpec, match=r"recipe\.credit\.judge\.endpoint = .*PALESTRA_JUDGES"):
        launch_from_file(launch._write_launch_file(Run.objects.get()))


def test_a_judge_of_a_rubric_is_one_like_the_others(team: Team) -> None:
    spec = graded(ELSEWHERE[0])
    [problem] = refused(team, spec)
    assert (problem.field, problem.value) == ("environment.parts.1.environment.verifier.judge.endpoint", ELSEWHERE[0])
    assert isinstance(spec.environment, Mixture)
    with pytest.raises(Invalid) as refusal:
        refuse_code_to_import(spec.environment.parts[1].environment)
    assert [problem.field for problem in refusal.value.problems] == ["environment.verifier.judge.endpoint"]


@pytest.mark.parametrize("urls", [["http://127.0.0.1:30000"], [SERVER, "http://169.254.169.254"]])
def test_no_sglang_server_is_asked_that_was_not_allowed(team: Team, urls: list[str]) -> None:
    [problem] = refused(team, served(urls=urls, weights="tensor"))
    assert (problem.field, problem.value) == ("resources.sglang.urls", urls[-1])
    assert "PALESTRA_SGLANG_URLS" in problem.remedy


def test_an_sglang_server_is_asked_until_the_setting_changes(team: Team, settings: Any) -> None:
    path = launched(team, served(urls=[SERVER], weights="tensor"))
    assert launch_from_file(path).spec.resources.sglang.urls == [SERVER]
    settings.PALESTRA_SGLANG_URLS = []
    with pytest.raises(BadSpec, match=r"resources\.sglang\.urls = .*PALESTRA_SGLANG_URLS"):
        launch_from_file(launch._write_launch_file(Run.objects.get()))


@pytest.mark.parametrize("spec_with", [judged, graded])
def test_a_key_without_its_address_ends_the_job_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec_with: Callable[..., RunSpec]
) -> None:
    path, spec = tmp_path / "attempt-1.json", spec_with(JUDGE, api_key_variable=VARIABLE)
    allowed, run_dir = allowed_by_settings(), str(tmp_path)
    document = Launch(run_id="r", attempt=1, spec=spec, ingest_url="u", token="t", run_dir=run_dir, allowed=allowed)
    path.write_text(document.model_dump_json())
    monkeypatch.setenv(VARIABLE, "sk-operators-own-key")
    with pytest.raises(BadSpec, match=rf"api_key_variable = '{VARIABLE}': .*{JUDGE}=KEY") as refusal:
        launch_from_file(path)
    assert "sk-operators" not in str(refusal.value)


def test_a_key_with_its_address_is_of_no_hindrance(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{JUDGE}=sk-operators-own-key")
    path = launched(team, judged(JUDGE, api_key_variable=VARIABLE))
    assert launch_from_file(path).spec.recipe == judged(JUDGE, api_key_variable=VARIABLE).recipe
