"""What people, models and tools write is text on every page, never markup."""

import time

import pytest
from django.test import Client

from engine.spec.event import Batch
from tests.browser.story import Story
from webapp.accounts.models import User
from webapp.ingest.endpoint import accept
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db(transaction=True)
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def evil_run(launching_run: Run) -> Run:
    """Everything in it that somebody can choose tries to be markup."""
    story = Story(steps=2, groups=1, group_size=2, begin_at=time.time())
    events = story.beginning()
    evil = story.trajectory("train", 1, 0, 0)
    evil["task"] |= {"question": EVIL, "answer": EVIL, "id": EVIL}
    evil |= {"answer": EVIL, "rewards": {EVIL: 1.0}, "masked_because": EVIL}
    turn = story.turn(EVIL, "x", 1, EVIL, EVIL)
    turn |= {"pieces": [EVIL], "token_ids": [1], "logprobs": [-0.1], "policy_versions": [0]}
    evil["segments"][0]["turns"] = [turn]
    events += [story.stored(evil), story.log(EVIL, source=EVIL)]
    accept(launching_run.id, Batch(attempt=1, first_seq=1, events=events))
    Run.objects.filter(id=launching_run.id).update(name=EVIL, failure_reason=EVIL)
    User.objects.filter(id=launching_run.created_by_id).update(name=EVIL)
    return launching_run


def test_no_page_turns_what_was_written_into_markup(evil_run: Run, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    team = evil_run.team
    team.name = EVIL
    team.save()
    run = f"/runs/{evil_run.id}/"
    for page in [
        "/",
        run,
        f"{run}trajectories/",
        f"{run}trajectories/train-0-0/",
        f"/teams/{team.slug}/",
        "/environments/",
    ]:
        text = client.get(page).content.decode()
        assert "<script>alert" not in text, page
        assert "<img src=x" not in text, page
        assert "alert(1)" in text or page == "/environments/", page


def test_the_snapshot_is_never_sniffed_as_a_page(evil_run: Run, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    answer = client.get(f"/runs/{evil_run.id}/snapshot")
    assert answer["Content-Type"] == "application/json"
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_scripts_and_styles_come_only_from_our_own_files(alice: User) -> None:
    policy = Client().get("/sign-in")["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy
