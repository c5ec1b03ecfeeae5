"""Decisions about many alerts: all or nothing, the same when sent twice, through the doors, in few statements."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.webapp.runs.conftest import Engine, finding
from tests.webapp.security.test_groups import many
from webapp.accounts.models import AuditEntry, Membership, User
from webapp.runs.models import Run
from webapp.security.models import Alert, Quarantine, ReviewDecision

pytestmark = pytest.mark.django_db
SCOPES = ("read", "review")
DECISIONS = "/alerts/decisions"


def newest() -> int:
    alert = Alert.objects.order_by("-id").first()
    assert alert is not None
    return alert.id


def states() -> dict[str, int]:
    found: dict[str, int] = {}
    for state in Quarantine.objects.values_list("state", flat=True):
        found[state] = found.get(state, 0) + 1
    return found


def test_all_like_one_are_decided_at_once_numbered_kept_and_audited(engine: Engine, api_of: Any, rita: User) -> None:
    many(engine, 120)
    api = api_of(rita, scopes=SCOPES)
    answer = api.post(DECISIONS, {"decision": "benign", "like": [newest()], "note": "a drill"})
    assert answer.status_code == 200, answer.content
    assert answer.json() == {
        "alerts": 120, "trajectories": 120, "unchanged": 0, "held_back": 0, "without_effect": 0,
    }  # fmt: skip
    assert states() == {"benign": 120}
    assert sorted(ReviewDecision.objects.values_list("number", flat=True)) == list(range(1, 121))
    assert sorted(Quarantine.objects.values_list("number", flat=True)) == list(range(1, 121))
    assert Run.objects.get().review_decisions == 120
    assert not Alert.objects.exclude(state="acknowledged").exists()
    [entry] = AuditEntry.objects.filter(verb="quarantine.decide")
    assert entry.user == rita
    assert (entry.details["trajectories"], entry.details["review_decisions"]) == (120, "1 to 120")
    reported = engine.post(heartbeat=engine.heartbeat(decided_through=0)).json()["review_decisions"]
    assert len(reported) == 100
    assert {line["verdict"] for line in reported} == {"benign"}


def test_no_statement_compares_the_alerts_with_themselves_before_they_are_locked(
    engine: Engine, api_of: Any, rita: User
) -> None:
    """As such a statement took over a minute for 450 alerts of a table that had no statistics yet."""
    many(engine, 20)
    api, body = api_of(rita, scopes=SCOPES), {"decision": "benign", "like": [newest()]}
    with CaptureQueriesContext(connection) as statements:
        assert api.post(DECISIONS, body).status_code == 200
    texts = [statement["sql"] for statement in statements]
    [locking] = [number for number, text in enumerate(texts) if "FOR UPDATE" in text and 'FROM "runs_run"' in text]
    assert "security_alert" not in texts[locking]
    assert max(text.count('FROM "security_alert"') for text in texts[:locking]) == 1


def test_sent_again_it_changes_nothing(engine: Engine, api_of: Any, rita: User) -> None:
    many(engine, 5)
    api = api_of(rita, scopes=SCOPES)
    body = {"decision": "malicious", "like": [newest()]}
    api.post(DECISIONS, body)
    again = api.post(DECISIONS, body).json()
    assert (again["alerts"], again["trajectories"], again["unchanged"]) == (0, 0, 5)
    assert ReviewDecision.objects.count() == 5
    assert AuditEntry.objects.filter(verb="quarantine.decide").count() == 1
    key = {"idempotency-key": "d-1"}
    first = api.post(DECISIONS, {"decision": "benign", "like": [newest()]}, **key)
    assert api.post(DECISIONS, {"decision": "benign", "like": [newest()]}, **key).json() == first.json()
    assert ReviewDecision.objects.count() == 10


def test_alerts_that_came_since_somebody_looked_are_left_alone(engine: Engine, api_of: Any, rita: User) -> None:
    many(engine, 3)
    seen = newest()
    many(engine, 2, first=3)
    answer = api_of(rita, scopes=SCOPES).post(DECISIONS, {"decision": "benign", "like": [seen], "through": seen})
    assert answer.json()["trajectories"] == 3
    assert states() == {"benign": 3, "pending": 2}


def test_named_alerts_only_and_acknowledging_rules_on_nothing(engine: Engine, api_of: Any, rita: User) -> None:
    many(engine, 4)
    api = api_of(rita, scopes=SCOPES)
    one, two, *_ = Alert.objects.order_by("id").values_list("id", flat=True)
    assert api.post(DECISIONS, {"decision": "acknowledge", "alerts": [one, two]}).json()["alerts"] == 2
    assert Alert.objects.filter(state="acknowledged").count() == 2
    assert states() == {"pending": 4}
    assert AuditEntry.objects.get(verb="alert.acknowledge").details["alerts"] == 2


def test_another_undecided_alert_holds_a_benign_review_decision_back(engine: Engine, api_of: Any, rita: User) -> None:
    many(engine, 2)
    like = newest()
    other = finding(rule="ssh-outbound", subject="203.0.113.22:2222")
    engine.post(engine.alert("b/x", origin={"trajectory": "train-1-0", "turn": 2}, finding=other))
    api = api_of(rita, scopes=SCOPES)
    answer = api.post(DECISIONS, {"decision": "benign", "like": [like]}).json()
    assert (answer["trajectories"], answer["held_back"]) == (1, 1)
    assert Quarantine.objects.get(trajectory_id="train-1-0").state == "pending"
    assert Alert.objects.filter(trajectory_id="train-1-0", state="open").count() == 2
    both = api.post(DECISIONS, {"decision": "benign", "like": [like, newest()]}).json()
    assert (both["trajectories"], both["held_back"]) == (1, 0)
    assert states() == {"benign": 2}


def test_a_group_that_quarantined_nothing_rules_on_nothing(engine: Engine, api_of: Any, rita: User) -> None:
    engine.post(engine.alert("b/1"))
    engine.post(engine.alert("b/2", finding=finding(rule="beacon", severity="warning"), quarantined=False))
    answer = api_of(rita, scopes=SCOPES).post(DECISIONS, {"decision": "benign", "like": [newest()]}).json()
    assert (answer["alerts"], answer["trajectories"]) == (1, 0)
    assert states() == {"pending": 1}


def test_after_the_run_a_decision_is_kept_and_says_that_it_changes_nothing(
    engine: Engine, api_of: Any, rita: User
) -> None:
    many(engine, 2)
    engine.post(engine.finished())
    answer = api_of(rita, scopes=SCOPES).post(DECISIONS, {"decision": "benign", "like": [newest()]}).json()
    assert (answer["alerts"], answer["trajectories"], answer["without_effect"]) == (2, 2, 2)
    assert states() == {"benign": 2}


def test_a_decision_about_2000_alerts_takes_as_many_statements_as_one_about_200(
    engine: Engine, api_of: Any, rita: User
) -> None:
    api = api_of(rita, scopes=SCOPES)

    def decided(rows: int) -> int:
        with CaptureQueriesContext(connection) as captured:
            answer = api.post(DECISIONS, {"decision": "benign", "like": [newest()]})
        assert answer.json()["trajectories"] == rows
        return len(captured)

    many(engine, 200)
    few = decided(200)
    many(engine, 2000, first=200)
    assert decided(2000) <= few + 4  # Django inserts review decisions in pieces of 1,000


@pytest.mark.parametrize("name", ["bob", "victor"])
def test_members_and_viewers_are_refused_before_their_body_is_read(
    engine: Engine, api_of: Any, request: pytest.FixtureRequest, name: str
) -> None:
    many(engine, 1)
    api = api_of(request.getfixturevalue(name), scopes=("read", "launch", "review"))
    for body in ({"decision": "benign", "like": [newest()]}, {"decision": 7}, {}):
        assert api.post(DECISIONS, body).status_code == 403, body
    assert states() == {"pending": 1}


def test_a_key_without_the_scope_is_refused_and_nobody_is_401(api_of: Any, rita: User) -> None:
    assert api_of(rita, scopes=("read", "launch")).post(DECISIONS, {}).status_code == 403
    assert Client().post(f"/api/v1{DECISIONS}", "{}", content_type="application/json").status_code == 401


def test_another_teams_alerts_are_not_there(engine: Engine, api_of: Any, charlie: User) -> None:
    many(engine, 1)
    api = api_of(charlie, scopes=("read", "launch", "review"))
    for named in ({"like": [newest()]}, {"alerts": [newest()]}):
        assert api.post(DECISIONS, {"decision": "benign", **named}).status_code == 404
    assert api.get("/alerts/groups").json()["items"] == []
    assert states() == {"pending": 1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "decision"),
        ({"decision": "pending", "like": [1]}, "decision"),
        ({"decision": "benign"}, "alerts"),
        ({"decision": "benign", "like": ["x"]}, "like[0]"),
        ({"decision": "benign", "like": [0]}, "like[0]"),
        ({"decision": "benign", "like": list(range(1, 202))}, "like"),
        ({"decision": "benign", "like": [1], "note": "x" * 2001}, "note"),
        ({"decision": "benign", "like": [1], "lkie": 1}, "lkie"),
    ],
)
def test_a_bad_decision_names_field_and_remedy(
    engine: Engine, api_of: Any, rita: User, body: dict[str, Any], field: str
) -> None:
    many(engine, 1)
    body = body | ({"like": [newest()]} if body.get("like") == [1] else {})
    answer = api_of(rita, scopes=SCOPES).post(DECISIONS, body)
    assert answer.status_code == 422, answer.content
    problems = {document["field"].replace(".", "[", 1).rstrip("]") for document in answer.json()["problems"]}
    assert field.rstrip("]") in problems, answer.json()
    assert all(document["remedy"] for document in answer.json()["problems"])
    assert states() == {"pending": 1}


# --- on the page ----------------------------------------------------------------------------------
def page_client(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_marked_rows_are_decided_on_the_page_and_it_says_what_came_of_it(engine: Engine, rita: User) -> None:
    many(engine, 6, destinations=2)
    answer = page_client(rita).post(
        "/alerts/decide", {"decision": "benign", "like": [newest()], "back": "/alerts/?state="}, follow=True
    )
    assert answer.redirect_chain == [("/alerts/?state=", 302)]
    assert "3 trajectories found benign; 3 alerts decided." in answer.content.decode()
    assert states() == {"benign": 3, "pending": 3}


def test_everything_that_matches_is_decided_also_beyond_the_page(engine: Engine, rita: User) -> None:
    many(engine, 180, destinations=60)
    seen = newest()
    engine.post(engine.alert("b/w", origin={"trajectory": "w", "turn": 0}, finding=finding(severity="warning")))
    many(engine, 1, first=500)
    body = {"decision": "malicious", "matching": "1", "severity": "critical", "state": "open", "through": seen}
    page_client(rita).post("/alerts/decide", body)
    assert states() == {"malicious": 180, "pending": 2}


@pytest.mark.parametrize("query", ["", "?severity=warning"])
def test_a_marked_row_stands_for_the_alerts_that_its_list_shows(engine: Engine, rita: User, query: str) -> None:
    """Alike ones that a filter hides keep what was decided about them: another state, another severity."""
    many(engine, 5)
    reviewer = page_client(rita)
    if not query:
        reviewer.post("/alerts/decide", {"decision": "malicious", "like": [newest()]})
    alike = finding(subject="203.0.113.0:22", severity="warning" if query else "critical")
    events = [
        engine.alert(f"late/{number}", origin={"trajectory": f"late-{number}", "turn": 0}, finding=alike)
        for number in range(3)
    ]
    engine.post(*events)
    form = reviewer.get(f"/alerts/{query}").content.decode().partition('id="decide"')[2].partition("</form>")[0]
    assert re.findall(r'data-count="(\d+)"', form) == ["3"]
    fields = dict(re.findall(r'<input type="hidden" name="([a-z]+)" value="([^"]*)">', form))
    reviewer.post("/alerts/decide", fields | {"decision": "benign", "like": [newest()]})
    assert states() == {"benign": 3, ("pending" if query else "malicious"): 5}


@pytest.mark.parametrize("body", [{}, {"like": ["x"]}, {"decision": "shrug", "like": ["1"]}, {"decision": "benign"}])
def test_what_makes_no_sense_is_refused_in_words(engine: Engine, rita: User, body: dict[str, Any]) -> None:
    many(engine, 1)
    answer = page_client(rita).post("/alerts/decide", {"decision": "benign"} | body, follow=True)
    assert answer.status_code == 200
    assert "notice bad" in answer.content.decode()
    assert states() == {"pending": 1}


def test_only_reviewers_decide_on_the_page_and_never_without_a_token(
    engine: Engine, bob: User, victor: User, charlie: User, rita: User
) -> None:
    many(engine, 1)
    body = {"decision": "benign", "like": [newest()]}
    assert page_client(bob).post("/alerts/decide", body).status_code == 403
    assert page_client(victor).post("/alerts/decide", body).status_code == 403
    assert page_client(charlie).post("/alerts/decide", body).status_code == 404
    assert page_client(charlie).post("/alerts/decide", {"decision": "benign", "matching": "1"}).status_code == 302
    assert Client().post("/alerts/decide", body).status_code == 302
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(rita)
    assert strict.post("/alerts/decide", body).status_code == 403
    assert states() == {"pending": 1}
    assert 'name="like"' not in page_client(victor).get("/alerts/").content.decode()


def test_a_viewer_of_one_team_who_reviews_in_another_decides_only_there(
    engine: Engine, charlie: User, team: Any
) -> None:
    Membership.objects.create(team=team, user=charlie, role="viewer")
    many(engine, 1)
    assert page_client(charlie).post("/alerts/decide", {"decision": "benign", "like": [newest()]}).status_code == 403
    page_client(charlie).post("/alerts/decide", {"decision": "benign", "matching": "1", "state": ""})
    assert states() == {"pending": 1}
