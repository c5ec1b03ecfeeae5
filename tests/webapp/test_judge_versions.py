"""A judge out of the catalog, met by people who read the documentation alone: odd names, other teams, other times."""

import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from engine.launch.preflight import BadSpec, with_pinned_model
from engine.spec.run import RunSpec
from tests.webapp.at_once import at_once
from tests.webapp.datasets import ready_dataset
from tests.webapp.forms import posted_by
from tests.webapp.models import judged_by, ready_version
from webapp.accounts.models import Membership, Role, Team, User
from webapp.catalog.models import ModelVersion
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment
from webapp.library.services import delete_version
from webapp.refusals import Invalid, Refused
from webapp.runs.models import Run, RunStatus
from webapp.runs.services import submit_run

pytestmark = pytest.mark.django_db(transaction=True)
FIELD = "resources.judge.catalog"
OWN = "judge@1"
MANY_DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    (tmp_path / "imports").mkdir()


@pytest.fixture
def judge(team: Team, alice: User) -> ModelVersion:
    return ready_version(team, "judge")


@pytest.fixture
def red(charlie: User) -> Team:
    return charlie.memberships.get().team


def body_of(**judge: Any) -> dict[str, Any]:
    """What a program posts: a run of the built-in model whose turns are judged by servers of its own."""
    asked = {"kind": "llm", "endpoint": "resources.judge", "model": "judge"}
    recipe = {"credit": {"kind": "attribution", "judge": asked}}
    return {"name": "x", "recipe": recipe, "resources": {"judge": judge}}


def problems_of(answer: Any, status: int = 422) -> list[dict[str, Any]]:
    assert answer.status_code == status, answer.content[:500]
    problems = answer.json()["problems"]
    assert problems
    assert all(problem["field"] and problem["remedy"] for problem in problems)
    return list(problems)


def fields_of(answer: Any, status: int = 422) -> set[str]:
    return {problem["field"] for problem in problems_of(answer, status)}


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page_of(user: User, path: str, status: int = 200) -> str:
    answer = signed_in(user).get(path)
    assert answer.status_code == status
    return str(answer.content.decode())


def judging(team: Team, user: User, catalog: str = OWN, **options: Any) -> Run:
    return submit_run(team, judged_by(trained=None, catalog=catalog, **options), acting_user=user)


def delete(api: Any, version: ModelVersion) -> Any:
    return api.client.delete(f"/api/v1/model-versions/{version.id}")


def experiment_of(team: Team, user: User, **judge: Any) -> Experiment:
    return create_experiment(team, judged_by(trained=None, **judge), acting_user=user)


def launched(user: User, path: str, **changes: Any) -> Any:
    """The form as it stands there, sent with the button that launches."""
    return signed_in(user).post(path, posted_by(page_of(user, path)) | changes | {"action": "launch"}, follow=True)


def run_of(answer: Any) -> Run:
    """The one that a launch led to."""
    ((address, status),) = answer.redirect_chain
    assert (answer.status_code, status) == (200, 302)
    return Run.objects.get(id=address.removeprefix("/runs/").strip("/"))


def page_of_refused(answer: Any) -> str:
    """The experiment, which is saved, with what was wrong."""
    assert [address.startswith("/experiments/") for address, _ in answer.redirect_chain] == [True]
    return str(answer.content.decode())


# Names
@pytest.mark.parametrize(
    "name",
    [
        "judge@0", "judge@-1", "judge@+1", "judge@1e0", "judge@1.0", "judge@0x1", "judge@1_", "judge@１",
        "judge@١", "judge@ 1", "judge @1", " judge@1", "judge@1 ", "judge@1\n", "judge@1@1", "judge@@1", "judge@",
        "@1", "@", "judge", "JUDGE@1", "Judge@1", "judge/../judge@1", "/judge@1", "./judge@1", "a/judge@1",
        "judge@1\0", "jud\0ge@1", "\ud800@1", "judge\u200b@1", "judge%401", "judge@1;", "judge@None", "", "\0",
        "x" * 20_000 + "@1", "judge@" + MANY_DIGITS, "judge@-" + MANY_DIGITS, "judge@" + "0" * 5000 + "1",
        "judge@9223372036854775808", "judge@2147483648",
    ],
    ids=lambda name: ascii(name)[1:25],
)  # fmt: skip
def test_a_name_that_is_not_quite_a_versions_is_refused_by_its_field(
    judge: ModelVersion, alice: User, api_of: Callable[..., Any], name: str
) -> None:
    answer = api_of(alice).post("/runs", body_of(catalog=name))
    assert fields_of(answer) == {FIELD}
    assert all("value" in problem for problem in answer.json()["problems"])
    assert len(answer.content) < 5000
    assert not Run.objects.exists()


@pytest.mark.parametrize("value", [1, 1.5, True, [OWN], {"name": "judge", "number": 1}, [], {}, ["judge", 1]])
def test_a_version_that_is_no_text_is_refused_by_its_field(
    judge: ModelVersion, alice: User, api_of: Callable[..., Any], value: Any
) -> None:
    assert fields_of(api_of(alice).post("/runs", body_of(catalog=value))) == {FIELD}
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "named",
    [
        {"catalog": OWN, "path": "a-judge"}, {"catalog": OWN, "path": OWN}, {}, {"catalog": None},
        {"catalog": None, "path": None}, {"catalog": "theirs@1", "path": "catalog/1"}, {"path": ""},
        {"catalog": "", "path": ""},
    ],
)  # fmt: skip
def test_a_judge_has_a_path_or_a_version_and_never_both_or_neither(
    judge: ModelVersion, alice: User, api_of: Callable[..., Any], named: dict[str, Any]
) -> None:
    for address in ("/runs", "/experiments"):
        for field in fields_of(api_of(alice).post(address, body_of(**named))):
            assert field.startswith("resources.judge")
    assert not Run.objects.exists()
    assert not Experiment.objects.exists()


def test_servers_that_nobody_asks_are_refused_whether_or_not_the_version_is_there(
    judge: ModelVersion, alice: User, red: Team, api_of: Callable[..., Any]
) -> None:
    ready_version(red, "secret")
    answers = []
    for name in (OWN, "secret@1", "nobody@1"):
        body = body_of(catalog=name) | {"recipe": {"credit": {"kind": "attribution", "judge": {"kind": "rules"}}}}
        answer = api_of(alice).post("/runs", body)
        assert all(field.startswith("resources.judge") for field in fields_of(answer))
        answers.append(answer.content.decode().replace(name, "NAME"))
    assert answers[1] == answers[2]
    assert not Run.objects.exists()


def test_whoever_asks_for_servers_that_are_not_named_is_refused(
    judge: ModelVersion, alice: User, api_of: Callable[..., Any]
) -> None:
    fields_of(api_of(alice).post("/runs", body_of(catalog=OWN) | {"resources": {}}))
    fields_of(api_of(alice).post("/runs", body_of(catalog=OWN) | {"resources": {"judge": None}}))
    assert not Run.objects.exists()


# What is there, and whose
@pytest.mark.parametrize("state", ["importing", "checking", "failed", "cancelled", "same"])
def test_a_version_that_is_not_ready_is_neither_taken_nor_offered(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any], state: str
) -> None:
    ready_version(team, "spare")
    ModelVersion.objects.filter(id=judge.id).update(state=state)
    (problem,) = problems_of(api_of(alice).post("/runs", body_of(catalog=OWN)))
    assert (problem["field"], problem["value"]) == (FIELD, OWN)
    assert "spare@1" in problem["remedy"]
    assert OWN not in problem["remedy"]
    assert f'value="{OWN}"' not in page_of(alice, "/experiments/new")


def test_a_deleted_version_is_gone_also_when_another_of_its_name_comes(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    api = api_of(alice)
    assert delete(api, judge).status_code == 204
    (problem,) = problems_of(api.post("/runs", body_of(catalog=OWN)))
    assert (problem["field"], problem["value"], problem["remedy"]) == (FIELD, OWN, "import a model first")
    assert str(ready_version(team, "judge")) == "judge@2"
    (problem,) = problems_of(api.post("/runs", body_of(catalog=OWN)))
    assert "judge@2" in problem["remedy"]
    assert not Run.objects.exists()


def test_another_teams_version_and_one_that_nobody_has_are_refused_with_the_same_words(
    judge: ModelVersion, alice: User, red: Team, api_of: Callable[..., Any]
) -> None:
    ready_version(red, "secret")
    ModelVersion.objects.filter(id=ready_version(red, "unready").id).update(state="failed")
    for post in (
        lambda name: api_of(alice).post("/runs", body_of(catalog=name)),
        lambda name: api_of(alice).post("/experiments", body_of(catalog=name) | {"name": str(uuid4())}),
    ):
        bodies = set()
        for name in ("secret@1", "unready@1", "nobody@1"):
            answer = post(name)
            if answer.status_code == 201:  # an experiment may name what is not there yet
                bodies.add("saved")
                continue
            problems_of(answer)
            bodies.add(answer.content.decode().replace(name, "NAME"))
        (body,) = bodies
        assert "secret" not in body
        assert "unready" not in body
    assert "secret" not in page_of(alice, "/experiments/new")


def test_of_two_teams_with_the_same_name_each_has_its_own(
    judge: ModelVersion, team: Team, alice: User, charlie: User, red: Team, api_of: Callable[..., Any]
) -> None:
    theirs = ready_version(red, "judge")
    run = Run.objects.get(id=api_of(alice).post("/runs", body_of(catalog=OWN)).json()["id"])
    assert run.judge_version == judge
    detail = api_of(charlie).get(f"/model-versions/{theirs.id}").json()
    assert (detail["live_runs"], detail["ended_runs"]) == ([], [])
    assert str(run.id) not in page_of(charlie, f"/models/versions/{theirs.id}/")
    assert delete(api_of(charlie), judge).status_code == 404
    assert delete(api_of(charlie), theirs).status_code == 204
    assert delete(api_of(alice), judge).status_code == 409
    page_of(charlie, f"/models/versions/{judge.id}/", 404)
    page_of(charlie, f"/runs/{run.id}/", 404)
    page_of(charlie, f"/experiments/new?run={run.id}", 404)


def test_who_is_in_two_teams_judges_with_versions_of_the_runs_team_alone(
    judge: ModelVersion, team: Team, alice: User, red: Team, api_of: Callable[..., Any]
) -> None:
    Membership.objects.create(team=red, user=alice, role=Role.MEMBER)
    ready_version(red, "secret")
    with pytest.raises(Invalid) as refused:
        judging(team, alice, "secret@1")
    assert (refused.value.problems[0].field, refused.value.problems[0].value) == (FIELD, "secret@1")
    assert "secret" not in refused.value.problems[0].remedy
    with pytest.raises(Invalid) as refused:
        judging(red, alice, OWN)
    assert OWN not in refused.value.problems[0].remedy
    assert judging(red, alice, "secret@1").judge_version is not None


def test_a_number_with_zeros_before_it_is_nobodys(judge: ModelVersion, alice: User, api_of: Callable[..., Any]) -> None:
    (problem,) = problems_of(api_of(alice).post("/runs", body_of(catalog="judge@01")))
    assert (problem["field"], problem["value"], problem["remedy"]) == (FIELD, "judge@01", f"use one of: {OWN}")
    page_of(alice, "/experiments/new?model=judge@01", 404)


def test_a_dataset_that_is_named_with_zeros_is_nobodys(team: Team, alice: User, settings: Any, tmp_path: Path) -> None:
    """Else an experiment would name it by another text than the one that its deletion looks for."""
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    ready_dataset(team)
    usual = RunSpec(name="x")
    spec = usual.model_copy(update={"dataset": usual.dataset.model_copy(update={"catalog": "sums@01"})})
    with pytest.raises(Invalid) as refused:
        submit_run(team, spec, acting_user=alice)
    assert refused.value.problems[0].field == "dataset.catalog"


# Where it is shown
def test_it_stands_on_the_runs_page_and_the_run_on_the_versions(
    judge: ModelVersion, team: Team, alice: User, victor: User
) -> None:
    run = judging(team, alice)
    for user in (alice, victor):
        page = page_of(user, f"/runs/{run.id}/")
        assert OWN in page
        assert f"/models/versions/{judge.id}/" in page
        assert f"/runs/{run.id}/" in page_of(user, f"/models/versions/{judge.id}/")
    assert run.move_to(RunStatus.CANCELLED, by="test")
    assert f"/runs/{run.id}/" in page_of(victor, f"/models/versions/{judge.id}/")


def test_one_version_as_policy_and_as_judge_is_one_use_of_it(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    run = submit_run(team, judged_by(trained=OWN, catalog=OWN), acting_user=alice)
    assert run.model_version == run.judge_version == judge
    api = api_of(alice)
    detail = api.get(f"/model-versions/{judge.id}").json()
    assert [row["id"] for row in detail["live_runs"]] == [str(run.id)]
    page_of(alice, f"/models/versions/{judge.id}/")
    page_of(alice, f"/runs/{run.id}/")
    assert delete(api, judge).status_code == 409
    assert run.move_to(RunStatus.CANCELLED, by="test")
    detail = api.get(f"/model-versions/{judge.id}").json()
    assert ([row["id"] for row in detail["ended_runs"]], detail["live_runs"]) == ([str(run.id)], [])
    assert delete(api, judge).status_code == 204
    run.refresh_from_db()
    assert (run.model_version, run.judge_version) == (None, None)
    page_of(alice, f"/runs/{run.id}/")
    assert api.get(f"/runs/{run.id}").json()["spec"]["resources"]["judge"]["catalog"] == OWN


# Deleting it, and when
@pytest.mark.parametrize(
    ("state", "status"),
    [("queued", 409), ("launching", 409), ("running", 409), ("paused", 409), ("succeeded", 204), ("failed", 204),
     ("cancelled", 204)],
)  # fmt: skip
def test_it_cannot_be_deleted_while_a_run_may_still_ask_it(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any], state: str, status: int
) -> None:
    run = judging(team, alice)
    Run.objects.filter(id=run.id).update(state=state)
    api = api_of(alice)
    answer = delete(api, judge)
    assert answer.status_code == status
    page = page_of(alice, f"/runs/{run.id}/")
    assert OWN in page  # also when it is gone: the spec of the run named it
    if status == 409:
        assert fields_of(answer, 409) == {"run"}
        assert judge.folder.exists()
        refused = signed_in(alice).post(f"/models/versions/{judge.id}/delete", {"name": OWN})
        assert refused.status_code < 500
        assert ModelVersion.objects.filter(id=judge.id).exists()
    else:
        assert not ModelVersion.objects.filter(id=judge.id).exists()
        assert f"/models/versions/{judge.id}/" not in page


def test_a_run_that_ended_does_not_come_back_without_its_judge(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    run, api = judging(team, alice), api_of(alice)
    Run.objects.filter(id=run.id).update(state="failed")
    assert delete(api, judge).status_code == 204
    assert 400 <= api.post(f"/runs/{run.id}/resume").status_code < 500
    run.refresh_from_db()
    assert run.state == "failed"


def test_two_runs_hold_it_until_the_second_has_ended(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    api, runs = api_of(alice), [judging(team, alice) for _ in range(2)]
    for run in runs:
        assert delete(api, judge).status_code == 409
        assert run.move_to(RunStatus.CANCELLED, by="test")
    assert delete(api, judge).status_code == 204


def test_a_run_that_begins_with_a_judged_runs_checkpoint_does_not_hold_its_judge(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    ready_version(team)
    first = submit_run(team, judged_by(catalog=OWN), acting_user=alice)
    warm = api_of(alice).post("/runs", {"name": "warm", "model": {"kind": "checkpoint", "run": str(first.id)}})
    assert warm.status_code == 201, warm.content
    assert Run.objects.get(id=warm.json()["id"]).judge_version is None
    assert first.move_to(RunStatus.CANCELLED, by="test")
    assert delete(api_of(alice), judge).status_code == 204


def test_a_judge_cannot_be_taken_while_it_is_deleted(judge: ModelVersion, team: Team, alice: User) -> None:
    def remove() -> str:
        try:
            delete_version(judge, acting_user=alice)
        except Refused:
            return "kept"
        return "deleted"

    def submit() -> str:
        try:
            judging(team, alice)
        except Invalid:
            return "refused"
        return "taken"

    assert sorted(at_once(remove, submit)) in (["deleted", "refused"], ["kept", "taken"])
    assert not Run.objects.filter(judge_version=None).exists()


def test_a_judge_and_a_policy_that_cross_do_not_block_each_other(team: Team, alice: User, judge: ModelVersion) -> None:
    ready_version(team)
    specs = [judged_by(trained="qwen@1", catalog=OWN), judged_by(trained=OWN, catalog="qwen@1")] * 2
    runs = at_once(*[partial(submit_run, team, spec, acting_user=alice) for spec in specs])
    assert {str(run.judge_version) for run in runs} == {OWN, "qwen@1"}


def test_a_submission_that_is_sent_again_is_the_first_also_when_its_judge_is_gone(
    judge: ModelVersion, alice: User, api_of: Callable[..., Any]
) -> None:
    api, key = api_of(alice), {"Idempotency-Key": str(uuid4())}
    first = api.post("/runs", body_of(catalog=OWN), **key)
    assert first.status_code == 201
    assert Run.objects.get().move_to(RunStatus.CANCELLED, by="test")
    assert delete(api, judge).status_code == 204
    assert api.post("/runs", body_of(catalog=OWN), **key).json()["id"] == first.json()["id"]
    assert Run.objects.count() == 1


# Experiments, copies, the form
def test_a_saved_experiment_whose_judge_is_gone_opens_and_is_not_launched(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    experiment, api = experiment_of(team, alice, catalog=OWN), api_of(alice)
    assert delete(api, judge).status_code == 204
    (problem,) = problems_of(api.post(f"/experiments/{experiment.id}/runs"))
    assert (problem["field"], problem["value"], problem["remedy"]) == (FIELD, OWN, "import a model first")
    page = page_of_refused(launched(alice, f"/experiments/{experiment.id}/"))
    (shown,) = re.findall("Saved, but not launched[^<]*", page)
    assert FIELD in shown
    assert OWN in shown
    assert "import a model first" in shown
    assert not Run.objects.exists()
    assert api.get(f"/experiments/{experiment.id}").json()["spec"]["resources"]["judge"]["catalog"] == OWN


def test_a_saved_experiment_is_launched_from_the_form_and_over_rest_with_its_judge(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    experiment = experiment_of(team, alice, catalog=OWN)
    assert run_of(launched(alice, f"/experiments/{experiment.id}/")).experiment == experiment
    assert api_of(alice).post(f"/experiments/{experiment.id}/runs").status_code == 201
    assert [run.judge_version for run in Run.objects.all()] == [judge, judge]


def test_an_experiment_that_is_changed_is_changed_whole_or_not_at_all(
    judge: ModelVersion, team: Team, alice: User, victor: User, charlie: User, api_of: Callable[..., Any]
) -> None:
    experiment = experiment_of(team, alice, catalog=OWN)
    path = f"/api/v1/experiments/{experiment.id}"

    def put(user: User, body: Any, method: str = "put") -> Any:
        client = api_of(user, scopes=("read", "launch")).client
        return getattr(client, method)(path, body, content_type="application/json")

    assert put(victor, body_of(path="other")).status_code == 403
    assert put(charlie, body_of(path="other")).status_code == 404
    assert put(alice, {"resources": {"judge": {"catalog": "other@1"}}}, "patch").status_code == 405
    for wrong in ({"catalog": OWN, "path": "other"}, {}, {"catalog": 1}):
        assert all(field.startswith("resources.judge") for field in fields_of(put(alice, body_of(**wrong))))
    experiment.refresh_from_db()
    assert experiment.spec["resources"]["judge"]["catalog"] == OWN
    assert put(alice, body_of(path="a-judge")).status_code == 200
    experiment.refresh_from_db()
    assert (experiment.spec["resources"]["judge"].get("catalog"), experiment.spec["resources"]["judge"]["path"]) == (
        None, "a-judge",
    )  # fmt: skip


def test_a_copy_of_a_run_judges_with_the_same_version_and_is_refused_when_that_is_gone(
    judge: ModelVersion, team: Team, alice: User, api_of: Callable[..., Any]
) -> None:
    run = judging(team, alice)
    ready_version(team, "judge", files={"config.json": b"{}"})
    copy = f"/experiments/new?run={run.id}"
    assert run_of(launched(alice, copy)).judge_version == judge
    assert [run.judge_version for run in Run.objects.all()] == [judge, judge]
    for each in Run.objects.all():
        assert each.move_to(RunStatus.CANCELLED, by="test")
    assert delete(api_of(alice), judge).status_code == 204
    (shown,) = re.findall("Saved, but not launched[^<]*", page_of_refused(launched(alice, copy)))
    assert FIELD in shown
    assert "judge@2" in shown
    assert Run.objects.count() == 2


def test_who_may_not_launch_learns_nothing_and_launches_nothing(
    judge: ModelVersion, team: Team, alice: User, victor: User, api_of: Callable[..., Any]
) -> None:
    run, experiment = judging(team, alice), experiment_of(team, alice, catalog=OWN)
    keys = (api_of(victor, scopes=("read", "launch")), api_of(alice, scopes=("read",)))
    for api in keys:
        for name in (OWN, "nobody@1", "judge@0", "\0"):
            assert api.post("/runs", body_of(catalog=name)).status_code == 403
        assert api.post(f"/experiments/{experiment.id}/runs").status_code == 403
        assert delete(api, judge).status_code == 403
    client = signed_in(victor)
    for path in (f"/experiments/{experiment.id}/", f"/experiments/new?run={run.id}"):
        assert client.get(path).status_code in (200, 403)
        form = posted_by(page_of(alice, path))
        assert client.post(path, form | {"action": "launch"}).status_code == 403
    assert client.post(f"/models/versions/{judge.id}/delete", {"name": OWN}).status_code == 403
    assert Run.objects.count() == 1


TOML = """name = "x"
[recipe.credit]
kind = "attribution"
[recipe.credit.judge]
kind = "llm"
endpoint = "resources.judge"
model = "judge"
"""


@pytest.mark.parametrize("action", ["save", "launch", "show-form", "show"])
@pytest.mark.parametrize(
    "table",
    [
        "[resources.judge]\ncatalog = 1", "[resources.judge]\ncatalog = true",
        "[resources.judge]\ncatalog = [\"judge@1\"]",
        "[resources.judge.catalog]\nname = \"judge\"", "[resources.judge]\ncatalog = 1979-05-27",
        "[resources.judge]\ncatalog = nan", "[[resources.judge]]\ncatalog = \"judge@1\"",
        "[resources]\njudge = \"judge@1\"", "[resources.judge]\ncatalog = \"judge@1\"\npath = \"x\"",
        "[resources.judge]\nservers = 1", "[resources.judge]\ncatalog = \"judge@1\"\nversion = 1",
    ],
)  # fmt: skip
def test_toml_of_wrong_types_is_refused_and_keeps_its_text(
    judge: ModelVersion, team: Team, alice: User, table: str, action: str
) -> None:
    experiment = experiment_of(team, alice, catalog=OWN)
    text = TOML + table
    tomllib.loads(text)
    answer = signed_in(alice).post(f"/experiments/{experiment.id}/", {"as": "toml", "toml": text, "action": action})
    assert answer.status_code == (422 if action in ("save", "launch") else 200)
    page = answer.content.decode()
    if action in ("save", "launch"):
        assert "resources.judge" in page
    assert not Run.objects.exists()
    experiment.refresh_from_db()
    assert experiment.spec["resources"]["judge"]["catalog"] == OWN


def test_what_is_typed_as_a_version_is_never_markup(judge: ModelVersion, team: Team, alice: User) -> None:
    odd = "<img src=x onerror=alert(1)>\"'@1"
    experiment = experiment_of(team, alice, catalog=OWN)
    answer = launched(alice, f"/experiments/{experiment.id}/", **{FIELD: odd})
    assert answer.status_code == 422
    assert "<img src=x" not in answer.content.decode()
    assert not Run.objects.exists()


# A path in place of a version
@pytest.fixture
def theirs(red: Team, settings: Any) -> ModelVersion:
    """Another team's version, with links to it that whoever runs the service has left in the models folder."""
    version = ready_version(red, "secret", files={"config.json": b"{}"})
    models = settings.PALESTRA_MODELS
    (models / "a-judge").mkdir()
    (models / "link").symlink_to(version.folder)
    (models / "chain").symlink_to("link")
    (models / "up").symlink_to(".")
    (models / "team").symlink_to(version.folder.parent)
    (models / "out").symlink_to(models.parent)
    return version


def written(path: str, version: ModelVersion, models: Path) -> str:
    at = {"{team}": version.folder.parent.name, "{sha}": version.folder.name, "{models}": str(models)}
    for mark, value in at.items():
        path = path.replace(mark, value)
    return path


@pytest.mark.parametrize(
    "path",
    [
        "x/../catalog/{team}/{sha}", "../models/catalog/{team}/{sha}", "{models}/catalog/{team}/{sha}",
        "./catalog/./{team}/{sha}", "catalog//{team}//{sha}/", "uploads/../catalog/{team}/{sha}", "link/../{sha}",
        "a-judge/../link", "\0", "catalog/{team}/{sha}\0", "a" * 20_000, "", "..", "/", "catalog", "uploads",
    ],
    ids=lambda path: ascii(path)[1:25],
)  # fmt: skip
def test_no_way_of_writing_a_path_leads_to_a_version(
    theirs: ModelVersion, alice: User, settings: Any, api_of: Callable[..., Any], path: str
) -> None:
    answer = api_of(alice).post("/runs", body_of(path=written(path, theirs, settings.PALESTRA_MODELS)))
    assert fields_of(answer) == {"resources.judge.path"}
    assert len(answer.content) < 5000
    assert "secret" not in re.sub(r'"value": *"[^"]*"', "", answer.content.decode())
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "path",
    ["link", "link/", "./link", "chain", "up/catalog/{team}/{sha}", "up/up/catalog/{team}/{sha}", "team/{sha}", "team",
     "out/models/catalog/{team}/{sha}", "up/uploads", "up/catalog"],
)  # fmt: skip
def test_a_link_into_the_catalog_is_refused_when_an_attempt_starts(
    theirs: ModelVersion, team: Team, alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PALESTRA_MODELS", str(settings.PALESTRA_MODELS))
    spec = judged_by(trained=None, path=written(path, theirs, settings.PALESTRA_MODELS))
    submit_run(team, spec, acting_user=alice)
    with pytest.raises(BadSpec) as refused:
        with_pinned_model(spec, None, named_in=Path("launch.json"), anywhere=False)
    assert "resources.judge.path" in str(refused.value)
    assert 'resources.judge.catalog = "name@version"' in str(refused.value)
