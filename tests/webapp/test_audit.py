"""The audit log as people read it."""

import re
from typing import Any

import pytest
from django.test import Client

from engine.spec.run import RunSpec
from webapp.accounts import services
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.audit.sentences import VERBS, plain
from webapp.audit.views import ROWS
from webapp.catalog.services import publish_dataset, publish_environment
from webapp.experiments.services import create_experiment
from webapp.runs.models import Run
from webapp.runs.services import cancel_run, submit_run

pytestmark = pytest.mark.django_db


def page(user: User, team: Team, query: str = "") -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(f"/teams/{team.slug}/audit/{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def newest(team: Team) -> str:
    return plain(team.audit_entries.order_by("-id")[0])


def test_entries_are_sentences_with_links_and_have_no_ids(team: Team, alice: User, spec: RunSpec) -> None:
    experiment = create_experiment(team, spec, acting_user=alice)
    run = submit_run(team, spec, acting_user=alice, experiment=experiment)
    cancel_run(run, acting_user=alice)
    services.create_api_key(team, "ci", ["read", "launch"], acting_user=alice)
    html = page(alice, team)
    text = re.sub(r"<[^>]+>", "", html)
    assert f'<a href="/runs/{run.id}/">run #{run.number}</a>' in html
    assert f'<a href="/experiments/{experiment.id}/">{spec.name}</a>' in html
    assert "made the API key “ci” which may launch and read" in " ".join(text.split())
    assert str(run.id) not in text
    assert "['" not in text


def test_every_verb_that_is_written_has_a_sentence() -> None:
    from pathlib import Path

    sources = [path.read_text() for path in (Path(__file__).parents[2] / "webapp").rglob("services.py")]
    written = {verb for source in sources for verb in re.findall(r'record\(\s*[^"]*?"([a-z]+\.[a-z]+)"', source)}
    assert "run.cancel" in written
    assert written <= set(VERBS)


@pytest.mark.parametrize(
    ("verb", "target", "details", "reported"),
    [
        ("member.role", "user b@example.org", {"before": "member", "after": "owner"},
         "made b@example.org owner, who was member"),
        ("member.remove", "user b@example.org", {"role": "viewer"}, "removed b@example.org, who was viewer"),
        ("key.revoke", "key 1a2b", {"name": "ci"}, "revoked the API key “ci”"),
        ("alert.acknowledge", "alert 7", {"rule": "mining", "run": 3}, "acknowledged the alert mining of run #3"),
        ("quarantine.decide", "trajectory train-1-0 of run 00000000-0000-0000-0000-000000000001",
         {"verdict": "benign", "run_number": 2}, "found benign: trajectory train-1-0 of run #2"),
        ("quarantine.decide", "run 00000000-0000-0000-0000-000000000001",
         {"verdict": "benign", "run_number": 2, "trajectories": 12, "alerts": 30},
         "found benign: 12 trajectories of run #2"),
        ("alert.acknowledge", "run 00000000-0000-0000-0000-000000000001", {"run_number": 2, "alerts": 1},
         "acknowledged 1 alert of run #2"),
        ("new.verb", "thing 4", {"names": ["a", "b"]}, "new verb thing 4 (names a and b)"),
        ("run.cancel", "run gone", {}, "cancelled a run"),
    ],
)  # fmt: skip
def test_sentences(team: Team, alice: User, verb: str, target: str, details: dict[str, Any], reported: str) -> None:
    record(team, alice, verb, target, **details)
    assert " ".join(newest(team).split()) == reported


def test_what_people_call_things_stays_text(team: Team, alice: User) -> None:
    services.create_api_key(team, "<img src=x>", ["read"], acting_user=alice)
    assert "<img src=x>" not in page(alice, team)


def test_only_owners_read_it(team: Team, bob: User, charlie: User, alice: User) -> None:
    for path in (f"/teams/{team.slug}/audit/", f"/teams/{team.slug}/audit/entries.csv"):
        for user, status in ((bob, 403), (charlie, 404), (alice, 200)):
            client = Client()
            client.force_login(user)
            assert client.get(path).status_code == status
        assert Client().get(path).status_code == 302


def test_it_is_filtered_and_comes_in_pages(team: Team, alice: User, run: Run) -> None:
    for number in range(ROWS + 5):
        record(team, alice, "key.revoke", f"key {number}", name=f"k{number}")
    record(team, alice, "run.cancel", f"run {run.id}", number=run.number)
    first = page(alice, team, "?area=key")
    assert "run #" not in re.sub(r"<option.*?</option>", "", first)
    assert len(re.findall("revoked the API key", first)) == ROWS
    (older,) = re.findall(r'href="(\?area=key&amp;before=\d+)"', first)
    assert len(re.findall("revoked the API key", page(alice, team, older.replace("&amp;", "&")))) == 5
    assert "Nothing yet" in page(alice, team, "?who=nobody@example.org")
    for nonsense in ("?before=x", "?before=99999999999999999999", "?area=zebra", "?who=%00"):
        assert "cancelled" in page(alice, team, nonsense)


def test_the_file_holds_all_of_them_and_no_formula(team: Team, alice: User) -> None:
    record(team, alice, "run.note", "=HYPERLINK(1)")
    client = Client()
    client.force_login(alice)
    answer = client.get(f"/teams/{team.slug}/audit/entries.csv")
    lines = b"".join(answer).decode().splitlines()
    assert lines[0] == "at,who,verb,what,target"
    assert lines[1].endswith("'=HYPERLINK(1)")
    assert len(lines) == 1 + team.audit_entries.count()


def test_the_teams_page_leads_its_owner_there(team: Team, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    html = client.get(f"/teams/{team.slug}/").content.decode()
    assert f'href="/teams/{team.slug}/audit/"' in html


@pytest.mark.parametrize("kind", ["environment", "dataset"])
def test_what_was_published_is_shown_where_its_entry_leads(team: Team, alice: User, spec: RunSpec, kind: str) -> None:
    if kind == "environment":
        publish_environment(team, "Sums & more", spec.environment, acting_user=alice)
    else:
        publish_dataset(team, "Sums & more", spec.dataset, acting_user=alice)
    found = re.search(rf'<a href="(/environments/)#({kind}-[\w-]+)">Sums &amp; more v1</a>', page(alice, team))
    assert found is not None
    client = Client()
    client.force_login(alice)
    html = client.get(found[1]).content.decode()
    assert html.count(f'id="{found[2]}"') == 1
    assert "Sums &amp; more" in html.partition(f'id="{found[2]}"')[2].partition("</section>")[0]
