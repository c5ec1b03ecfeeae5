"""Trajectories of several segments and of several calls a turn: what rows, filters, pages and REST tell."""

import re
import time
from html import unescape
from typing import Any

import pytest
from django.test import Client

from engine.spec.event import Batch
from tests.browser.story import Story
from webapp.accounts.models import User
from webapp.ingest.endpoint import accept
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"


def several(story: Story) -> dict[str, Any]:
    """Segment 2 shares the prompt and two tokens that the policy wrote; segment 3 some of segment 2; 4 nothing."""
    first = story.turn("<user>first prompt<assistant>", "ab", 1, "1", "one")
    another = {"id": "call-2", "arguments": {"a": 1, "b": EVIL}, "output": "two"}
    first["tool_calls"].append(first["tool_calls"][0] | another)
    second = story.turn("<output>second context<assistant>", "cd", 1) | {"observed_text": "second"}
    third = story.turn("next", "ef", 1)
    fourth = story.turn("third context", "gh", 1)
    fifth = story.turn("fourth context", "ij", 1)
    prompt = len(first["context_ids"])
    return {
        "segments": [
            {"turns": [first]},
            {"turns": [second, third], "prefix": {"segment": 0, "tokens": prompt + 2}},
            {"turns": [fourth], "prefix": {"segment": 1, "tokens": prompt + 2 + 5}},
            {"turns": [fifth]},
        ]
    }


@pytest.fixture
def several_run(launching_run: Run) -> Run:
    story = Story(steps=2, groups=1, group_size=2, begin_at=time.time())
    one = story.trajectory("train", 1, 0, 0) | {"changes": []}
    agent = {
        "exit": "crashed",
        "exit_code": 3,
        "seconds": 1.5,
        "log": f"Traceback {EVIL}",
        "refused": [{"kind": "budget", "number": 2}],
        "unfinished": 1,
        "dropped_tokens": 4,
    }
    context = {"left_turns": 3, "notes": 1, "subagents": 2}
    other = story.trajectory("train", 1, 0, 1) | {"changes": [], "agent": agent} | several(story)
    events = [*story.beginning(), story.stored(one | {"context": context}), story.stored(other)]
    accept(launching_run.id, Batch.model_validate({"attempt": 1, "first_seq": 1, "events": events}))
    return launching_run


@pytest.fixture
def client(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


def test_rows_count_segments_and_the_list_finds_those_with_several(
    several_run: Run, client: Client, api_of: Any
) -> None:
    counts = dict(several_run.trajectories.filter(purpose="train").values_list("trajectory_id", "segments"))
    assert counts == {"train-0-0": 1, "train-0-1": 4}
    page = client.get(f"/runs/{several_run.id}/trajectories/?change=segments").content.decode()
    assert (">train-0-1<" in page, ">train-0-0<" in page) == (True, False)
    assert re.search(r'data-change="segments" data-least="2"><b>4</b> segments', page)
    listed = api_of(several_run.created_by).get(f"/runs/{several_run.id}/trajectories?change=segments").json()["items"]
    assert [(item["id"], item["segments"], item["turns"], item["tool_calls"]) for item in listed] == [
        ("train-0-1", 4, 5, 2)
    ]


def test_the_page_shows_a_section_for_each_segment_and_what_it_shares(several_run: Run, client: Client) -> None:
    page = unescape(client.get(f"/runs/{several_run.id}/trajectories/train-0-1/").content.decode())
    assert re.findall(r'<section class="segment" id="segment-(\d)"', page) == ["1", "2", "3", "4"]
    assert re.findall(r'class="turn[^"]*" id="turn-(\d)"', page) == ["1", "2", "3", "4", "5"]
    labels = re.findall(r'said read"><div class="who-said">([^<]*)<', page)
    assert labels == ["Prompt", "Context", "Environment said", "Context", "Context"]
    assert page.count('as in <a href="#segment-1">segment 1</a>') == 1
    assert page.count('as in <a href="#segment-2">segment 2</a>') == 1
    assert page.count("shares no beginning") == 1
    shared = re.findall(r'<p class="small muted">([^<]*)</p><pre class="diff">(.*?)</pre>', page, re.S)
    assert shared == [
        ("Read", "<user>first prompt<assistant>"), ("Written", "ab"),
        ("Read", "<user>first prompt<assistant>"), ("Written", "ab"),
        ("The first 5 tokens of", "<output>second context<assistant>"),
    ]  # fmt: skip


def test_every_call_of_a_turn_is_shown_with_its_result_and_as_text(several_run: Run, client: Client) -> None:
    page = client.get(f"/runs/{several_run.id}/trajectories/train-0-1/").content.decode()
    assert EVIL not in page
    calls = re.findall(r'<pre class="call-code">(.*?)</pre><pre class="call-output">(.*?)</pre>', unescape(page), re.S)
    assert calls == [("1", "one"), (f'{{"a": 1, "b": "{EVIL}"}}', "two")]


def test_the_page_shows_how_an_agent_ended_and_its_log_beside_its_calls(several_run: Run, client: Client) -> None:
    page = client.get(f"/runs/{several_run.id}/trajectories/train-0-1/").content.decode()
    [card] = re.findall(r'<section class="card" [^>]*id="agent">(.*?)</section>', page, re.S)
    assert EVIL not in card
    for shown in ("crashed, exit code 3", "2 requests: budget", "1 call", "4 tokens behind", f"Traceback {EVIL}"):
        assert shown in unescape(card)
    assert 'id="agent"' not in client.get(f"/runs/{several_run.id}/trajectories/train-0-0/").content.decode()


def test_a_conversation_that_only_grew_has_no_sections(several_run: Run, client: Client) -> None:
    page = client.get(f"/runs/{several_run.id}/trajectories/train-0-0/").content.decode()
    assert 'class="segment"' not in page
    assert 'id="turn-1"' in page


def test_rest_gives_the_document_as_it_was_reported(several_run: Run, api_of: Any) -> None:
    document = api_of(several_run.created_by).get(f"/runs/{several_run.id}/trajectories/train-0-1").json()
    assert [len(segment["turns"]) for segment in document["segments"]] == [1, 2, 1, 1]
    assert document["segments"][0]["turns"][0]["tool_calls"][1]["arguments"] == {"a": 1, "b": EVIL}


def test_a_trajectory_whose_segments_are_no_tree_is_refused_with_the_field() -> None:
    story = Story(steps=2, groups=1, group_size=2, begin_at=time.time())
    one = story.trajectory("train", 1, 0, 0) | several(story)
    one["segments"][1]["prefix"]["tokens"] = 9999
    with pytest.raises(ValueError, match="prefix.tokens = 9999"):
        Batch.model_validate({"attempt": 1, "first_seq": 1, "events": [story.stored(one)]})


def test_the_page_shows_what_became_of_a_context(several_run: Run, client: Client) -> None:
    page = client.get(f"/runs/{several_run.id}/trajectories/train-0-0/").content.decode()
    [kept] = re.findall(r"<dt>Context</dt><dd>(.*?)</dd>", page, re.S)
    assert kept.split("<br>") == ["3 turns folded or dropped", "1 note kept", "2 sub-agents", "1 segment"]
    assert "<dt>Context</dt>" not in client.get(f"/runs/{several_run.id}/trajectories/train-0-1/").content.decode()
