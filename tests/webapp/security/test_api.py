"""Alerts, records and review decisions over REST: who may, what can be asked for, and what attackers get."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tests.webapp.runs.conftest import Engine, egress_record, finding
from webapp.accounts.models import IdempotentResponse, User
from webapp.runs.models import Run
from webapp.security.models import Alert, Quarantine, ReviewDecision

pytestmark = pytest.mark.django_db
SCOPES = ("read", "review")
SQL = "x' OR '1'='1'; DROP TABLE security_alert; --"


@pytest.fixture
def paths(alarming_run: Run) -> dict[str, str]:
    run, alert = f"/runs/{alarming_run.id}", f"/alerts/{Alert.objects.get().id}"
    held = f"{run}/quarantines/train-1-0"
    return {
        "run": run,
        "alert": alert,
        "held": held,
        "review_decisions": f"{held}/review-decisions",
        "ack": f"{alert}/acknowledge",
    }


def test_alerts_are_listed_and_shown_with_their_evidence(api_of: Any, victor: User, paths: dict[str, str]) -> None:
    api = api_of(victor)
    (listed,) = api.get("/alerts").json()["items"]
    assert listed["evidence"] == ["mining.subscribe to 203.0.113.7:4444"]
    assert (listed["trajectory"], listed["turn"], listed["state"]) == ("train-1-0", 1, "open")
    shown = api.get(paths["alert"]).json()
    assert {name: shown[name] for name in listed} == listed
    assert api.get(f"{paths['run']}/alerts").json()["items"] == [listed]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["b/3", "b/2", "b/1"]),
        ({"severity": "warning"}, ["b/2"]),
        ({"state": "acknowledged"}, []),
        ({"rule": "beacon"}, ["b/3"]),
        ({"rule": "beacon", "severity": "warning"}, []),
        ({"rule": SQL[:60]}, []),
    ],
)
def test_alerts_are_narrowed_down(
    engine: Engine, api_of: Any, victor: User, query: dict[str, str], found: list[str]
) -> None:
    changes = [{}, {"severity": "warning"}, {"rule": "beacon"}]
    engine.post(*(engine.alert(f"b/{i}", finding=finding(**one)) for i, one in enumerate(changes, start=1)))
    answer = api_of(victor).get("/alerts", **query)
    assert [document["alert_id"] for document in answer.json()["items"]] == found
    assert Alert.objects.count() == 3


def pages(api: Any, path: str, **query: Any) -> list[Any]:
    items, cursor = [], {}
    while True:
        page = api.get(path, limit=7, **query, **cursor).json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        assert len(page["items"]) == 7
        cursor = {"cursor": page["next_cursor"]}


def test_pages_give_every_alert_record_and_quarantine_once(engine: Engine, api_of: Any, victor: User) -> None:
    for sandbox in "ab":
        engine.post(engine.egress(*(egress_record(seq, sandbox) for seq in range(1, 21)), sandbox=sandbox))
    places = [{"trajectory": f"train-1-{index}", "turn": 0} for index in range(20)]
    engine.post(*(engine.alert(f"b/{index}", origin=origin) for index, origin in enumerate(places)))
    api, run = api_of(victor), f"/runs/{engine.run_id}"
    assert [page["alert_id"] for page in pages(api, "/alerts")] == [f"b/{index}" for index in reversed(range(20))]
    records = [(page["sandbox"], page["seq"]) for page in pages(api, f"{run}/egress")]
    assert records == [(sandbox, seq) for sandbox in "ba" for seq in range(20, 0, -1)]
    held = [page["trajectory"] for page in pages(api, f"{run}/quarantines")]
    assert sorted(held) == sorted(origin["trajectory"] for origin in places)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"trajectory": "train-1-0"}, [4, 3, 2, 1]),
        ({"trajectory": "train-1-1"}, []),
        ({"turn": "1"}, [4, 3, 2, 1]),
        ({"turn": "0"}, []),
        ({"decision": "allowed"}, [3]),
        ({"decision": "denied", "protocol": "dns"}, [2]),
        ({"name": "POOL.ex"}, [4, 2]),
        ({"name": "%"}, []),
        ({"name": "_"}, []),
        ({"name": SQL}, []),
        ({"address": "203.0.113.9"}, [3]),
        ({"address": "::ffff:203.0.113.9"}, [3]),
        ({"sandbox": "sandbox-1"}, [4, 3, 2, 1]),
        ({"sandbox": SQL}, []),
    ],
)
def test_records_are_narrowed_down(
    engine: Engine, api_of: Any, victor: User, query: dict[str, str], found: list[int]
) -> None:
    records = [
        egress_record(1),
        egress_record(2, attempt={"protocol": "dns", "name": "a.pool.example", "query_type": "A"}),
        egress_record(3, attempt={"address": "203.0.113.9"}, decision={"allowed": True}),
        egress_record(4, attempt={"sni": "pool.example"}),
    ]
    engine.post(engine.egress(*records))
    answer = api_of(victor).get(f"/runs/{engine.run_id}/egress", **query)
    assert [document["seq"] for document in answer.json()["items"]] == found


def test_what_a_sandbox_sent_first_comes_as_hex(engine: Engine, api_of: Any, victor: User) -> None:
    engine.post(engine.egress(egress_record(opening_up="_wBTU0g=")))
    (record,) = api_of(victor).get(f"/runs/{engine.run_id}/egress").json()["items"]
    assert record["opening_up_hex"] == "ff00535348"


# --- review decisions ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["alice", "rita"])
def test_owners_and_reviewers_rule(
    api_of: Any, request: pytest.FixtureRequest, paths: dict[str, str], name: str
) -> None:
    api = api_of(request.getfixturevalue(name), scopes=SCOPES)
    answer = api.post(paths["review_decisions"], {"verdict": "malicious", "note": "mining"})
    assert (answer.status_code, answer.json()["number"], answer.json()["verdict"]) == (201, 1, "malicious")
    held = api.get(paths["held"]).json()
    assert (held["state"], held["review_decision"], held["note"]) == ("malicious", 1, "mining")
    assert [item["number"] for item in held["history"]] == [1]


@pytest.mark.parametrize("name", ["bob", "victor"])
@pytest.mark.parametrize("path", ["review_decisions", "ack"])
def test_members_and_viewers_may_not_rule(
    api_of: Any, request: pytest.FixtureRequest, paths: dict[str, str], name: str, path: str
) -> None:
    api = api_of(request.getfixturevalue(name), scopes=("read", "launch", "review"))
    answer = api.post(paths[path], {"verdict": "benign"})
    assert answer.status_code == 403
    assert "may not review" in answer.json()["detail"]
    assert Quarantine.objects.get().state == "pending"
    assert Alert.objects.get().state == "open"


@pytest.mark.parametrize("path", ["review_decisions", "ack"])
def test_a_key_without_the_scope_may_not_rule_for_its_reviewer(
    api_of: Any, rita: User, paths: dict[str, str], path: str
) -> None:
    assert api_of(rita, scopes=("read", "launch")).post(paths[path], {"verdict": "benign"}).status_code == 403


def test_another_team_sees_and_changes_nothing(api_of: Any, charlie: User, paths: dict[str, str]) -> None:
    api = api_of(charlie, scopes=("read", "launch", "review"))
    assert api.get("/alerts").json()["items"] == []
    for path in (
        paths["alert"],
        paths["held"],
        *(f"{paths['run']}/{page}" for page in ("alerts", "egress", "quarantines")),
    ):
        assert api.get(path).status_code == 404, path
    assert api.post(paths["ack"]).status_code == 404
    assert api.post(paths["review_decisions"], {"verdict": "benign"}).status_code == 404
    assert api.get("/alerts", run=paths["run"].removeprefix("/runs/")).json()["items"] == []
    assert Quarantine.objects.get().state == "pending"


def test_nobody_at_all_gets_401(paths: dict[str, str]) -> None:
    for path in ("/alerts", paths["alert"], f"{paths['run']}/egress"):
        assert Client().get(f"/api/v1{path}").status_code == 401


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "verdict"),
        ({"verdict": "pending"}, "verdict"),
        ({"verdict": "benign", "note": "x" * 2001}, "note"),
        ({"verdict": "benign", "note": "a\0b"}, "note"),
        ({"verdict": "benign", "vredict": 1}, "vredict"),
    ],
)
def test_a_bad_review_decision_names_field_value_and_remedy(
    api_of: Any, rita: User, paths: dict[str, str], body: Any, field: str
) -> None:
    answer = api_of(rita, scopes=SCOPES).post(paths["review_decisions"], body)
    assert (answer.status_code, answer["Content-Type"]) == (422, "application/problem+json")
    (problem,) = answer.json()["problems"]
    assert problem["field"] == field
    assert problem["remedy"]
    assert "value" in problem
    assert not ReviewDecision.objects.exists()


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/alerts", {"state": "closed"}, "state"),
        ("/alerts", {"severity": SQL}, "severity"),
        ("/alerts", {"run": SQL}, "run"),
        ("/alerts", {"rule": "a\0b"}, "rule"),
        ("/alerts", {"cursor": "bm9uc2Vuc2U"}, "cursor"),
        ("/alerts", {"limit": "0"}, "limit"),
        ("{run}/egress", {"address": "203.0.113.7 OR 1=1"}, "address"),
        ("{run}/egress", {"decision": "maybe"}, "decision"),
        ("{run}/egress", {"protocol": "sctp"}, "protocol"),
        ("{run}/egress", {"turn": "-1"}, "turn"),
        ("{run}/egress", {"name": "a\0b"}, "name"),
        ("{run}/egress", {"cursor": "WzEsICJ4Il0"}, "cursor"),
        ("{run}/quarantines", {"state": "frozen"}, "state"),
    ],
)
def test_a_filter_that_cannot_be_used_says_which(
    api_of: Any, victor: User, paths: dict[str, str], path: str, query: dict[str, str], field: str
) -> None:
    answer = api_of(victor).get(path.format(**paths), **query)
    assert answer.status_code == 422, answer.content
    (problem,) = answer.json()["problems"]
    assert problem["field"] == field
    assert problem["remedy"]


@pytest.mark.parametrize(
    "path",
    [
        "/alerts/999999999", "/alerts/99999999999999999999999", "{run}/quarantines/train-9-9",
        "{run}/quarantines/%00", "{run}/quarantines/x'%20OR%201=1", "/runs/00000000-0000-0000-0000-000000000000/egress",
    ],
)  # fmt: skip
def test_what_is_not_there_is_404(api_of: Any, rita: User, paths: dict[str, str], path: str) -> None:
    api = api_of(rita, scopes=SCOPES)
    assert api.get(path.format(**paths)).status_code == 404
    if "quarantines" in path:
        assert api.post(f"{path.format(**paths)}/review-decisions", {"verdict": "benign"}).status_code == 404


def test_a_review_decision_sent_twice_under_one_key_is_one(api_of: Any, rita: User, paths: dict[str, str]) -> None:
    api = api_of(rita, scopes=SCOPES)
    key = {"idempotency-key": "review-decision-1"}
    first = api.post(paths["review_decisions"], {"verdict": "malicious"}, **key)
    api.post(paths["review_decisions"], {"verdict": "benign"})
    again = api.post(paths["review_decisions"], {"verdict": "malicious"}, **key)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert ReviewDecision.objects.count() == 2
    assert Quarantine.objects.get().state == "benign"
    assert api.post(paths["review_decisions"], {"verdict": "benign"}, **key).status_code == 409
    assert IdempotentResponse.objects.count() == 1


def test_acknowledging_takes_an_alert_off_the_open_ones(api_of: Any, rita: User, paths: dict[str, str]) -> None:
    api = api_of(rita, scopes=SCOPES)
    for _ in range(2):
        assert api.post(paths["ack"]).json()["state"] == "acknowledged"
    assert api.get("/alerts", state="open").json()["items"] == []
    assert api.get(paths["held"]).json()["state"] == "pending"


def test_the_description_tells_of_these_endpoints(client: Client, api_of: Callable[..., Any], victor: User) -> None:
    described = api_of(victor).get("/openapi.json").json()
    for path in (
        "/alerts",
        "/alerts/{alert_id}",
        "/runs/{run_id}/egress",
        "/runs/{run_id}/quarantines/{trajectory_id}/review-decisions",
    ):
        assert f"/api/v1{path}" in described["paths"], path
