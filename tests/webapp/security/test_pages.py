"""Pages of alerts: who sees what, what leads where, and that hostile text stays text."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape

from sandboxes.egress.detectors.registry import RULES
from tests.webapp.runs.conftest import Engine, egress_record, finding
from webapp.accounts.models import Membership, User
from webapp.runs.models import Run
from webapp.security.models import Alert, Quarantine, ReviewDecision
from webapp.security.rules import rule_texts
from webapp.security.services import review
from webapp.security.views import HELD_OF_RUN

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> https://evil.example/x"


def page_of(user: User, path: str, status: int = 200, **headers: str) -> str:
    client = Client(headers=headers)
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == status, path
    return answer.content.decode()


@pytest.fixture
def paths(alarming_run: Run) -> dict[str, str]:
    run, alert = f"/runs/{alarming_run.id}/", f"/alerts/{Alert.objects.get().id}/"
    return {"run": run, "alert": alert, "security": f"{run}security/", "trajectory": f"{run}trajectories/train-1-0/"}


def test_the_inbox_shows_open_alerts_and_where_they_lead(alarming_run: Run, victor: User, paths: Any) -> None:
    text = page_of(victor, "/alerts/")
    assert f'href="{paths["alert"]}"' in text
    for phrase in (
        "Mining protocol",
        "203.0.113.7:4444",
        "critical",
        "train-1-0#2",
        "waits for a review decision",
        "#1",
    ):
        assert phrase in text, phrase
    assert "data-review" not in text  # a viewer's keys 1 and 2 do nothing


def test_the_inbox_is_narrowed_down_and_says_when_nothing_matches(
    alarming_run: Run, engine: Engine, rita: User, paths: Any
) -> None:
    engine.post(engine.alert("b/1", finding=finding(severity="warning", rule="beacon", title="Regular attempts")))
    rows = lambda query: re.findall(r'data-alert="(\d+)"', page_of(rita, f"/alerts/{query}"))  # noqa: E731
    assert len(rows("")) == 2
    assert len(rows("?severity=warning")) == len(rows("?rule=beacon")) == 1
    assert len(rows(f"?run={alarming_run.id}")) == 2
    assert rows("?run=00000000-0000-0000-0000-000000000000") == rows("?state=acknowledged") == []
    review(alarming_run, "train-1-0", "benign", acting_user=rita)
    assert rows("") == []
    assert "No open alerts" in page_of(rita, "/alerts/")
    assert "No alert matches" in page_of(rita, "/alerts/?severity=info")
    assert len(rows("?state=")) == 2


@pytest.mark.parametrize("query", ["?state=%27%20OR%201=1", "?run=x%00", "?rule=%00", "?page=9999", "?severity=%22%3E"])
def test_a_filter_that_makes_no_sense_breaks_nothing(alarming_run: Run, victor: User, query: str) -> None:
    page_of(victor, f"/alerts/{query}")


@pytest.mark.parametrize(
    "query",
    [
        "?turn=99999999999999999999",
        "?before=1-x",
        "?before=-1--1",
        "?name=%25",
        "?name=%00",
        "?address='--",
        "?decision=x",
    ],
)
def test_the_explorer_takes_any_question(alarming_run: Run, victor: User, paths: Any, query: str) -> None:
    page_of(victor, paths["security"] + query)


def test_an_alert_shows_evidence_rule_records_and_the_way_to_the_turn(victor: User, paths: Any) -> None:
    text = page_of(victor, paths["alert"])
    assert "mining.subscribe to 203.0.113.7:4444" in text
    assert f'href="{paths["trajectory"]}#turn-2"' in text
    assert 'href="/alerts/rules/#mining-stratum"' in text
    assert "first bytes of stratum" in text  # docs/egress.md's words
    assert "T1496" in text
    assert "Safety &amp; Security" in text
    assert "pool.example" in text  # the record beside it
    assert 'id="turn-2"' in page_of(victor, paths["trajectory"])


def test_the_way_to_the_turn_opens_when_the_trajectory_is_reported(engine: Engine, victor: User) -> None:
    engine.post(engine.started(), engine.alert())
    text = page_of(victor, f"/alerts/{Alert.objects.get().id}/")
    assert "turn-link" not in text
    assert "at the end of its step" in text


def test_the_reader_is_told_what_a_review_decision_does(alarming_run: Run, rita: User, paths: Any) -> None:
    for path in (paths["alert"], paths["trajectory"]):
        text = page_of(rita, path)
        assert "Benign: trained on at the next step if at most 8 updates happened since." in text
        assert "Malicious: never trained on." in text
        assert "It was sampled for step 1, and the run is at step 0." in text
    Run.objects.update(step=20)
    assert "That is too late for training" in page_of(rita, paths["alert"])


@pytest.mark.parametrize(("name", "may"), [("alice", True), ("rita", True), ("bob", False), ("victor", False)])
def test_only_owners_and_reviewers_get_the_form_and_may_use_it(
    request: pytest.FixtureRequest, paths: Any, name: str, may: bool
) -> None:
    user = request.getfixturevalue(name)
    for path in (paths["alert"], paths["trajectory"]):
        assert ('name="verdict" value="benign"' in page_of(user, path)) is may
    client = Client()
    client.force_login(user)
    posted = [f"{paths['trajectory']}review-decision", f"{paths['alert']}acknowledge"]
    answers = [client.post(path, {"verdict": "benign", "note": "fine"}).status_code for path in posted]
    assert answers == ([302, 302] if may else [403, 403])
    assert Quarantine.objects.get().state == ("benign" if may else "pending")
    assert Alert.objects.get().state == ("acknowledged" if may else "open")


def test_strangers_and_visitors_find_nothing(charlie: User, paths: Any) -> None:
    client = Client()
    client.force_login(charlie)
    for path in (paths["alert"], paths["security"], paths["trajectory"]):
        assert client.get(path).status_code == 404, path
    assert client.post(f"{paths['trajectory']}review-decision", {"verdict": "benign"}).status_code == 404
    assert client.post(f"{paths['alert']}acknowledge").status_code == 404
    assert "data-alert=" not in page_of(charlie, "/alerts/?state=")
    assert Client().get(paths["alert"]).status_code == Client().get("/alerts/").status_code == 302
    assert Quarantine.objects.get().state == "pending"


def test_a_review_decision_goes_back_to_where_it_was_made_but_never_elsewhere(rita: User, paths: Any) -> None:
    client = Client()
    client.force_login(rita)
    for back, target in [
        (paths["alert"], paths["alert"]),
        ("https://evil.example/", paths["trajectory"]),
        ("//evil.example/", paths["trajectory"]),
        ("javascript:alert(1)", paths["trajectory"]),
        ("", paths["trajectory"]),
    ]:
        answer = client.post(f"{paths['trajectory']}review-decision", {"verdict": "benign", "back": back})
        assert answer["Location"] == target, back


def test_a_refused_review_decision_says_why_on_the_page(rita: User, paths: Any) -> None:
    client = Client()
    client.force_login(rita)
    answer = client.post(f"{paths['trajectory']}review-decision", {"verdict": "perhaps"}, follow=True)
    assert "this is no verdict" in answer.content.decode().lower()
    assert not ReviewDecision.objects.exists()


def test_review_decisions_stay_on_record_on_the_page(alarming_run: Run, rita: User, alice: User, paths: Any) -> None:
    review(alarming_run, "train-1-0", "malicious", "it mined", acting_user=rita)
    review(alarming_run, "train-1-0", "benign", "no, it was the tutorial", acting_user=alice)
    text = page_of(rita, paths["trajectory"])
    assert "Found benign" in text
    assert "2 review decisions" in text
    assert text.index("no, it was the tutorial") < text.index("it mined")


def test_the_security_of_a_run_counts_lists_and_filters(victor: User, paths: Any) -> None:
    text = page_of(victor, paths["security"])
    for phrase in (
        "Mining protocol",
        "train-1-0",
        "1 open",
        "1 waits for a review decision",
        "203.0.113.7:4444",
        "pool.example",
        "No rule allows it",
    ):
        assert phrase in text, phrase
    dns_only = page_of(victor, f"{paths['security']}?protocol=dns", **{"HX-Request": "true"})
    assert "pool.example" in dns_only
    assert "tcp 203.0.113.7:4444" not in dns_only
    assert "No record matches" in page_of(victor, f"{paths['security']}?turn=9")


def test_of_many_quarantined_trajectories_a_runs_page_shows_a_few_and_first_those_that_wait(
    engine: Engine, rita: User
) -> None:
    places = [f"train-1-{number}" for number in range(HELD_OF_RUN + 5)]
    events = [engine.started()]
    events += [engine.alert(f"b/{at}", origin={"trajectory": origin, "turn": 0}) for at, origin in enumerate(places)]
    engine.post(*events)
    assert Quarantine.objects.count() == len(places)
    for origin in places[:7]:
        review(Run.objects.get(), origin, "malicious", acting_user=rita)
    table = page_of(rita, f"/runs/{engine.run_id}/security/").partition("held-title")[2].partition("</table>")[0]
    assert f"{HELD_OF_RUN} of {len(places)}, those that wait first" in table
    listed = re.findall(r"train-1-(\d+)", table)
    assert len(listed) == HELD_OF_RUN
    assert {int(number) for number in listed} >= set(range(7, len(places)))


def test_nothing_of_a_run_that_has_ended_still_waits(alarming_run: Run, engine: Engine, rita: User, paths: Any) -> None:
    engine.post(engine.finished())
    assert Quarantine.objects.get().state == "pending"
    for path in (paths["alert"], paths["trajectory"], paths["security"]):
        text = page_of(rita, path)
        for gone in ("Waiting for a review decision", "waits for a review decision", "Benign: trained on"):
            assert gone not in text, (path, gone)
    for path in (paths["alert"], paths["trajectory"]):
        assert "Not decided before the run ended" in page_of(rita, path)
        assert "a review decision is kept, and changes no training any more" in page_of(rita, path)
        assert 'name="verdict" value="benign"' in page_of(rita, path), "it can still be put on record"


def test_a_run_that_tried_nothing_says_so(run: Run, victor: User) -> None:
    text = page_of(victor, f"/runs/{run.id}/security/")
    assert "No sandbox has tried to reach anything" in text
    assert 'data-tab="security"' in page_of(victor, f"/runs/{run.id}/?tab=security")


def test_the_explorer_pages_through_everything(engine: Engine, victor: User) -> None:
    engine.post(engine.egress(*(egress_record(seq, "a") for seq in range(1, 71)), sandbox="a"))
    first = page_of(victor, f"/runs/{engine.run_id}/security/")
    (before,) = set(re.findall(r"before=([\d-]+)", first))
    second = page_of(victor, f"/runs/{engine.run_id}/security/?before={before}")
    assert (first.count("denied</span>"), second.count("denied</span>")) == (50, 20)


def test_a_trajectory_shows_each_turn_what_its_sandbox_tried(
    engine: Engine, alarming_run: Run, victor: User, paths: Any
) -> None:
    engine.post(engine.egress(*(egress_record(seq, "c") for seq in range(1, 31)), sandbox="c"))
    text = page_of(victor, paths["trajectory"])
    turns = re.split(r'id="turn-(\d)"', text)
    watched = {turns[i]: turns[i + 1] for i in range(1, len(turns), 2)}
    assert "Mining protocol" not in watched["1"]
    assert "Mining protocol" in watched["2"]
    assert "32 attempts to reach something: 32 denied, 0 allowed" in watched["2"]
    assert "12 more" in watched["2"]
    assert "frozen by an alert" in text


def test_the_list_of_trajectories_is_narrowed_to_quarantined_ones(
    engine: Engine, alarming_run: Run, rita: User, api_of: Any
) -> None:
    engine.post(engine.trajectory(index=1), engine.trajectory(index=2))
    lists = f"/runs/{alarming_run.id}/trajectories"

    def found(quarantine_status: str) -> list[str]:
        page = page_of(rita, f"{lists}/?quarantine={quarantine_status}")
        shown = re.findall(r'mono" data-cell="id" href="[^"#]+">([^<]+)</a>', page)
        over_rest = [
            document["id"]
            for document in api_of(rita, scopes=("read",)).get(lists, quarantine=quarantine_status).json()["items"]
        ]
        assert shown == over_rest
        return shown

    assert found("quarantined") == found("pending") == ["train-1-0"]
    assert found("benign") == []
    review(alarming_run, "train-1-0", "benign", acting_user=rita)
    assert found("benign") == ["train-1-0"]
    assert found("pending") == []
    every = api_of(rita, scopes=("read",)).get(lists).json()["items"]
    assert [(item["id"], item["alerts"], item["quarantine"]) for item in every] == [
        ("train-1-2", 0, None), ("train-1-1", 0, None), ("train-1-0", 1, "benign"),
    ]  # fmt: skip
    assert api_of(rita, scopes=("read",)).get(lists, stop_reason="frozen").json()["items"][0]["id"] == "train-1-0"


def test_nothing_out_of_a_sandbox_becomes_markup_or_a_link(engine: Engine, rita: User) -> None:
    evil = finding(title=EVIL, subject=EVIL, evidence=[EVIL] * 8, rule="x", category="Controllability", label=EVIL)
    attempt = {"name": EVIL, "sni": EVIL, "host": EVIL, "method": "<xss>", "query_type": "<xss>"}
    record = egress_record(label=EVIL, attempt=attempt, decision={"rule": EVIL, "policy": EVIL}, opening_up="PHhzcz4=")
    events = [engine.started(), engine.egress(record), engine.alert(finding=evil), engine.trajectory()]
    assert engine.post(*events).status_code == 200
    run = f"/runs/{engine.run_id}/"
    review(Run.objects.get(), "train-1-0", "benign", EVIL, acting_user=rita)
    alert = f"/alerts/{Alert.objects.get().id}/"
    for path in ("/alerts/?state=", alert, f"{run}security/", f"{run}trajectories/train-1-0/"):
        text = page_of(rita, path)
        assert "&lt;script&gt;alert(1)" in text, path
        for markup in ("<script>alert", "<img src=x", "<xss>", 'href="https://evil'):
            assert markup not in text, (path, markup)


def test_the_bell_counts_open_alerts_of_ones_own_teams_on_every_page(
    engine: Engine, alarming_run: Run, victor: User, charlie: User
) -> None:
    engine.post(engine.alert("b/1"))
    count = r"data-open-alerts( hidden)?>(\d+)<"
    assert re.findall(count, page_of(victor, "/")) == [("", "2"), ("", "2")]
    assert re.findall(count, page_of(charlie, "/experiments/")) == [(" hidden", "0"), (" hidden", "0")]


def test_a_paused_run_says_which_alert_paused_it(engine: Engine, launching_run: Run, victor: User) -> None:
    launching_run.spec["environment"]["response"]["pause"] = True
    launching_run.save(update_fields=["spec"])
    engine.post(engine.started(), engine.alert())
    assert "Paused by critical alert mining-stratum in train-1-0" in page_of(victor, f"/runs/{launching_run.id}/")


def test_the_inbox_asks_as_much_for_one_alert_as_for_many(engine: Engine, rita: User) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            page_of(rita, "/alerts/")
        return len(captured)

    engine.post(engine.alert("b/0"))
    few = queries()
    engine.post(*(engine.alert(f"b/{i}", origin={"trajectory": f"t-{i}", "turn": 0}) for i in range(1, 50)))
    assert queries() == few


def test_every_rule_of_the_detectors_is_on_the_page_of_rules_in_its_own_words(victor: User) -> None:
    assert list(rule_texts()) == [rule.id for rule in RULES]
    page = page_of(victor, "/alerts/rules/")
    assert page.count('<tr id="') == len(RULES)
    for known in RULES:
        assert escape(known.catches.replace("`", "")) in page


def test_a_team_member_of_two_teams_sees_both(engine: Engine, alarming_run: Run, charlie: User, team: Any) -> None:
    Membership.objects.create(team=team, user=charlie, role="viewer")
    assert "Blue Team" in page_of(charlie, "/alerts/")
