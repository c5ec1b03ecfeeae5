"""Every page: there for members, absent for strangers, behind the sign-in for everybody else."""

import re
import time
from html.parser import HTMLParser

import pytest
from django.conf import settings
from django.test import Client

from engine.spec.event import Batch
from engine.spec.run import RunSpec
from tests.browser.story import Story
from webapp.accounts.models import Membership, Team, User
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment
from webapp.ingest.endpoint import accept
from webapp.runs.charts import PHASES
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db(transaction=True)
TRAJECTORY = "train-0-0"


@pytest.fixture
def reported_run(launching_run: Run) -> Run:
    """A run that has told of its start and its first two steps."""
    story = Story(steps=3, groups=1, group_size=4, begin_at=time.time())
    for events in (story.beginning(), story.step(1), story.step(2)):
        accept(launching_run.id, Batch(attempt=1, first_seq=events[0]["seq"], events=events))
    launching_run.refresh_from_db()
    return launching_run


@pytest.fixture
def experiment(team: Team, alice: User, spec: RunSpec) -> Experiment:
    return create_experiment(team, spec, acting_user=alice)


@pytest.fixture
def pages(reported_run: Run, experiment: Experiment, team: Team) -> list[str]:
    """The address of every page that belongs to the team."""
    run = f"/runs/{reported_run.id}/"
    return [
        run,
        f"{run}?tab=logs",
        f"{run}snapshot",
        f"{run}counts",
        f"{run}series?key=train/reward&first_step=1&last_step=2",
        f"{run}parts/actions",
        f"{run}parts/history",
        f"{run}parts/checkpoints",
        f"{run}trajectories/",
        f"{run}trajectories/?outcome=right&reward_min=1&step=1&errors=none&level=1&purpose=train",
        f"{run}trajectories/{TRAJECTORY}/",
        f"/experiments/{experiment.id}/",
        f"/experiments/{experiment.id}/?as=toml",
        f"/teams/{team.slug}/",
    ]


COMMON = ["/", "/?state=live&q=1", "/runs/", "/experiments/", "/experiments/new", "/environments/", "/password"]


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_members_see_every_page(pages: list[str], bob: User) -> None:
    client = signed_in(bob)
    answers = {page: client.get(page).status_code for page in pages + COMMON}
    assert answers == dict.fromkeys(answers, 200)


def test_viewers_see_every_page(pages: list[str], victor: User) -> None:
    client = signed_in(victor)
    assert {client.get(page).status_code for page in pages} == {200}


def test_strangers_cannot_tell_that_a_page_exists(pages: list[str], charlie: User) -> None:
    client = signed_in(charlie)
    answers = {page: client.get(page).status_code for page in pages}
    assert answers == dict.fromkeys(answers, 404)


def test_who_is_lost_keeps_the_menu_and_who_is_not_signed_in_gets_no_part_of_it(bob: User) -> None:
    client = Client()
    visitor = client.get("/nothing-here")
    client.force_login(bob)
    member = client.get("/nothing-here")
    assert visitor.status_code == member.status_code == 404
    menu = '<nav class="nav" aria-label="Main">'
    assert menu in member.content.decode()
    assert menu not in visitor.content.decode()
    for answer in (visitor, member):
        assert answer.content.decode().count('id="main"') == 1
        assert "This page is not here" in answer.content.decode()


def test_visitors_are_sent_to_the_sign_in_and_back(pages: list[str], bob: User) -> None:
    for page in pages + COMMON:
        assert Client().get(page)["Location"].startswith("/sign-in?next=/"), page
    form = {"email": bob.email, "password": "correct horse battery", "next": pages[0]}
    assert Client().post("/sign-in", form)["Location"] == pages[0]


def test_a_piece_of_a_page_is_refused_without_a_session_instead_of_becoming_the_sign_in(pages: list[str]) -> None:
    for page in [*pages, *COMMON]:
        answer = Client().get(page, headers={"HX-Request": "true"})
        assert (answer.status_code, answer.content) == (401, b""), page


def test_no_browser_keeps_a_piece_that_has_the_address_of_its_page(reported_run: Run, bob: User) -> None:
    """It would be shown in place of the page by "back"."""
    for page in ("/", f"/runs/{reported_run.id}/trajectories/"):
        assert signed_in(bob).get(page, headers={"HX-Request": "true"})["Cache-Control"] == "no-store"


def test_who_signed_in_in_another_tab_is_led_back_to_the_page(bob: User) -> None:
    client = signed_in(bob)
    assert client.get("/sign-in?next=/experiments/?q=1")["Location"] == "/experiments/?q=1"
    assert client.get("/sign-in?next=https://evil.example/")["Location"] == "/"


def test_a_form_that_is_out_of_date_says_so(bob: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(bob)
    answer = client.post("/password", {"current": "x"})
    assert answer.status_code == 403
    assert "This form is out of date" in answer.content.decode()


def test_signing_in_never_leads_to_another_site(bob: User) -> None:
    form = {"email": bob.email, "password": "correct horse battery", "next": "https://evil.example/"}
    assert Client().post("/sign-in", form)["Location"] == "/"


def test_a_wrong_password_is_reported_on_the_page_and_keeps_the_address(bob: User) -> None:
    answer = Client().post("/sign-in", {"email": bob.email, "password": "wrong"})
    assert answer.status_code == 422
    assert "e-mail or password is wrong".lower() in answer.content.decode().lower()
    assert bob.email in answer.content.decode()


def test_who_got_a_password_from_somebody_must_change_it_first(bob: User) -> None:
    User.objects.filter(id=bob.id).update(must_change_password=True)
    client = signed_in(bob)
    assert client.get("/")["Location"] == "/password"
    form = {"current": "correct horse battery", "new": "a longer battery horse", "again": "a longer battery horse"}
    assert client.post("/password", form)["Location"] == "/"
    assert client.get("/").status_code == 200


def test_two_different_new_passwords_are_refused_next_to_the_field(bob: User) -> None:
    form = {"current": "correct horse battery", "new": "a longer battery horse", "again": "another"}
    answer = signed_in(bob).post("/password", form)
    assert answer.status_code == 422
    assert 'id="again-error"' in answer.content.decode()
    assert User.objects.get(id=bob.id).check_password("correct horse battery")


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_a_run_obeys_members_only(verb: str, run: Run, bob: User, victor: User, charlie: User) -> None:
    path = f"/runs/{run.id}/{verb}"
    assert signed_in(victor).post(path).status_code == 403
    assert signed_in(charlie).post(path).status_code == 404
    assert Client().post(path)["Location"].startswith("/sign-in")
    run.refresh_from_db()
    assert run.desired == "run"
    assert signed_in(bob).post(path)["Location"] == f"/runs/{run.id}/"
    run.refresh_from_db()
    assert run.desired == {"cancel": "cancel", "pause": "pause", "resume": "run"}[verb]


def test_buttons_need_a_post(run: Run, bob: User) -> None:
    assert signed_in(bob).get(f"/runs/{run.id}/cancel").status_code == 405


def test_what_a_service_refuses_is_reported_on_the_run_page(run: Run, bob: User) -> None:
    client = signed_in(bob)
    client.post(f"/runs/{run.id}/cancel")
    answer = client.post(f"/runs/{run.id}/pause", follow=True)
    assert "was cancelled and cannot be paused" in answer.content.decode()


def test_viewers_get_no_buttons(reported_run: Run, experiment: Experiment, victor: User) -> None:
    client = signed_in(victor)
    assert "/cancel" not in client.get(f"/runs/{reported_run.id}/").content.decode()
    for path in (f"/experiments/{experiment.id}/", "/experiments/new"):
        assert 'value="launch"' not in client.get(path).content.decode()
        assert "To read only: owners and members" in client.get(path).content.decode()
    assert client.post(f"/experiments/{experiment.id}/", {"action": "launch"}).status_code == 403


def test_a_run_that_has_ended_can_begin_a_new_experiment(
    reported_run: Run, bob: User, victor: User, charlie: User
) -> None:
    Run.objects.filter(id=reported_run.id).update(
        experiment=None, state="succeeded", spec=reported_run.spec | {"seed": 4711}
    )
    again = f"/experiments/new?run={reported_run.id}"
    assert f'href="{again}"' in signed_in(bob).get(f"/runs/{reported_run.id}/").content.decode()
    assert again not in signed_in(victor).get(f"/runs/{reported_run.id}/").content.decode()
    form = signed_in(bob).get(again).content.decode()
    assert re.search(r'id="f-seed"[^>]* value="4711"', form)
    assert signed_in(charlie).get(again).status_code == 404
    assert signed_in(bob).get("/experiments/new?run=7").status_code == 404


@pytest.mark.parametrize("has_runs", [True, False])
def test_only_who_may_launch_is_invited_to(
    has_runs: bool, experiment: Experiment, run: Run, bob: User, victor: User
) -> None:
    if not has_runs:
        Run.objects.all().delete()
        Experiment.objects.all().delete()
    for headers in ({}, {"HX-Request": "true"}):
        pages = {user: signed_in(user).get("/", headers=headers).content.decode() for user in (bob, victor)}
        assert "primary" not in pages[victor], headers
        assert ("primary" in pages[bob]) == (not has_runs or not headers)


def test_a_list_without_runs_is_asked_for_again_where_it_promises_that_they_appear(
    team: Team, bob: User, victor: User
) -> None:
    pages = {user: signed_in(user).get("/").content.decode() for user in (bob, victor)}
    promise, asks = "they appear here by themselves", 'hx-trigger="every'
    assert (promise in pages[victor], asks in pages[victor]) == (True, True)
    assert (promise in pages[bob], asks in pages[bob]) == (False, False)


def test_only_owners_manage_members_and_read_the_audit_log(team: Team, alice: User, bob: User, charlie: User) -> None:
    membership = Membership.objects.get(user=bob, team=team)
    paths = {
        f"/teams/{team.slug}/members": {"email": "new@example.org", "role": "member"},
        f"/teams/{team.slug}/members/{membership.id}/role": {"role": "owner"},
        f"/teams/{team.slug}/members/{membership.id}/remove": {},
    }
    for path, form in paths.items():
        assert signed_in(bob).post(path, form).status_code == 403, path
        assert signed_in(charlie).post(path, form).status_code == 404, path
    assert "Audit log" not in signed_in(bob).get(f"/teams/{team.slug}/").content.decode()
    assert "Audit log" in signed_in(alice).get(f"/teams/{team.slug}/").content.decode()


def test_a_new_members_password_and_a_new_key_are_shown_once(team: Team, alice: User) -> None:
    client = signed_in(alice)
    added = client.post(f"/teams/{team.slug}/members", {"email": "new@example.org", "role": "viewer"})
    assert 'id="new-password"' in added.content.decode()
    made = client.post(f"/teams/{team.slug}/keys", {"name": "sweep", "scopes": ["read"]})
    assert "pal_" in made.content.decode()
    assert 'id="new-key"' in made.content.decode()
    again = client.get(f"/teams/{team.slug}/").content.decode()
    assert "new-key" not in again
    assert "new-password" not in again
    assert "no-store" in made["Cache-Control"]


def test_the_last_owner_cannot_leave_and_the_page_says_why(team: Team, alice: User) -> None:
    membership = Membership.objects.get(user=alice, team=team)
    answer = signed_in(alice).post(f"/teams/{team.slug}/members/{membership.id}/remove", follow=True)
    assert "A team needs an owner" in answer.content.decode()


class _Labels(HTMLParser):
    """Finds the fields that nothing names."""

    def __init__(self) -> None:
        super().__init__()
        self.named_ids: set[str] = set()
        self.fields: list[dict[str, str | None]] = []
        self.depth_in_label = 0
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        self.inline += (
            ["inline script"]
            if tag == "script" and "src" not in given and given.get("type") != "application/json"
            else []
        )
        if tag == "label":
            self.depth_in_label += 1
            self.named_ids.add(str(given.get("for")))
        if tag in ("input", "select", "textarea") and given.get("type") not in ("hidden", "submit"):
            self.fields.append(given | {"inside": "yes" if self.depth_in_label else None})

    def handle_endtag(self, tag: str) -> None:
        self.depth_in_label -= tag == "label"

    def nameless(self) -> list[dict[str, str | None]]:
        return [
            field for field in self.fields
            if not (field["inside"] or field.get("aria-label") or field.get("aria-hidden"))
            and field.get("id") not in self.named_ids
        ]  # fmt: skip


def test_every_field_has_a_label_and_nothing_is_inline(pages: list[str], alice: User) -> None:
    client = signed_in(alice)
    for page in [item for item in pages if "snapshot" not in item and "series" not in item] + COMMON:
        parser = _Labels()
        parser.feed(client.get(page).content.decode())
        assert parser.nameless() == [], page
        assert parser.inline == [], page


def test_every_phase_has_a_colour() -> None:
    named = (settings.ROOT / "webapp/static/css/tokens.css").read_text()
    assert [phase for phase in PHASES if f"--phase-{phase}:" not in named] == []


def test_the_theme_cookie_is_rendered_and_nothing_else_can_be_put_there(bob: User) -> None:
    client = signed_in(bob)
    client.cookies["theme"] = "dark"
    assert '<html lang="en" data-theme="dark">' in client.get("/").content.decode()
    client.cookies["theme"] = '"><script>'
    assert '<html lang="en">' in client.get("/").content.decode()
