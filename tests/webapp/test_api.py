"""The REST API: who may, what it answers, what it says about bad input, and sending twice."""

import base64
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from engine.spec.environment import PythonMath
from engine.spec.presets import preset_names
from engine.spec.run import Dataset, RunSpec
from webapp.accounts.models import ApiKey, AuditEntry, IdempotentResponse, User
from webapp.accounts.services import create_api_key, remove_member
from webapp.api.cursors import encode_cursor
from webapp.api.document import ProblemOut
from webapp.catalog.services import publish_dataset, publish_environment
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment
from webapp.runs import api as runs_api
from webapp.runs.models import Desired, Run, RunStatus
from webapp.runs.tokens import attempt_token

pytestmark = pytest.mark.django_db

TINY = {"name": "tiny"}


@pytest.fixture
def experiment(team, alice, spec: RunSpec):
    return create_experiment(team, spec, acting_user=alice)


def test_a_member_submits_a_run(api_of, bob, team) -> None:
    answer = api_of(bob).post("/runs", TINY | {"schedule": {"steps": 3}})
    assert answer.status_code == 201
    run = Run.objects.get(id=answer.json()["id"])
    assert (run.state, run.total_steps, run.team, run.created_by) == (RunStatus.QUEUED, 3, team, bob)
    assert AuditEntry.objects.filter(verb="run.submit", user=bob).count() == 1


def test_a_run_can_be_submitted_under_an_experiment(api_of, bob, experiment) -> None:
    answer = api_of(bob).post("/runs", TINY | {"experiment": str(experiment.id)})
    assert Run.objects.get(id=answer.json()["id"]).experiment == experiment


@pytest.mark.parametrize("role", ["rita", "victor"])
@pytest.mark.parametrize("path", ["/runs", "/runs/{run}/cancel", "/runs/{run}/pause", "/runs/{run}/resume",
                                  "/experiments", "/experiments/{experiment}/runs"])  # fmt: skip
def test_who_may_only_look_gets_403(api_of, request, run, experiment, role: str, path: str) -> None:
    before = Run.objects.count()
    answer = api_of(request.getfixturevalue(role)).post(path.format(run=run.id, experiment=experiment.id), TINY)
    assert answer.status_code == 403
    assert (
        role in answer.json()["detail"] or "viewer" in answer.json()["detail"] or "reviewer" in answer.json()["detail"]
    )
    assert Run.objects.count() == before
    assert Run.objects.get(id=run.id).desired == Desired.RUN


@pytest.mark.parametrize(
    "path", ["/runs/{run}/cancel", "/runs/{run}/pause", "/runs/{run}/resume", "/experiments/{experiment}/runs"]
)
def test_a_stranger_cannot_act_on_what_exists(api_of, charlie, run, experiment, path: str) -> None:
    assert api_of(charlie).post(path.format(run=run.id, experiment=experiment.id)).status_code == 404
    assert Run.objects.get().desired == Desired.RUN


@pytest.mark.parametrize(
    "path",
    ["", "/metrics", "/events", "/trajectories", "/trajectories/train-0-0", "/checkpoints"],
)
@pytest.mark.django_db(transaction=True)
def test_a_stranger_cannot_read_what_exists_and_a_viewer_can(api_of, charlie, victor, run_with_data, path: str) -> None:
    target = f"/runs/{run_with_data.id}{path}"
    assert api_of(charlie).get(target).status_code == 404
    assert api_of(victor, scopes=("read",)).get(target).status_code == 200


def test_a_stranger_sees_only_their_own_lists(api_of, charlie, run, experiment) -> None:
    api = api_of(charlie)
    assert api.get("/runs").json()["items"] == []
    assert api.get("/experiments").json() == {"items": [], "next_cursor": None}


def test_a_stranger_cannot_submit_into_a_foreign_experiment_or_team(api_of, charlie, team, experiment) -> None:
    api = api_of(charlie)
    assert api.post("/runs", TINY | {"experiment": str(experiment.id)}).status_code == 404
    assert api.post("/runs", TINY | {"team": team.slug}).status_code == 404
    assert Run.objects.count() == 0


@pytest.mark.parametrize(
    ("body", "field", "remedy"),
    [
        ({}, "name", "add it"),
        (TINY | {"sceduule": {}}, "sceduule", "did you mean 'schedule'?"),
        (TINY | {"schedule": {"step": 3}}, "schedule.step", "did you mean 'steps'?"),
        (TINY | {"async_ratio": 2}, "async_ratio", "it belongs to schedule: schedule.async_ratio"),
        (TINY | {"schedule": {"steps": "many"}}, "schedule.steps", "give a whole number"),
        (
            TINY | {"schedule": {"group_size": 1, "minibatch_trajectories": 1}},
            "schedule.group_size",
            "use at least 2, 8 is usual",
        ),
        (TINY | {"schedule": {"minibatch_trajectories": 7}}, "schedule.minibatch_trajectories", "use a divisor of 256"),
        (TINY | {"environment": {"id": "chess"}}, "environment.id", "use one of: 'python-math'"),
        (TINY | {"recipe": {"preset": "grop"}}, "recipe.preset", "use one of:"),
    ],
)
def test_bad_input_names_field_value_and_remedy_and_creates_nothing(
    api_of, bob, body: Any, field: str, remedy: str
) -> None:
    answer = api_of(bob).post("/runs", body)
    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    (problem,) = answer.json()["problems"]
    assert problem["field"] == field
    assert remedy in problem["remedy"]
    assert "value" in problem
    assert Run.objects.count() == 0


@pytest.mark.parametrize("path", ["/runs", "/experiments"])
@pytest.mark.parametrize(
    ("environment", "field", "value"),
    [
        ({"id": "import", "path": "os:system"}, "environment.id", "import"),
        ({"id": "package", "path": "/etc"}, "environment.id", "package"),
        ({"id": "gem", "env_id": "game:x", "python": "/bin/sh"}, "environment.id", "gem"),
        ({"id": "verifiers", "taskset": "os:system", "python": "/bin/sh"}, "environment.id", "verifiers"),
        ({"id": "openenv", "url": "http://169.254.169.254"}, "environment.url", "http://169.254.169.254"),
        ({"id": "terminal", "tasks": "/etc"}, "environment.tasks", "/etc"),
    ],
)
def test_code_to_be_imported_and_folders_of_tasks_are_refused_and_create_nothing(
    api_of, bob, path: str, environment: dict[str, str], field: str, value: str
) -> None:
    answer = api_of(bob).post(path, TINY | {"environment": environment})
    assert answer.status_code == 422
    (problem,) = answer.json()["problems"]
    assert (problem["field"], problem["value"]) == (field, value)
    assert "python -m engine train" in problem["remedy"]
    assert not Run.objects.exists()
    assert not Experiment.objects.exists()


def test_a_body_that_is_not_json_is_refused(api_of, bob) -> None:
    answer = api_of(bob).client.post("/api/v1/runs", "{", content_type="application/json")
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")


@pytest.mark.parametrize(("method", "path", "status"), [("get", "/nowhere", 404), ("delete", "/runs", 405)])
def test_errors_of_no_endpoint_are_problems_as_well(api_of, bob, method: str, path: str, status: int) -> None:
    answer = getattr(api_of(bob).client, method)(f"/api/v1{path}")
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status
    assert status == 404 or set(answer["Allow"].split(", ")) == {"GET", "POST"}


@pytest.mark.parametrize("path", ["/runs?limit=0", "/runs?state=happy", "/runs?cursor=nonsense"])
def test_bad_queries_name_their_field(api_of, bob, path: str) -> None:
    answer = api_of(bob).get(path)
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["field"] in path


def test_a_query_that_takes_a_few_words_names_them(api_of, bob) -> None:
    (problem,) = api_of(bob).get("/runs?state=happy").json()["problems"]
    assert problem["remedy"].startswith("use one of: 'queued', 'launching'")


UNREADABLE = {
    "levels": b'{"name": "x", "recipe": ' + b'{"a": ' * 300 + b"1" + b"}" * 301,
    "lists": b'{"name": ' + b"[" * 300 + b"]" * 300 + b"}",
    "NUL": rb'{"name": "x", "team": "a\u0000b"}',
    "half a pair": rb'{"name": "x", "team": "\ud800"}',
    "a name": rb'{"name": "x", "\u0000": 1}',
    "65 bits": b'{"name": "x", "schedule": {"keep_checkpoints": 9223372036854775808}}',
    "no step": b'{"name": "x", "schedule": {"steps": 2147483648}}',
    "NaN": b'{"name": "x", "schedule": {"temperature": NaN}}',
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("path", ["/runs", "/experiments"])
def test_what_no_row_can_keep_is_named_in_json_that_anybody_can_read(api_of, bob, path: str, body: bytes) -> None:
    answer = api_of(bob).client.post(f"/api/v1{path}", body, content_type="application/json")
    assert answer.status_code == 422
    reported = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert all(problem["remedy"] and "value" in problem for problem in reported["problems"])
    assert (Run.objects.count(), Experiment.objects.count()) == (0, 0)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/runs/{run}/events?kind=%00", "kind"),
        ("/runs/{run}/metrics?keys=a%00b", "keys"),
        ("/runs/{run}/trajectories?part=%00", "part"),
        ("/runs/{run}/trajectory-export?part=a%00b", "part"),
        *((f"/runs?cursor={encode_cursor(*position)}", "cursor") for position in [
            ("a", "b"), ("2026-01-01", "\0"), ("\ud800", "x"), (1, 2), ("2026-01-01",)]),
        (f"/runs?cursor={base64.urlsafe_b64encode(b'[' * 9000).decode()}", "cursor"),
        (f"/runs/{{run}}/trajectories?cursor={encode_cursor(10**30)}", "cursor"),
        (f"/runs/{{run}}/quarantines?cursor={encode_cursor(chr(0))}", "cursor"),
    ],
)  # fmt: skip
def test_queries_that_no_row_could_match_name_their_field(api_of, bob, run, path: str, field: str) -> None:
    answer = api_of(bob).get(path.format(run=run.id))
    assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, field)


@pytest.mark.parametrize("path", ["/?q=a%00b", "/runs/{run}/series?key=%00&first_step=0&last_step=1"])
@pytest.mark.django_db(transaction=True)
def test_pages_look_for_nothing_that_no_row_has(client, alice, run, path: str) -> None:
    client.force_login(alice)
    assert client.get(path.format(run=run.id)).status_code == 200


@pytest.mark.parametrize("key", ['"aaaaaaaaaaaa\\000"', '"' + "x" * 40 + '\\000"', "\u00e9" * 40])
def test_a_session_cookie_that_no_row_has_is_nobody(key: str) -> None:
    answer = Client().get("/api/v1/runs", headers={"cookie": f"palestra_session={key}"})
    assert answer.status_code == 401


@pytest.mark.parametrize("page", ["/runs/{run}/trajectories/%00/", "/api/v1/runs/{run}/trajectories/a%00b"])
def test_a_trajectory_whose_name_no_row_has_is_404(client, alice, run, page: str) -> None:
    client.force_login(alice)
    assert client.get(page.format(run=run.id)).status_code == 404


@pytest.mark.parametrize(
    "path", ["/experiments?team=%00", "/environments?team=a%00b", "/alerts/decisions?team=%00", "/runs?team=%00"]
)
def test_a_team_whose_slug_no_row_has_is_404(api_of: Any, rita: User, path: str) -> None:
    answer = api_of(rita, scopes=("launch", "review")).post(path, {})
    assert answer.status_code == 404


def test_a_model_whose_name_no_row_has_is_404_where_an_experiment_begins_with_it(client: Client, bob: User) -> None:
    client.force_login(bob)
    assert client.get("/experiments/new?model=a%00b@1").status_code == 404


def test_an_experiment_that_is_not_valid_any_more_is_refused_and_can_be_mended(api_of, client, bob, experiment) -> None:
    Experiment.objects.update(spec=experiment.spec | {"gone": 1})
    answer = api_of(bob).post(f"/experiments/{experiment.id}/runs")
    assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, "gone")
    assert Run.objects.count() == 0
    client.force_login(bob)
    form = {"as": "toml", "toml": 'name = "mended"', "action": "save"}
    assert client.post(f"/experiments/{experiment.id}/", form).status_code == 302
    assert api_of(bob).post(f"/experiments/{experiment.id}/runs").status_code == 201


def test_the_same_key_and_body_act_once_and_answer_the_same(api_of, bob) -> None:
    api = api_of(bob)
    answers = [api.post("/runs", TINY, **{"Idempotency-Key": "k1"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert Run.objects.count() == 1


def test_the_same_key_with_another_body_is_refused(api_of, bob) -> None:
    api = api_of(bob)
    api.post("/runs", TINY, **{"Idempotency-Key": "k1"})
    assert api.post("/runs", TINY | {"seed": 1}, **{"Idempotency-Key": "k1"}).status_code == 409
    assert Run.objects.count() == 1


def test_a_refused_request_does_not_use_up_its_key(api_of, bob, run) -> None:
    Run.objects.update(state=RunStatus.FAILED)
    api, headers = api_of(bob), {"Idempotency-Key": "k2"}
    assert api.post(f"/runs/{run.id}/cancel", **headers).status_code == 409
    assert not IdempotentResponse.objects.filter(status=0).exists()
    Run.objects.update(state=RunStatus.QUEUED)
    assert api.post(f"/runs/{run.id}/cancel", **headers).status_code == 200


def test_keys_of_two_teams_do_not_meet(api_of, bob, charlie) -> None:
    for user in (bob, charlie):
        assert api_of(user).post("/runs", TINY, **{"Idempotency-Key": "k1"}).status_code == 201
    assert Run.objects.count() == 2


@pytest.mark.parametrize(("verb", "desired"), [("cancel", "cancel"), ("pause", "pause"), ("resume", "run")])
def test_orders_sent_twice_answer_the_same(api_of, bob, launching_run, verb: str, desired: str) -> None:
    api = api_of(bob)
    answers = [api.post(f"/runs/{launching_run.id}/{verb}") for _ in range(2)]
    assert [(answer.status_code, answer.json()["desired"]) for answer in answers] == [(200, desired)] * 2


def test_an_order_that_comes_too_late_is_409(api_of, bob, run) -> None:
    Run.objects.update(state=RunStatus.SUCCEEDED)
    answer = api_of(bob).post(f"/runs/{run.id}/cancel")
    assert (answer.status_code, answer.json()["detail"]) == (409, "run #1 has succeeded and cannot be cancelled")


def test_pages_follow_each_other_without_gap_or_double(api_of, bob) -> None:
    api = api_of(bob)
    made = [api.post("/runs", TINY | {"seed": seed}).json()["id"] for seed in range(5)]
    seen, cursor = [], None
    while True:
        page = api.get("/runs", limit=2, **({"cursor": cursor} if cursor else {})).json()
        seen += [run["id"] for run in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


@pytest.fixture
def run_with_data(launching_run):
    """A run whose engine has said something."""
    events = [
        {"kind": "started", "from_step": 0, "total_steps": 9},
        *({"kind": "metric", "step": step, "values": {"train/reward": step}} for step in range(200)),
        *({"kind": "trajectory", "trajectory": _trajectory(index)} for index in range(3)),
    ]
    numbered = [event | {"seq": seq, "attempt": 1, "at": 1.0} for seq, event in enumerate(events, 1)]
    answer = Client().post(
        f"/ingest/v1/runs/{launching_run.id}/batches",
        json.dumps({"attempt": 1, "first_seq": 1, "events": numbered}),
        content_type="application/json",
        headers={"authorization": f"Bearer {attempt_token(launching_run.id, 1)}"},
    )
    assert answer.status_code == 200, answer.content
    return launching_run


def _trajectory(index: int) -> dict[str, Any]:
    task = {"id": "t", "split": "train", "level": 1, "question": "1+1", "answer": "2"}
    return {
        "id": f"train-0-{index}", "purpose": "train", "prompt": 0, "member": index,
        "sampled_at_version": 0, "trained_at_step": 1,
        "task": task, "segments": [],
        "stop_reason": "answered", "answer": "2", "success": index == 0, "reward": float(index), "rewards": {},
    }  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_metrics_are_sampled_down_to_the_buckets_asked_for(api_of, victor, run_with_data) -> None:
    answer = api_of(victor).get(f"/runs/{run_with_data.id}/metrics", keys="train/reward", buckets=20).json()
    (series,) = answer["series"]
    assert answer["seq"] == 204
    assert series["level"] == 10
    assert series["points"][3] == [30, 39, 30.0, 39.0, 34.5, 39.0, 10]
    for steps in ({"after": 99, "until": 101}, {"first_step": 100, "last_step": 101}):
        zoomed = api_of(victor).get(f"/runs/{run_with_data.id}/metrics", **steps).json()
        assert [point[0] for point in zoomed["series"][0]["points"]] == [100, 101]


def test_events_are_read_on_from_a_number(api_of, victor, run_with_data) -> None:
    api = api_of(victor)
    page = api.get(f"/runs/{run_with_data.id}/events", after=1, limit=2).json()
    assert [event["seq"] for event in page["items"]] == [2, 3]
    assert page["next_after"] == 3
    assert api.get(f"/runs/{run_with_data.id}/events", after=204).json() == {"items": [], "next_after": 204}


def test_a_page_of_events_ends_with_the_one_that_fills_it_and_nothing_is_left_out(
    api_of: Any, victor: User, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_api, "LARGEST_PAGE_BYTES", 4000)
    monkeypatch.setattr(runs_api, "EVENTS_AT_ONCE", 2)
    lengths = [10, 5000, 10, 2000, 2000, 2000, 10]
    engine.post(engine.started(), *(engine.log("é" * (length // 2)) for length in lengths))  # two bytes each
    api, after, pages = api_of(victor), 0, []
    while (page := api.get(f"/runs/{engine.run_id}/events", after=after, limit=1000).json())["items"]:
        pages.append([event["seq"] for event in page["items"]])
        after = page["next_after"]
    assert pages == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert [event["seq"] for event in api.get(f"/runs/{engine.run_id}/events", limit=2).json()["items"]] == [1, 2]


def test_trajectories_are_filtered_and_paged(api_of, victor, run_with_data) -> None:
    api, path = api_of(victor), f"/runs/{run_with_data.id}/trajectories"
    first = api.get(path, limit=2).json()
    rest = api.get(path, limit=2, cursor=first["next_cursor"]).json()
    assert [item["member"] for item in first["items"] + rest["items"]] == [2, 1, 0]
    assert rest["next_cursor"] is None
    assert [document["member"] for document in api.get(path, success="true").json()["items"]] == [0]
    assert [document["member"] for document in api.get(path, min_reward=2).json()["items"]] == [2]
    assert len(api.get(path, step=1, prompt=0, sampled_at_version=0, trained_at_step=1).json()["items"]) == 3
    for nothing in ({"step": 2}, {"prompt": 1}, {"sampled_at_version": 1}, {"trained_at_step": 2}):
        assert api.get(path, **nothing).json()["items"] == []
    assert api.get(f"{path}/train-0-1").json()["reward"] == 1.0
    assert api.get(f"{path}/train-0-9").status_code == 404


def test_keys_are_shown_once_and_stored_as_digests(team, alice) -> None:
    created = create_api_key(team, "ci", ["read"], acting_user=alice)
    row = ApiKey.objects.values().get()
    assert created.text not in json.dumps(row, default=str)
    assert created.text.startswith(f"pal_{row['prefix']}_")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer pal_x", "Bearer pal_{prefix}_wrong", "Basic {text}"])
def test_without_a_good_key_nobody_is_anybody(team, alice, header: str) -> None:
    key = create_api_key(team, "ci", ["read"], acting_user=alice)
    header = header.format(prefix=key.key.prefix, text=key.text)
    for method in ("get", "post"):
        answer = getattr(Client(headers={"authorization": header} if header else {}), method)("/api/v1/runs")
        assert (answer.status_code, answer["Content-Type"]) == (401, "application/problem+json")


def test_a_key_does_no_more_than_its_scopes(api_of, alice, run) -> None:
    reader = api_of(alice, scopes=("read",))
    assert reader.get("/runs").status_code == 200
    assert reader.post(f"/runs/{run.id}/cancel").status_code == 403
    launcher = api_of(alice, scopes=("launch",))
    assert launcher.post(f"/runs/{run.id}/cancel").status_code == 200
    assert launcher.get(f"/runs/{run.id}").status_code == 403


@pytest.mark.parametrize("path", ["/runs", "/experiments", "/alerts", "/environments", "/procedural-datasets"])
@pytest.mark.parametrize("scope", ["launch", "review"])
def test_a_key_that_may_not_read_sees_no_list_either(api_of, alice, run, path: str, scope: str) -> None:
    assert api_of(alice, scopes=(scope,)).get(path).status_code == 403


def test_a_key_ends_with_its_membership(api_of, alice, bob, team) -> None:
    api = api_of(bob)
    remove_member(team.memberships.get(user=bob), acting_user=alice)
    assert api.get("/runs").status_code == 401


def test_a_signed_in_browser_needs_its_csrf_token_to_write(alice, run) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.get("/api/v1/runs").status_code == 200
    assert client.post(f"/api/v1/runs/{run.id}/cancel").status_code == 403
    client.cookies["palestra_csrf"] = "a" * 32
    answer = client.post(f"/api/v1/runs/{run.id}/cancel", headers={"X-CSRFToken": "a" * 32})
    assert answer.status_code == 200


def test_experiments_are_made_changed_and_launched(api_of, bob) -> None:
    api = api_of(bob)
    made = api.post("/experiments", TINY).json()
    changed = api.client.put(
        f"/api/v1/experiments/{made['id']}", json.dumps({"name": "bigger"}), content_type="application/json"
    )
    assert changed.json()["name"] == "bigger"
    run = api.post(f"/experiments/{made['id']}/runs")
    assert (run.status_code, run.json()["name"], run.json()["experiment"]) == (201, "bigger", made["id"])


def test_the_description_lists_every_path_with_the_specs_own_schema(client) -> None:
    document = client.get("/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "/api/v1/runs/{run_id}/cancel" in document["paths"]
    body = document["paths"]["/api/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["$ref"].endswith("RunRequest")
    assert "group_size" in document["components"]["schemas"]["Schedule"]["properties"]


def test_the_description_names_every_error_and_the_key_of_every_post(client) -> None:
    document = client.get("/api/v1/openapi.json").json()
    assert all(f"`{scope}`" in document["info"]["description"] for scope in ("read", "launch", "review"))
    for operations in document["paths"].values():
        for method, one in operations.items():
            answers = one["responses"].items()
            reported = {status for status, answer in answers if "application/problem+json" in answer.get("content", {})}
            assert reported == {"401", "403", "404", "422"} | ({"409"} if method != "get" else set())
            named = [parameter["name"] for parameter in one.get("parameters", [])]
            assert named.count("Idempotency-Key") == (1 if method == "post" else 0)


@pytest.mark.parametrize("path", ["/runs/none", "/runs?limit=0"])
def test_errors_are_what_the_description_says(api_of: Any, victor: User, path: str) -> None:
    api = api_of(victor, scopes=("read",))
    reported = api.get(path).json()
    assert ProblemOut.model_validate(reported).model_dump(exclude_unset=True) == reported


def test_presets_are_listed_with_their_sources_and_told_knob_by_knob(api_of: Any, victor: User) -> None:
    api = api_of(victor, scopes=("read",))
    listed = api.get("/recipes").json()
    assert {item["name"] for item in listed} == set(preset_names())
    assert all(item["source"] and item["about"] for item in listed)
    one = api.get("/recipes/dr-grpo").json()
    knobs = {knob["path"]: knob for knob in one["knobs"]}
    assert knobs["objective.clip_high"]["value"] == one["recipe"]["objective"]["clip_high"]
    assert knobs["objective.clip_high"]["is_set"]
    assert not knobs["optimizer.weight_decay"]["is_set"]


@pytest.mark.parametrize("name", ["nobody", "..%2Fgrpo", "grpo.toml"])
def test_a_preset_that_is_not_there_is_404(api_of: Any, victor: User, name: str) -> None:
    assert api_of(victor, scopes=("read",)).get(f"/recipes/{name}").status_code == 404


def test_recipes_are_for_those_with_a_key() -> None:
    assert Client().get("/api/v1/recipes").status_code == 401


@pytest.mark.parametrize("path", ["/runs", "/experiments"])
def test_who_may_not_act_is_told_so_before_their_body_is_read(api_of, victor, path: str) -> None:
    for body in ({}, {"nonsense": 1}):
        assert api_of(victor).post(path, body).status_code == 403
    garbage = api_of(victor).client.post(f"/api/v1{path}", "{", content_type="application/json")
    assert garbage.status_code == 403


def test_a_stranger_learns_nothing_by_a_bad_body(api_of, charlie, team, experiment) -> None:
    client = api_of(charlie).client
    changed = client.put(f"/api/v1/experiments/{experiment.id}", "{}", content_type="application/json")
    assert changed.status_code == 404
    assert api_of(charlie).post(f"/experiments?team={team.slug}", {}).status_code == 404


@pytest.mark.parametrize(
    "path", ["/runs/{run}/cancel", "/runs/{run}/pause", "/runs/{run}/resume", "/experiments/{experiment}/runs"]
)
def test_a_body_that_nobody_reads_is_refused(api_of, bob, run, experiment, path: str) -> None:
    before = Run.objects.count()
    answer = api_of(bob).post(path.format(run=run.id, experiment=experiment.id), {"schedule": {"steps": 3}})
    assert answer.status_code == 422
    (problem,) = answer.json()["problems"]
    assert (problem["field"], problem["remedy"]) == ("body", "leave it out")
    assert '{"schedule"' in problem["value"]
    assert Run.objects.count() == before
    assert Run.objects.get(id=run.id).desired == Desired.RUN


def test_an_empty_object_is_no_body(api_of, bob, experiment) -> None:
    assert api_of(bob).post(f"/experiments/{experiment.id}/runs", {}).status_code == 201


def _all_of(api, path: str) -> list[list[Any]]:
    pages, cursor = [], None
    while True:
        page = api.get(path, limit=2, **({"cursor": cursor} if cursor else {})).json()
        pages.append(page["items"])
        if (cursor := page["next_cursor"]) is None:
            return pages


def test_experiments_come_in_pages_newest_change_first(api_of, bob) -> None:
    api = api_of(bob)
    made = [api.post("/experiments", TINY | {"name": f"e{number}"}).json()["name"] for number in range(5)]
    pages = _all_of(api, "/experiments")
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [row["name"] for page in pages for row in page] == made[::-1]


@pytest.mark.parametrize("path", ["/environments", "/procedural-datasets"])
def test_published_versions_come_in_pages(api_of, bob, team, path: str) -> None:
    for number in range(3):
        if path == "/environments":
            publish_environment(team, f"e{number}", PythonMath(), acting_user=bob)
        else:
            publish_dataset(team, f"d{number}", Dataset(), acting_user=bob)
    pages = _all_of(api_of(bob), path)
    assert [[row["name"][1:] for row in page] for page in pages] == [["2", "1"], ["0"]]


def test_checkpoints_come_in_pages_newest_first(api_of, bob, run) -> None:
    for step in (10, 20, 30):
        run.checkpoints.create(step=step, path=f"/x/{step}", size_bytes=1, seconds=1.0, at=timezone.now())
    pages = _all_of(api_of(bob), f"/runs/{run.id}/checkpoints")
    assert [[row["step"] for row in page] for page in pages] == [[30, 20], [10]]


@pytest.mark.parametrize("path", ["/experiments", "/environments", "/procedural-datasets", "/runs/{run}/checkpoints"])
@pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=nonsense"])
def test_pages_refuse_what_they_cannot_read(api_of, bob, run, path: str, query: str) -> None:
    answer = api_of(bob).get(f"{path.format(run=run.id)}?{query}")
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["field"] == query.partition("=")[0]


@pytest.mark.parametrize("path", ["/runs", "/runs/{run.id}", "/runs/{run.id}/egress", "/runs/{run.id}/trajectories"])
def test_a_query_that_an_address_does_not_take_is_refused_by_its_name(
    api_of: Any, bob: User, run: Run, path: str
) -> None:
    answer = api_of(bob).get(path.format(run=run), stat="failed")
    assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, "stat")


def test_a_stranger_is_not_told_which_queries_an_address_takes(api_of: Any, charlie: User, run: Run) -> None:
    answer = api_of(charlie).post(f"/runs/{run.id}/cancel?stat=failed")
    assert answer.status_code == 404
