"""Trajectories that were repaired, replayed or masked: what the list filters by and what the page tells."""

import re
import time
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.test import Client

from engine.reporting.abridgement import abridged
from engine.spec.event import Batch
from engine.spec.trajectory import Trajectory
from tests.browser.story import Story
from webapp.accounts.models import User
from webapp.ingest.endpoint import accept
from webapp.runs.models import Run
from webapp.trajectories.changes import difference

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"

REPAIR = {
    "kind": "purified", "turn": 0, "start": 1, "stop": 3, "reason": "shallow", "before": "prnt(1 + 1)",
    "after": "print(1 + 1)",
    "details": {"attempts": 2, "error_class": "name", "similarity": 0.91, "first_output": "NameError: prnt"},
}  # fmt: skip


@pytest.fixture
def story() -> Story:
    return Story(steps=2, groups=1, group_size=2, begin_at=time.time())


@pytest.fixture
def reported(launching_run: Run, story: Story) -> Callable[..., Run]:
    """Stores trajectories with what was changed about them."""

    def emit(*trajectories: dict[str, Any]) -> Run:
        events = [*story.beginning(), *map(story.stored, trajectories)]
        accept(launching_run.id, Batch.model_validate({"attempt": 1, "first_seq": 1, "events": events}))
        return launching_run

    return emit


@pytest.fixture
def client(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


def plain(story: Story, index: int, **changes: Any) -> dict[str, Any]:
    return story.trajectory("train", 1, 0, index) | {"changes": []} | changes


def page_of(client: Client, run: Run, index: int) -> str:
    return unescape(client.get(f"/runs/{run.id}/trajectories/train-0-{index}/").content.decode())


def test_a_row_counts_what_was_changed(reported: Callable[..., Run], story: Story) -> None:
    masked = plain(story, 1)
    masked["segments"][0]["turns"][0]["masked_because"] = "error"
    run = reported(plain(story, 0, changes=[REPAIR]), masked, plain(story, 2, masked_because="overlong"))
    rows = {row.member: row for row in run.trajectories.filter(purpose="train")}
    assert (rows[0].changes, rows[0].repaired, rows[0].masked) == (1, 1, 0)
    assert (rows[1].changes, rows[1].masked) == (0, 1)
    assert rows[2].masked == rows[2].turns


@pytest.mark.parametrize(
    ("change", "indices"), [("any", {0, 1}), ("repaired", {0}), ("masked", {1}), ("prefilled", set()), ("none", {2})]
)
def test_the_list_and_rest_are_narrowed_to_what_was_changed(
    client: Client, reported: Callable[..., Run], story: Story, api_of: Any, bob: User, change: str, indices: set[int]
) -> None:
    run = reported(plain(story, 0, changes=[REPAIR]), plain(story, 1, masked_because="overlong"), plain(story, 2))
    html = client.get(f"/runs/{run.id}/trajectories/?purpose=train&change={change}").content.decode()
    assert set(map(int, re.findall(r">train-0-(\d)<", html))) == indices
    found = api_of(bob).get(f"/runs/{run.id}/trajectories", purpose="train", change=change).json()["items"]
    assert {item["member"] for item in found} == indices


def test_purified_evaluations_and_episodes_that_are_done_are_stored_and_can_be_found(
    client: Client, reported: Callable[..., Run], story: Story
) -> None:
    purified = story.trajectory("eval-purified", 0, 0, 0) | {"stop_reason": "done"}
    run = reported(purified, plain(story, 0))
    for query in ("purpose=eval-purified", "end=done"):
        html = client.get(f"/runs/{run.id}/trajectories/?{query}").content.decode()
        assert re.findall(r">((?:eval|train)-[\w-]+-\d-\d)<", html) == ["eval-purified-0-0"]


def test_a_repair_is_reported_with_its_attempts_and_what_stood_there(
    client: Client, reported: Callable[..., Run], story: Story
) -> None:
    html = page_of(client, reported(plain(story, 0, changes=[REPAIR])), 0)
    assert "1 call repaired." in html
    assert "repaired, shallow · 2 attempts · name" in html
    assert "<del>prnt</del><ins>print</ins>(1 + 1)" in html
    assert "NameError: prnt" in html
    assert "0.91" in html


def test_replayed_masked_and_judged_turns_say_so(client: Client, reported: Callable[..., Run], story: Story) -> None:
    one = plain(story, 0, start={"expert": "train-0-9", "prefix": 1, "turns": 3})
    one["segments"][0]["turns"] = [
        story.turn("<user>q<assistant>", "<tool>1</tool>", 1),
        story.turn("x", "<answer>1</answer>", 1),
    ]
    one["segments"][0]["turns"][0] |= {"prefilled": True, "imitated": True, "verdict": "bad"}
    one["segments"][0]["turns"][1] |= {"masked_because": "near-duplicate", "verdict": "good"}
    html = page_of(client, reported(one), 0)
    assert "1 turn masked: near-duplicate, 1 of an expert's 3 turns replayed." in html
    for badge in ("replayed from an expert, imitated", "judge: bad", "not learned: near-duplicate", "judge: good"):
        assert f">{badge}</span>" in html


def test_experience_is_marked_as_not_trained_on(client: Client, reported: Callable[..., Run], story: Story) -> None:
    one = plain(story, 0)
    question = one["task"]["question"]
    one["segments"][0]["turns"][0] |= {
        "context_text": f"<user><EXP>use the tool</EXP>\n{question}<assistant>",
        "experience_span": (1, 20),
    }
    html = page_of(client, reported(one), 0)
    assert re.search(r"<mark[^>]*>(.*?)</mark>", html, re.DOTALL)[1] == "<EXP>use the tool</EXP>\n"
    assert "Not trained on." in html


def test_tokens_that_the_mismatch_mask_cut_are_reported(
    client: Client, reported: Callable[..., Run], story: Story
) -> None:
    cut = {"kind": "mismatch-masked", "turn": 0, "start": 1, "stop": 3, "reason": "mismatch", "details": {"bound": 5.0}}
    html = page_of(client, reported(plain(story, 0, changes=[cut])), 0)
    assert "2 tokens masked: mismatch of sampling and training" in html
    assert "tokens 1 to 2 not learned" in html


def test_a_trajectory_without_changes_has_no_summary(
    client: Client, reported: Callable[..., Run], story: Story
) -> None:
    assert 'id="summary"' not in page_of(client, reported(plain(story, 0)), 0)


def test_what_hostile_changes_say_is_never_markup(client: Client, reported: Callable[..., Run], story: Story) -> None:
    details = {"attempts": EVIL, "error_class": EVIL, "similarity": EVIL, "first_output": EVIL, EVIL: EVIL}
    evil = {"turn": 0, "start": 0, "stop": 1, "reason": EVIL, "before": EVIL, "after": EVIL * 2, "details": details}
    kinds = ("purified", "purification-failed", "stripped", "prefilled", "turn-masked", "mismatch-masked", "resampled")
    resampled = evil | {"kind": "resampled", "details": {"tries": 1}}
    one = plain(story, 0, changes=[evil | {"kind": kind} for kind in kinds if kind != "resampled"] + [resampled])
    one["segments"][0]["turns"][0] |= {"masked_because": EVIL, "experience_span": (0, 1), "prefilled": True}
    one |= {"masked_because": EVIL, "start": {"expert": EVIL, "prefix": 1, "turns": 1}}
    run = reported(one)
    html = client.get(f"/runs/{run.id}/trajectories/train-0-0/").content.decode()
    assert html.count("alert(1)") > 10
    assert "<script>alert" not in html


@pytest.mark.parametrize(
    ("before", "after"),
    [("a b c", "a c d"), ("", "new"), ("gone", ""), ("print(1)", "print(2)"), ("x" * 3000, "y" * 3000)],
)
def test_a_difference_holds_both_texts_whole(before: str, after: str) -> None:
    pieces = difference(before, after)
    assert "".join(piece.text for piece in pieces if piece.kind != "new") == before
    assert "".join(piece.text for piece in pieces if piece.kind != "gone") == after


@pytest.mark.parametrize(
    ("most_bytes", "left_out"),
    [(120_000, "advantages and old log-probs"), (20_000, "the middle of what has more than"), (3000, "all turns")],
)
def test_an_abridged_trajectory_is_shown_and_exported_and_says_what_it_lacks(
    client: Client, reported: Callable[..., Run], story: Story, most_bytes: int, left_out: str
) -> None:
    long = plain(story, 0, changes=[REPAIR])
    turn = long["segments"][0]["turns"][0]
    turn |= {"context_ids": [7] * 2000, "context_text": "read " * 2000}
    for column, value in (
        ("token_ids", 8), ("pieces", "squirrel "), ("logprobs", -0.125), ("policy_versions", 0),
        ("old_logprobs", -0.12345), ("advantages", 0.12345),
    ):  # fmt: skip
        turn[column] = [value] * 3000
    stored = abridged(Trajectory.model_validate(long), most_bytes)
    run = reported(stored.model_dump(mode="json"))
    html = page_of(client, run, 0)
    assert re.search(f"Too long to be stored whole: [^<]*{left_out}[^<]* left out", html)
    assert ("squirrel" in html) == bool(stored.segments)
    for export_format in ("chat", "atif"):
        exported = client.get(f"/api/v1/runs/{run.id}/trajectories/{stored.id}/export?format={export_format}")
        assert exported.status_code == 200
