"""Trajectories as files of other programs: what is in them, for whom they are, and how much of it there can be."""

import asyncio
import json
import re
import time
from typing import Any
from urllib.parse import quote

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client

from engine.rollout.chat_documents import document_in
from engine.spec.event import Batch
from engine.spec.trajectory import Trajectory
from tests.browser.story import Story
from tests.webapp.test_pages_segments import EVIL, several
from webapp.accounts.models import User
from webapp.ingest.endpoint import accept
from webapp.runs.models import Run
from webapp.trajectories import exports
from webapp.trajectories.atif_export import atif_of
from webapp.trajectories.chat_export import conversations_of

pytestmark = pytest.mark.django_db


def plain(story: Story, member: int = 0) -> dict[str, Any]:
    """Two calls, then an answer."""
    turns = [
        story.turn("<user>2 + 3<assistant>", "<tool>2+3</tool>", 1, "2+3", "5"),
        story.turn("<output>5</output><assistant>", "<tool>oops</tool>", 1, "oops", "Error: NameError", "name"),
        story.turn("<output>Error</output><assistant>", "<answer>5</answer>", 1),
    ]
    return story.trajectory("train", 1, 0, member) | {"changes": [], "segments": [{"turns": turns}]}


def branching(story: Story) -> dict[str, Any]:
    """Segment 1 shares the prompt and the first of two sampled tokens of segment 0, and segment 2 some of segment 1."""
    segments = several(story)["segments"]
    for segment in segments[1:3]:
        segment["prefix"]["tokens"] -= 1
    return {"segments": segments}


@pytest.fixture
def exported_run(launching_run: Run) -> Run:
    story = Story(steps=2, groups=1, group_size=2, begin_at=time.time())
    one = plain(story) | {"success": True, "reward": 1.0}
    other = story.trajectory("train", 1, 0, 1) | {"changes": [], "success": False, "reward": 0.0} | branching(story)
    events = [*story.beginning(), story.stored(one), story.stored(other)]
    accept(launching_run.id, Batch.model_validate({"attempt": 1, "first_seq": 1, "events": events}))
    return launching_run


@pytest.fixture
def fetched(exported_run: Run, bob: User) -> Any:
    """The documents that an address below the run gives to a member's browser."""
    client = Client()
    client.force_login(bob)

    def get(path: str, **query: str) -> list[dict[str, Any]]:
        answer = client.get(f"/api/v1/runs/{exported_run.id}{path}", query)
        assert answer.status_code == 200, answer.content
        assert answer["Content-Disposition"].startswith("attachment; ")
        return [json.loads(line) for line in b"".join(answer).decode().split("\n") if line]

    return get


def test_a_conversation_has_its_calls_and_results_by_record_and_its_texts_to_the_letter(fetched: Any) -> None:
    [conversation] = fetched("/trajectories/train-0-0/export", format="chat")
    user, call, result, failing, failure, answer = conversation["messages"]
    assert user == {"role": "user", "content": "<user>2 + 3<assistant>"}
    assert call["content"] is None
    [request] = call["tool_calls"]
    assert (request["function"]["name"], json.loads(request["function"]["arguments"])) == ("python", {"code": "2+3"})
    assert (result["role"], result["content"], result["tool_call_id"]) == ("tool", "5", request["id"])
    assert failing["tool_calls"][0]["id"] != request["id"]
    assert (failure["is_error"], "is_error" in result) == (True, False)
    assert answer == {"role": "assistant", "content": "<answer>5</answer>"}
    read, sampled = ([turn[name] for turn in conversation["turns"]] for name in ("read", "sampled"))
    assert read == ["<user>2 + 3<assistant>", "<output>5</output><assistant>", "<output>Error</output><assistant>"]
    assert sampled == ["<tool>2+3</tool>", "<tool>oops</tool>", "<answer>5</answer>"]
    assert (conversation["reward"], conversation["success"], conversation["trajectory"]) == (1.0, True, "train-0-0")


def test_our_own_fine_tuning_reads_the_messages(fetched: Any) -> None:
    [conversation] = fetched("/trajectories/train-0-0/export")
    document = document_in(json.dumps({"messages": conversation["messages"]}), 1)
    assert [len(getattr(message, "requests", ())) for message in document.conversation] == [0, 1, 0, 1, 0, 0]
    assert document.failed == {4}


def test_each_branch_is_a_conversation_from_its_first_token_on(fetched: Any) -> None:
    first, second, third, fourth = fetched("/trajectories/train-0-1/export", format="chat")
    assert [conversation["segment"] for conversation in (first, second, third, fourth)] == [0, 1, 2, 3]
    prompt = "<user>first prompt<assistant>"
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "tool", "tool"]
    assert json.loads(first["messages"][1]["tool_calls"][1]["function"]["arguments"])["b"] == EVIL
    assert [(message["role"], message["content"]) for message in second["messages"]] == [
        ("user", prompt), ("assistant", "a"),
        ("user", "<output>second context<assistant>"), ("assistant", "cd"),
        ("user", "next"), ("assistant", "ef"),
    ]  # fmt: skip
    assert [turn["shared"] for turn in second["turns"]] == [True, False, False]
    assert [turn["unknown_tokens"] for turn in third["turns"]] == [0, 5]
    assert fourth["messages"][0]["content"] == "fourth context"


def test_a_document_of_atif_has_the_other_branches_below_it_and_marks_what_they_repeat(fetched: Any) -> None:
    [document] = fetched("/trajectories/train-0-1/export", format="atif")
    assert (document["schema_version"], document["trajectory_id"]) == ("ATIF-v1.8", "train-0-1")
    below = document["subagent_trajectories"]
    assert [part["trajectory_id"] for part in below] == [f"train-0-1/segment-{number}" for number in (1, 2, 3)]
    assert [step.get("is_copied_context", False) for step in below[0]["steps"]] == [True, True, *[False] * 4]
    called = document["steps"][1]
    ids = [call["tool_call_id"] for call in called["tool_calls"]]
    assert [result["source_call_id"] for result in called["observation"]["results"]] == ids
    assert len(set(ids)) == 2


def test_every_sampled_token_is_once_in_the_metrics_of_atif(exported_run: Run) -> None:
    for row in exported_run.trajectories.filter(purpose="train"):
        parts = list(atif_of(row.document, "run", "python-math"))
        sampled = [step["metrics"]["completion_token_ids"] for part in parts for step in part["steps"]
                   if "metrics" in step]  # fmt: skip
        assert sorted(sampled) == sorted(turn.token_ids for turn in row.document.turns)
        for part in parts:
            assert [step["step_id"] for step in part["steps"]] == list(range(1, len(part["steps"]) + 1))
            for step in part["steps"]:
                agents_own = {"tool_calls", "metrics", "observation"}
                assert step["source"] == "agent" or not agents_own & step.keys()


def test_atif_says_when_a_turn_was_sampled_where_that_is_known(exported_run: Run) -> None:
    document = exported_run.trajectories.get(trajectory_id="train-0-0").document
    timed = document.with_turns(
        [turn.model_copy(update={"began_at": 1_700_000_000.25, "seconds": 1.5}) for turn in document.turns]
    )
    steps = [step for part in atif_of(timed, "run", "python-math") for step in part["steps"]]
    own = [step for step in steps if step["source"] == "agent"]
    assert own
    assert {step["timestamp"] for step in own} == {"2023-11-14T22:13:20.250+00:00"}
    assert {step["extra"]["generation_seconds"] for step in own} == {1.5}
    assert not any("timestamp" in step for step in steps if step["source"] == "user")
    untimed = document.with_turns([turn.untimed for turn in document.turns])
    steps = [step for part in atif_of(untimed, "run", "python-math") for step in part["steps"]]
    assert not any("timestamp" in step or "generation_seconds" in step.get("extra", {}) for step in steps)


def test_an_export_of_a_run_has_what_its_filters_leave_newest_first(fetched: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(exports, "ROWS_AT_ONCE", 1)
    found = fetched("/trajectory-export", format="atif", purpose="train")
    assert [document["trajectory_id"] for document in found] == ["train-0-1", "train-0-0"]
    found = fetched("/trajectory-export", purpose="train", success="true")
    assert [conversation["trajectory"] for conversation in found] == ["train-0-0"]
    assert fetched("/trajectory-export", stop_reason="frozen") == []


def test_what_is_too_long_is_refused_alone_and_named_among_others(
    fetched: Any, exported_run: Run, bob: User, api_of: Any, monkeypatch: Any
) -> None:
    lengths = {row.trajectory_id: sum(segment.token_count for segment in row.document.segments)
               for row in exported_run.trajectories.filter(purpose="train")}  # fmt: skip
    monkeypatch.setattr(exports, "MOST_TOKENS", lengths["train-0-0"])
    assert lengths["train-0-1"] > lengths["train-0-0"]
    answer = api_of(bob).get(f"/runs/{exported_run.id}/trajectories/train-0-1/export")
    assert (answer.status_code, "read the document itself" in str(answer.json())) == (409, True)
    refused, other = fetched("/trajectory-export", purpose="train")
    assert (refused["trajectory"], refused.keys()) == ("train-0-1", {"trajectory", "refused"})
    assert other["trajectory"] == "train-0-0"


@pytest.mark.parametrize("path", ["trajectories/train-0-0/export", "trajectory-export"])
def test_exports_are_for_readers_of_the_run_and_in_known_formats(
    path: str, exported_run: Run, charlie: User, victor: User, api_of: Any
) -> None:
    address = f"/runs/{exported_run.id}/{path}"
    assert api_of(charlie).get(address).status_code == 404
    assert Client().get(f"/api/v1{address}").status_code == 401
    assert api_of(victor, scopes=("read",)).get(address).status_code == 200
    answer = api_of(victor, scopes=("read",)).get(address, format="<csv>")
    assert (answer.status_code, answer.json()["problems"][0]["field"]) == (422, "format")


def test_a_trajectory_may_be_called_anything_without_a_header_of_its_own(launching_run: Run, bob: User) -> None:
    story = Story(steps=2, groups=1, group_size=2, begin_at=time.time())
    named = plain(story) | {"id": 'e"v\r\nX-Evil: 1'}
    events = [*story.beginning(), story.stored(named)]
    accept(launching_run.id, Batch.model_validate({"attempt": 1, "first_seq": 1, "events": events}))
    client = Client()
    client.force_login(bob)
    page = client.get(f"/runs/{launching_run.id}/trajectories/{quote(named['id'])}/").content.decode()
    [address] = re.findall(r'href="(/api/[^"]*export\?format=chat)"', page)
    answer = client.get(address)
    assert answer.status_code == 200
    assert answer["Content-Disposition"] == 'attachment; filename="e-v--X-Evil--1.chat.jsonl"'


def test_the_pages_link_to_the_exports_with_the_filters_of_the_list(exported_run: Run, bob: User) -> None:
    client = Client()
    client.force_login(bob)
    address = f"/api/v1/runs/{exported_run.id}"
    page = client.get(f"/runs/{exported_run.id}/trajectories/train-0-1/").content.decode()
    assert f'href="{address}/trajectories/train-0-1/export?format=atif"' in page
    query = "?outcome=right&level=1&purpose=train&errors=none&reward_min=0.5"
    page = client.get(f"/runs/{exported_run.id}/trajectories/{query}").content.decode()
    named = "level=1&amp;purpose=train&amp;success=true&amp;tool_errors=false&amp;min_reward=0.5"
    assert f'href="{address}/trajectory-export?format=chat&amp;{named}"' in page
    assert client.get(f"{address}/trajectory-export?format=chat&{named.replace('amp;', '')}").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_the_server_streams_a_run_without_making_a_list_of_it(exported_run: Run, bob: User) -> None:
    async def get() -> list[bytes]:
        client = AsyncClient()
        await client.aforce_login(bob)
        answer = await client.get(f"/api/v1/runs/{exported_run.id}/trajectory-export?purpose=train")
        pieces = [piece async for piece in answer.streaming_content]
        await sync_to_async(connections.close_all)()  # those of the thread that answered
        return pieces

    pieces = asyncio.run(get())
    assert [json.loads(piece)["trajectory"] for piece in pieces] == ["train-0-1"] * 4 + ["train-0-0"]


def of(**changes: Any) -> Trajectory:
    story = Story(steps=2, groups=1, group_size=2, begin_at=0.0)
    return Trajectory.model_validate(plain(story) | changes)


def test_a_rollout_without_a_turn_has_no_conversation_and_its_question_as_the_one_step() -> None:
    empty = of(segments=[], stop_reason="silent")
    assert list(conversations_of(empty, "run")) == []
    [document] = atif_of(empty, "run", "agent")
    assert document["steps"] == [{"step_id": 1, "source": "user", "message": empty.task.question}]
    assert document["final_metrics"] == {"total_prompt_tokens": 0, "total_completion_tokens": 0, "total_steps": 1}
    assert document["extra"]["stop_reason"] == "silent"


def test_arguments_that_were_no_object_are_exported_as_they_were_written() -> None:
    story = Story(steps=2, groups=1, group_size=2, begin_at=0.0)
    turn = story.turn("prompt", "call", 1, "x", "no JSON", "arguments")
    turn["tool_calls"][0] |= {"arguments": {}, "written": "{broken", "id": ""}
    broken = of(segments=[{"turns": [turn]}])
    [conversation] = conversations_of(broken, "run")
    call = conversation["messages"][1]["tool_calls"][0]
    assert (call["function"]["arguments"], bool(call["id"])) == ("{broken", True)
    [document] = atif_of(broken, "run", "python-math")
    call = document["steps"][1]["tool_calls"][0]
    assert (call["arguments"], call["extra"]["written"], call["extra"]["error_class"]) == ({}, "{broken", "arguments")


def test_a_segment_that_another_goes_on_from_as_a_whole_is_no_conversation_of_its_own() -> None:
    story = Story(steps=2, groups=1, group_size=2, begin_at=0.0)
    conversations = list(conversations_of(of(**several(story)), "run"))
    assert [conversation["segment"] for conversation in conversations] == [1, 2, 3]
    assert [turn["turn"] for turn in conversations[0]["turns"]] == [0, 1, 2]


def test_a_call_that_an_agent_never_reported_on_gets_no_result_made_up() -> None:
    story = Story(steps=2, groups=1, group_size=2, begin_at=0.0)
    turn = story.turn("prompt", "<tool>rm</tool>", 1, "rm", "")
    [conversation] = conversations_of(of(segments=[{"turns": [turn]}], agent={"exit": "done", "seconds": 1.0}), "run")
    assert conversation["messages"][1:] == [{"role": "assistant", "content": "<tool>rm</tool>"}]
