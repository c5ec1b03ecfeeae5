"""Alike alerts are one group with count, first and last; alerts of ended runs wait for nobody."""

import re
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.webapp.runs.conftest import Engine, finding
from webapp.accounts.models import User
from webapp.runs.models import Run
from webapp.security.models import Alert, AlertState

pytestmark = pytest.mark.django_db
MANY = 2000


def page_of(user: User, path: str, status: int = 200, **headers: str) -> str:
    client = Client(headers=headers)
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == status, path
    return answer.content.decode()


def many(engine: Engine, count: int, *, destinations: int = 1, first: int = 0) -> None:
    """Each of another trajectory, one second apart; a batch holds at most 1,000 events."""
    for start in range(first, first + count, 1000):
        events = [
            engine.alert(
                f"b/{index}",
                origin={"trajectory": f"train-1-{index}", "turn": 0},
                finding=finding(subject=f"203.0.113.{index % destinations}:22", at=1_790_000_000.0 + index),
            )
            for index in range(start, min(start + 1000, first + count))
        ]
        assert engine.post(*events).status_code == 200


def test_500_alike_alerts_are_one_row_with_count_first_and_last(engine: Engine, api_of: Any, victor: User) -> None:
    many(engine, 500)
    text = page_of(victor, "/alerts/")
    assert len(re.findall(r"data-alert=", text)) == 1
    assert 'data-count="500"' in text
    assert "500 alerts in 1 group" in text
    [group] = api_of(victor).get("/alerts/groups").json()["items"]
    assert (group["count"], group["undecided"], group["trajectories"]) == (500, 500, {"pending": 500})
    assert (group["first_at"], group["last_at"]) == ("2026-09-21T14:13:20Z", "2026-09-21T14:21:39Z")
    assert group["like"] == Alert.objects.order_by("-id").first().id


def test_groups_differ_by_run_rule_and_destination(engine: Engine, api_of: Any, victor: User) -> None:
    findings = [{}, {}, {"rule": "beacon"}, {"subject": "198.51.100.1:1"}, {"severity": "warning"}]
    engine.post(*(engine.alert(f"b/{index}", finding=finding(**one)) for index, one in enumerate(findings)))
    groups = api_of(victor).get("/alerts/groups").json()["items"]
    assert [(group["rule"], group["subject"], group["count"], group["severity"]) for group in groups] == [
        ("mining-stratum", "203.0.113.7:4444", 3, "critical"),
        ("mining-stratum", "198.51.100.1:1", 1, "critical"),
        ("beacon", "203.0.113.7:4444", 1, "critical"),
    ]
    only = api_of(victor).get("/alerts/groups", severity="warning").json()["items"]
    assert [(item["count"], item["severity"]) for item in only] == [(1, "warning")]


def test_pages_give_every_group_once(engine: Engine, api_of: Any, victor: User) -> None:
    many(engine, 60, destinations=20)
    api, seen, cursor = api_of(victor), list[str](), {}
    while True:
        page = api.get("/alerts/groups", limit=7, **cursor).json()
        seen += [item["subject"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == len(set(seen)) == 20


def test_a_row_of_the_inbox_keeps_its_name_when_its_group_grows(engine: Engine, rita: User) -> None:
    """A mark, the choice and an opened group are kept by it."""
    many(engine, 2)
    names = r'(data-alert|name="like" value|data-expands)="([^"]+)"'
    before = re.findall(names, page_of(rita, "/alerts/"))
    many(engine, 1, first=2)
    assert before == re.findall(names, page_of(rita, "/alerts/"))
    assert [name for name, _ in before] == ["data-alert", 'name="like" value', "data-expands"]
    part = page_of(rita, f"/alerts/{before[0][1]}/alike/", **{"HX-Request": "true"})
    assert part.count('class="main-link mono"') == 3


def test_a_group_opens_to_all_its_alerts_page_by_page(engine: Engine, victor: User, charlie: User) -> None:
    many(engine, 70)
    newest = Alert.objects.order_by("-id").first()
    assert newest is not None
    part = page_of(victor, f"/alerts/{newest.id}/alike/", **{"HX-Request": "true"})
    assert part.count('class="main-link mono"') == 50
    assert "<html" not in part
    assert page_of(victor, f"/alerts/{newest.id}/alike/?page=2").count('class="main-link mono"') == 20
    page_of(charlie, f"/alerts/{newest.id}/alike/", status=404)


@pytest.mark.parametrize(("state", "alerts"), [("?state=", 70), ("", 60), ("?state=acknowledged", 10)])
def test_a_group_opens_to_the_alerts_that_its_list_counted(
    engine: Engine, victor: User, state: str, alerts: int
) -> None:
    many(engine, 70)
    older = Alert.objects.order_by("id").values("id")[:10]
    Alert.objects.filter(id__in=older).update(state=AlertState.ACKNOWLEDGED)
    text = page_of(victor, f"/alerts/{state}")
    assert f'data-count="{alerts}"' in text
    rows, opens = 0, re.search(r'href="(/alerts/\d+/alike/[^"]*)"', text)
    while opens is not None:
        part = page_of(victor, unescape(opens[1]), **{"HX-Request": "true"})
        rows += part.count('class="main-link mono"')
        opens = re.search(r'href="([^"]*)"[^>]*>(?:(?!<a).)*Older', part, re.DOTALL)
    assert rows == alerts


def test_a_page_of_groups_costs_the_same_for_one_alert_and_for_2000(engine: Engine, api_of: Any, rita: User) -> None:
    api = api_of(rita, scopes=("read",))

    def statements() -> tuple[int, int]:
        counts = []
        for ask in (lambda: page_of(rita, "/alerts/"), lambda: api.get("/alerts/groups")):
            with CaptureQueriesContext(connection) as captured:
                ask()
            counts.append(len(captured))
        return counts[0], counts[1]

    many(engine, 1)
    statements()  # the key's first use is noted once a minute
    few = statements()
    many(engine, MANY, destinations=80, first=1)
    assert statements() == few
    assert few < (40, 20)


def test_alerts_of_a_run_that_ended_wait_for_nobody(engine: Engine, api_of: Any, rita: User, run: Run) -> None:
    engine.post(engine.started(), engine.alert("b/1"), engine.alert("b/2"))
    bell = r"data-open-alerts(?: hidden)?>(\d+)<"
    assert set(re.findall(bell, page_of(rita, "/"))) == {"2"}
    assert engine.post(engine.alert("b/3"), engine.finished()).status_code == 200
    assert set(Alert.objects.values_list("state", flat=True)) == {AlertState.RUN_ENDED}
    assert set(re.findall(bell, page_of(rita, "/"))) == {"0"}
    assert "No open alerts" in page_of(rita, "/alerts/")
    text = page_of(rita, "/alerts/?state=run-ended")
    assert 'data-count="3"' in text
    assert "run ended" in text
    assert "waits for a review decision" not in text
    [group] = api_of(rita).get("/alerts/groups", state="run-ended").json()["items"]
    assert group["count"] == 3
    ended = page_of(rita, f"/runs/{run.id}/security/")
    assert "1 undecided when the run ended" in ended
    assert "waits for a review decision" not in ended


def test_after_the_end_a_decision_is_still_possible_and_says_that_it_changes_nothing(
    engine: Engine, rita: User
) -> None:
    engine.post(engine.started(), engine.alert(), engine.finished())
    alert = Alert.objects.get()
    text = page_of(rita, f"/alerts/{alert.id}/")
    assert 'name="verdict" value="benign"' in text
    assert "changes no training any more" in text
    assert "data-ended" in text
    assert "before anybody decided" in text
    assert 'id="acknowledge"' in text
    assert "data-ended" in page_of(rita, "/alerts/?state=run-ended")


def test_a_run_that_is_given_up_takes_its_alerts_along(engine: Engine, launching_run: Run) -> None:
    engine.post(engine.started(), engine.alert())
    launching_run.refresh_from_db()
    assert launching_run.move_to("failed", by="reconcile", failure_reason="lost")
    assert Alert.objects.get().state == AlertState.RUN_ENDED


def test_the_list_is_narrowed_to_a_run_in_the_address(engine: Engine, rita: User) -> None:
    engine.post(engine.alert())
    text = page_of(rita, f"/alerts/?run={engine.run_id}")
    assert f'<option value="{engine.run_id}" selected>' in text
    assert "data-alert=" in text


def test_addresses_do_not_break(engine: Engine, victor: User) -> None:
    engine.post(engine.alert(finding=finding(subject="203.0.113.22:2222")))
    for path in ("/alerts/", f"/runs/{engine.run_id}/security/"):
        assert re.search(r'class="[^"]*nowrap[^"]*"[^>]*>203\.0\.113\.22:2222<', page_of(victor, path)), path
