"""The page of a trajectory of several segments: its calls as a tree, their cost, and what changed between contexts."""

import re
import time
from html import unescape
from typing import Any

import pytest
from django.test import Client

from engine.spec.event import Batch
from engine.spec.trajectory import Trajectory
from tests.browser.story import Story
from webapp.accounts.models import User
from webapp.ingest.endpoint import accept
from webapp.pages.display import duration
from webapp.runs.models import Run
from webapp.security.models import Alert
from webapp.security.turns import Watched
from webapp.trajectories import changes, rewrites
from webapp.trajectories.outline import CallCost, Outline, Times, costs_of, times_of
from webapp.trajectories.rewrites import rewrites_of
from webapp.trajectories.sections import sections_of

EVIL = "<script>alert(1)</script>"


def tree(story: Story) -> dict[str, Any]:
    """Segment 2 leaves 1 behind "system ", and before the last turn of 1; 3 leaves 2 as a whole, 4 shares nothing."""
    first = story.turn("system question ", "ab", 1, "1", "one")
    second = story.turn("more ", "cd", 1)
    summary = story.turn(f"summary {EVIL} ", "ef", 1)
    later = story.turn("later ", "gh", 1)
    alone = story.turn("alone ", "ij", 1)
    behind = {"segment": 0, "tokens": len("system "), "characters": len("system ")}
    whole = len("system " + summary["context_text"]) + len(summary["token_ids"])
    segments = [
        {"turns": [first, second], "numbers": [0, 2]},
        {"turns": [summary], "prefix": behind, "numbers": [1]},
        {"turns": [later], "prefix": {"segment": 1, "tokens": whole}, "numbers": [3]},
        {"turns": [alone], "numbers": [4]},
    ]
    return story.trajectory("train", 1, 0, 0) | {"changes": [], "segments": segments}


@pytest.fixture
def played() -> Trajectory:
    return Trajectory.model_validate(tree(Story(steps=2, groups=1, group_size=2, begin_at=0.0)))


@pytest.fixture
def pages(launching_run: Run, bob: User) -> dict[str, str]:
    """By the trajectory's id: of the tree, and of a conversation that only grew."""
    story = Story(steps=2, groups=1, group_size=2, begin_at=time.time())
    documents = [tree(story), story.trajectory("train", 1, 0, 1)]
    events = [*story.beginning(), *(story.stored(document) for document in documents)]
    accept(launching_run.id, Batch.model_validate({"attempt": 1, "first_seq": 1, "events": events}))
    client = Client()
    client.force_login(bob)
    addresses = {document["id"]: f"/runs/{launching_run.id}/trajectories/{document['id']}/" for document in documents}
    return {name: client.get(address).content.decode() for name, address in addresses.items()}


def test_a_call_costs_what_it_read_anew_behind_what_stood_there(played: Trajectory) -> None:
    lengths = [len(turn.token_ids) for turn in played.turns]
    assert costs_of(played) == {
        0: CallCost(0, 16, lengths[0]),
        2: CallCost(16 + lengths[0], 5, lengths[2]),
        1: CallCost(7, len(f"summary {EVIL} "), lengths[1]),
        3: CallCost(7 + len(f"summary {EVIL} ") + lengths[1], 6, lengths[3]),
        4: CallCost(0, 6, lengths[4]),
    }
    total = Outline.of(played, {}).total
    assert total.read == sum(len(turn.context_ids) for turn in played.turns)
    assert total.sampled == sum(lengths)


def test_the_outline_puts_each_segment_behind_the_one_that_it_leaves(played: Trajectory) -> None:
    outlined = Outline.of(played, {0: Watched(alerts=[Alert(), Alert()])}).segments
    assert [(it.number, it.depth, it.leaves) for it in outlined] == [(1, 0, None), (2, 1, 1), (3, 2, 2), (4, 0, None)]
    assert [[call.number for call in it.calls] for it in outlined] == [[1, 3], [2], [4], [5]]
    assert [call.alerts for it in outlined for call in it.calls] == [2, 0, 0, 0, 0]


def test_seconds_are_those_of_tools_that_the_engine_called(played: Trajectory) -> None:
    seconds = [call.tools_s for it in Outline.of(played, {}).segments for call in it.calls]
    assert seconds == [played.turns[0].tool_calls[0].seconds, None, None, None, None]
    agents = Trajectory.model_validate(played.model_dump() | {"agent": {"exit": "done", "seconds": 1.0}})
    assert {call.tools_s for it in Outline.of(agents, {}).segments for call in it.calls} == {None}


def test_times_are_those_of_generator_and_tools_and_of_the_whole(played: Trajectory) -> None:
    call = played.turns[0].tool_calls[0].model_copy(update={"began_at": 102.0, "seconds": 4.5})
    timed = [turn.model_copy(update={"began_at": 100.0 + number, "seconds": 1.25}) for number, turn in
             enumerate(played.turns)]  # fmt: skip
    timed[0] = timed[0].model_copy(update={"tool_calls": [call]})
    assert times_of(played.with_turns(timed)) == Times(generation_s=6.25, tools_s=4.5, whole_s=6.5)
    calls = [call for it in Outline.of(played.with_turns(timed), {}).segments for call in it.calls]
    assert {call.generation_s for call in calls} == {1.25}
    agents = Trajectory.model_validate(
        played.with_turns(timed).model_dump() | {"agent": {"exit": "done", "seconds": 1}}
    )
    assert times_of(agents) == Times(generation_s=6.25, tools_s=None, whole_s=6.5)
    untimed = played.with_turns([turn.untimed for turn in played.turns])
    assert times_of(untimed) is None
    assert {call.generation_s for it in Outline.of(untimed, {}).segments for call in it.calls} == {None}


def test_the_page_says_where_the_time_went_by_turn_and_for_the_whole(pages: dict[str, str], played: Trajectory) -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", pages[played.id]).split())
    first = played.turns[0]
    assert first.seconds is not None
    assert f"read 16 · {duration(first.seconds)}" in text
    times = times_of(played)
    assert times is not None
    assert f"Time {duration(times.generation_s)} generation, {duration(times.tools_s)} tools, " in text


def test_a_trajectory_of_an_engine_that_reported_no_times_has_none_on_its_page(launching_run: Run, bob: User) -> None:
    story = Story(steps=2, groups=1, group_size=2, begin_at=time.time())
    document = story.trajectory("train", 1, 0, 0)
    for turn in document["segments"][0]["turns"]:
        del turn["began_at"], turn["seconds"]
    events = [*story.beginning(), story.stored(document)]
    accept(launching_run.id, Batch.model_validate({"attempt": 1, "first_seq": 1, "events": events}))
    client = Client()
    client.force_login(bob)
    page = client.get(f"/runs/{launching_run.id}/trajectories/{document['id']}/").content.decode()
    assert "<dt>Time</dt>" not in page
    assert re.findall(r"read 16 ·", page) == []


def test_what_changed_is_what_stood_there_when_the_segment_began_against_what_was_read_in_its_place(
    played: Trajectory,
) -> None:
    found = rewrites_of(played)
    assert found.keys() == {1, 2}
    pieces = found[1].pieces or []
    assert "".join(it.text for it in pieces if it.kind != "new") == "question ab"
    assert "".join(it.text for it in pieces if it.kind != "gone") == f"summary {EVIL} "
    assert [(it.kind, it.text) for it in found[2].pieces or []] == [("new", "later ")]


def test_nothing_is_compared_where_nobody_kept_which_letters_are_shared(played: Trajectory) -> None:
    document = played.model_dump()
    document["segments"][1]["prefix"]["characters"] = None
    assert 1 not in rewrites_of(Trajectory.model_validate(document))


def test_a_page_compares_no_more_than_its_share(played: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrites, "MOST_COMPARED", 60)
    assert [it.pieces is None for it in rewrites_of(played).values()] == [False, False]
    monkeypatch.setattr(rewrites, "MOST_COMPARED", 30)
    assert [it.pieces is None for it in rewrites_of(played).values()] == [True, True]


def test_texts_that_repeat_themselves_are_shown_whole_and_long_ones_compared_by_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = list[int]()
    real = changes.difflib.SequenceMatcher

    def matcher(junk: None, old: list[str], new: list[str], autojunk: bool) -> Any:
        compared.append(len(old) * len(new))
        return real(junk, old, new, autojunk)

    monkeypatch.setattr(changes.difflib, "SequenceMatcher", matcher)
    before, after = "a " * 1000, "b " * 1000
    assert [(it.kind, it.text) for it in changes.difference(before, after)] == [("gone", before), ("new", after)]
    lines = [f"line {number} of a long text\n" for number in range(300)]
    pieces = changes.difference("".join(lines), "".join([*lines[:100], "new\n", *lines[100:200], *lines[201:]]))
    assert [it.text for it in pieces if it.kind != "same"] == ["new\n", lines[200]]
    assert max(compared) <= changes.MOST_PAIRS


@pytest.mark.django_db
def test_the_page_has_the_tree_as_links_to_turns_and_the_changes_escaped(pages: dict[str, str]) -> None:
    page = pages["train-0-0"]
    [outline] = re.findall(r'<nav class="card" [^>]*id="outline">(.*?)</nav>', page, re.S)
    links = re.findall(r'href="#([^"]*)"', outline)
    assert links == ["segment-1", "turn-1", "turn-3", "segment-2", "turn-1", "turn-2", "segment-3", "turn-2", "turn-4",
                     "segment-4", "turn-5"]  # fmt: skip
    for target in links:
        assert f'id="{target}"' in page
    assert EVIL not in page
    changed = re.findall(r'<details class="change rewrite"><summary>([^<]*)</summary>', page)
    assert changed == ["What changed against segment 1", "What changed against segment 2"]
    [first, _] = re.findall(r'change rewrite">.*?<pre [^>]*>(.*?)</pre>', page, re.S)
    assert "".join(re.findall(r"<del>([^<]*)</del>", first)) == "questionab"
    assert EVIL in unescape("".join(re.findall(r"<ins>([^<]*)</ins>", first)))


@pytest.mark.django_db
def test_a_conversation_that_only_grew_has_no_outline(pages: dict[str, str]) -> None:
    assert "Tokens read" in pages["train-0-1"]
    assert 'id="outline"' not in pages["train-0-1"]


def test_sections_carry_the_cost_of_each_call(played: Trajectory) -> None:
    found = {on_page.number - 1: on_page.cost for section in sections_of(played, {}) for on_page in section.turns}
    assert found == costs_of(played)
