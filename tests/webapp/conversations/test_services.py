"""What can be done to a conversation, by whom, and what a process that begins anew is told."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from engine.spec.chat import New
from tests.webapp.models import ready_version
from webapp.accounts.models import AuditEntry, Team, User
from webapp.catalog.models import ModelVersion
from webapp.conversations import services
from webapp.conversations.log import append, unanswered
from webapp.conversations.models import Conversation, State
from webapp.library.services import delete_version
from webapp.refusals import Refused
from webapp.runs.models import Checkpoint, Run


@pytest.fixture
def talked_run(run: Run) -> Run:
    """With checkpoints after steps 0 to 40, of which three are kept."""
    Checkpoint.objects.bulk_create(
        Checkpoint(
            run=run, step=step, path=f"/ck/{step}", size_bytes=1, seconds=0.1, at=timezone.now(), on_disk=step >= 20
        )
        for step in range(0, 50, 10)
    )
    return run


@pytest.fixture
def conversation(talked_run: Run, bob: User) -> Conversation:
    return services.begin_conversation(talked_run, 40, with_tools=True, acting_user=bob)


def text(words: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}]}


def test_a_member_begins_says_stops_and_follows(api_of: Any, bob: User, talked_run: Run) -> None:
    api = api_of(bob)
    begun = api.post("/conversations", {"run": str(talked_run.id), "step": 40, "tools": True})
    assert begun.status_code == 201
    path = f"/conversations/{begun.json()['id']}"
    assert api.post(f"{path}/messages", text() | {"sampling": {"temperature": 0.5}}).json() == {"seq": 1}
    assert api.post(f"{path}/stop").status_code == 202
    [sent, stopped] = api.get(f"{path}/entries").json()["items"]
    assert (sent["kind"], stopped["kind"]) == ("send", "stop")
    assert sent["body"]["sampling"]["temperature"] == 0.5
    assert api.get(f"{path}/entries", after=2).json() == {"items": [], "next_after": 2}
    assert [one["id"] for one in api.get("/conversations").json()["items"]] == [begun.json()["id"]]
    assert api.client.delete(f"/api/v1{path}").status_code == 200
    assert api.get(path).status_code == 404
    verbs = list(AuditEntry.objects.filter(verb__startswith="conversation").values_list("verb", flat=True))
    assert sorted(verbs) == ["conversation.begin", "conversation.delete"]


def test_the_newest_checkpoint_is_meant_where_none_is_named(api_of: Any, bob: User, talked_run: Run) -> None:
    assert api_of(bob).post("/conversations", {"run": str(talked_run.id)}).json()["step"] == 40


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"run": "RUN", "step": 0}, 422, "step"),
        ({"run": "RUN", "step": -1}, 422, "step"),
        ({"run": "RUN", "environment": "own"}, 422, "environment"),
        ({"step": 40}, 422, "run"),
        ({"run": str(uuid4())}, 404, None),
    ],
)
def test_a_beginning_that_cannot_be_is_refused(
    api_of: Any, bob: User, talked_run: Run, body: dict[str, Any], status: int, field: str | None
) -> None:
    answer = api_of(bob).post(
        "/conversations", body | ({"run": str(talked_run.id)} if body.get("run") == "RUN" else {})
    )
    assert answer.status_code == status
    if field:
        assert [problem["field"] for problem in answer.json()["problems"]] == [field]
    assert not Conversation.objects.exists()


def test_a_run_without_a_checkpoint_has_nobody_to_talk_with(api_of: Any, bob: User, run: Run) -> None:
    answer = api_of(bob).post("/conversations", {"run": str(run.id)})
    assert (answer.status_code, "no checkpoint" in answer.json()["detail"]) == (409, True)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    (text() | {"sampling": {"temperature": 99}}, "sampling.temperature"),
    (text() | {"sampling": {"top_p": "x"}}, "sampling.top_p"),
    (text("x" * 200_001), "messages.0.content"),
    ({"messages": [{"role": "user", "content": "x", "token_ids": [1]}]}, "messages.0.token_ids"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "assistant", "token_ids": [-1]}]}, "messages.0.token_ids.0"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_a_message_that_cannot_be_read_is_refused_with_its_field(
    api_of: Any, bob: User, conversation: Conversation, body: dict[str, Any], field: str
) -> None:
    answer = api_of(bob).post(f"/conversations/{conversation.id}/messages", body)
    assert answer.status_code == 422
    assert field in [problem["field"] for problem in answer.json()["problems"]]
    assert not conversation.entries.exists()


def test_two_tabs_that_send_at_once_say_one_message(api_of: Any, bob: User, conversation: Conversation) -> None:
    api, path = api_of(bob), f"/conversations/{conversation.id}/messages"
    assert [api.post(path, text()).status_code for _ in range(2)] == [202, 409]
    Conversation.objects.filter(id=conversation.id).update(handled_seq=1, state=State.ANSWERING)
    assert api.post(path, text()).status_code == 409
    assert api.post(f"/conversations/{conversation.id}/retry").status_code == 409
    assert conversation.entries.count() == 1


def test_nothing_can_be_asked_again_before_something_was_said(
    api_of: Any, bob: User, conversation: Conversation
) -> None:
    api = api_of(bob)
    assert api.post(f"/conversations/{conversation.id}/retry").status_code == 409
    append(conversation.id, [("send", text()), ("new", {})], handled_seq=2)
    assert api.post(f"/conversations/{conversation.id}/retry").status_code == 409


def test_a_conversation_takes_as_many_messages_as_another_process_can_be_told(
    api_of: Any, bob: User, conversation: Conversation
) -> None:
    """A message and 64 calls with their results, over and over: more than are ever sent by people."""
    api, path = api_of(bob), f"/conversations/{conversation.id}"
    answer = [READING, *[turn_of("x"), RESULT] * 64, ("finished", {})]
    for _ in range(7):
        append(conversation.id, [("send", text()), *answer])
    messages = text()["messages"] * 64
    append(conversation.id, [("send", {"messages": messages}), READING, turn_of("x"), ("finished", {})])
    assert len(unanswered(conversation.entries.order_by("seq").values_list("kind", "body"))[0]) == 968
    Conversation.objects.filter(id=conversation.id).update(handled_seq=conversation.entries.count())
    refused = api.post(f"{path}/messages", {"messages": messages[:33]})
    assert refused.status_code == 409
    assert "at most 1000 messages" in refused.json()["detail"]
    assert "this one has 968: begin a new conversation" in refused.json()["detail"]
    sent = api.post(f"{path}/messages", {"messages": messages[:32]})
    assert sent.status_code == 202
    history, asked = unanswered(conversation.entries.order_by("seq").values_list("kind", "body"))
    assert (len(New(history=history).history), len(asked.messages) if asked else 0) == (968, 32)
    append(conversation.id, [("finished", {})], handled_seq=sent.json()["seq"])
    assert api.post(f"{path}/messages", text()).status_code == 409
    assert api.post(f"{path}/new").status_code == 202
    assert api.post(f"{path}/messages", text()).status_code == 202


PATHS = ["/messages", "/stop", "/new", "/retry", ""]


def test_strangers_find_nothing_and_viewers_may_only_read(
    api_of: Any, charlie: User, victor: User, conversation: Conversation
) -> None:
    stranger = api_of(charlie)
    viewer = api_of(victor)
    path = f"/conversations/{conversation.id}"
    for end in PATHS[:-1]:
        assert stranger.post(path + end, text()).status_code == 404
        assert viewer.post(path + end, text()).status_code == 403
    assert (stranger.get(path).status_code, stranger.get(f"{path}/entries").status_code) == (404, 404)
    assert [api.client.delete(f"/api/v1{path}").status_code for api in (stranger, viewer)] == [404, 403]
    assert stranger.get("/conversations").json()["items"] == []
    assert viewer.get(path).status_code == 200
    assert stranger.post("/conversations", {"run": str(conversation.run_id)}).status_code == 404
    assert not conversation.entries.exists()


def test_a_page_needs_its_csrf_token_and_a_post(bob: User, talked_run: Run) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(bob)
    here = f"/runs/{talked_run.id}/conversations"
    assert client.post(here, {"step": "40"}).status_code == 403
    assert client.get(here).status_code == 405
    conversation = services.begin_conversation(talked_run, 40, with_tools=False, acting_user=bob)
    path = f"/api/v1/conversations/{conversation.id}/messages"
    assert client.post(path, text(), content_type="application/json").status_code == 403
    assert not conversation.entries.exists()


def test_the_checkpoint_list_leads_to_a_conversation(bob: User, victor: User, talked_run: Run) -> None:
    client = Client()
    client.force_login(bob)
    listed = client.get(f"/runs/{talked_run.id}/parts/checkpoints").content.decode()
    assert [f"Chat with step {step}" in listed for step in (0, 10, 20, 30, 40)] == [False, False, True, True, True]
    answer = client.post(f"/runs/{talked_run.id}/conversations", {"step": "30", "tools": "1"}, follow=True)
    page = answer.content.decode()
    assert "Chat with step 30 of tiny" in page
    assert 'id="composer"' in page
    [conversation] = Conversation.objects.all()
    assert (conversation.step, conversation.with_tools) == (30, True)
    client.force_login(victor)
    page = client.get(f"/conversations/{conversation.id}/").content.decode()
    assert 'id="composer"' not in page
    assert "Chat with step" not in client.get(f"/runs/{talked_run.id}/parts/checkpoints").content.decode()


def test_strangers_find_no_page(charlie: User, conversation: Conversation) -> None:
    client = Client()
    client.force_login(charlie)
    assert client.get(f"/conversations/{conversation.id}/").status_code == 404
    assert client.post(f"/runs/{conversation.run_id}/conversations", {"step": "40"}).status_code == 404
    assert "Nobody has talked" in client.get("/conversations/").content.decode()


def test_the_oldest_conversations_make_room(monkeypatch: pytest.MonkeyPatch, talked_run: Run, bob: User) -> None:
    monkeypatch.setattr(services, "MOST_PER_TEAM", 3)
    begun = [services.begin_conversation(talked_run, 40, with_tools=False, acting_user=bob).id for _ in range(5)]
    assert set(Conversation.objects.values_list("id", flat=True)) == set(begun[-3:])


def test_numbers_have_no_holes_and_the_log_is_the_conversations_own(team: Team, conversation: Conversation) -> None:
    assert append(conversation.id, [("send", text()), ("ready", {})]) == 2
    assert append(conversation.id, [("stop", {})], state=State.READY) == 3
    assert list(conversation.entries.order_by("seq").values_list("seq", "kind")) == [
        (1, "send"), (2, "ready"), (3, "stop")
    ]  # fmt: skip
    conversation.refresh_from_db()
    assert (conversation.last_seq, conversation.asked_seq, conversation.state) == (3, 3, "ready")


def turn_of(words: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "said", {"message": {"role": "assistant", "content": words, "token_ids": [5]} | more}


SEND, READING, FINISHED = ("send", text("a")), ("reading", {}), ("finished", {})
SECOND = ("send", text("b"))
RESULT = ("result", {"output": "4", "call": "c", "tool": "python"})


@pytest.mark.parametrize(
    ("entries", "history", "asked"),
    [
        ([SEND], [], "a"),
        ([SEND, READING, turn_of("x"), FINISHED], ["a", "x"], None),
        ([SEND, READING, turn_of("x"), FINISHED, SECOND], ["a", "x"], "b"),
        ([SEND, READING, turn_of("x"), RESULT, turn_of("y"), FINISHED, SECOND], ["a", "x", "4", "y"], "b"),
        ([SEND, READING, turn_of("x"), ("ended", {}), ("retry", {})], [], "a"),
        ([SEND, READING, turn_of("x"), FINISHED, SECOND, READING, turn_of("z"), ("retry", {})], ["a", "x"], "b"),
        ([SEND, READING, ("ended", {}), SECOND], ["a"], "b"),
        ([SEND, ("failed", {}), SECOND], [], "b"),
        ([SEND, READING, turn_of("x"), ("failed", {}), SECOND], ["a", "x"], "b"),
        ([SEND, READING, turn_of("x"), FINISHED, ("new", {}), SECOND], [], "b"),
        ([SEND, READING, turn_of("x"), FINISHED, ("new", {})], [], None),
        ([("retry", {})], [], None),
    ],
)
def test_a_process_that_begins_anew_is_told_what_was_said(
    entries: list[tuple[str, dict[str, Any]]], history: list[str], asked: str | None
) -> None:
    found, send = unanswered(entries)
    assert [message.content for message in found] == history
    assert (send.messages[0].content if send else None) == asked


@pytest.fixture
def version(team: Team, settings: Any, tmp_path: Path) -> ModelVersion:
    settings.PALESTRA_MODELS = tmp_path / "models"
    return ready_version(team)


@pytest.fixture
def with_version(version: ModelVersion, bob: User) -> Conversation:
    return services.begin_with_version(version, acting_user=bob)


def test_a_conversation_is_with_a_step_or_with_a_version_and_never_with_both(
    talked_run: Run, version: ModelVersion, team: Team
) -> None:
    whole = {"run": talked_run, "step": 40}
    named = {"model_version": version, "version_name": "qwen@1"}
    impossible: list[dict[str, Any]] = [{}, whole | named, {"run": talked_run}, {"step": 4}, {"model_version": version},
                                        whole | {"version_name": "qwen@1"}, named | {"step": 4}]  # fmt: skip
    for fields in impossible:
        with pytest.raises(IntegrityError, match="conversation_is_with_a_step_or_a_version"), transaction.atomic():
            Conversation.objects.create(team=team, **fields)


def test_a_member_talks_with_a_version_over_rest(api_of: Any, bob: User, version: ModelVersion) -> None:
    api = api_of(bob)
    begun = api.post("/conversations", {"model_version": version.id})
    assert begun.status_code == 201, begun.content
    found = begun.json()
    assert (found["run"], found["step"], found["tools"]) == (None, None, False)
    assert (found["model_version"], found["version_name"]) == (version.id, "qwen@1")
    assert api.post(f"/conversations/{found['id']}/messages", text()).status_code == 202
    assert api.get(f"/model-versions/{version.id}").json()["conversations"] == 1
    assert AuditEntry.objects.get(verb="conversation.begin").target == f"model-version {version.id}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"run": "RUN", "model_version": 0}, "model_version"),
        ({"run": "RUN", "model_version": "VERSION"}, "run"),
        ({"model_version": "VERSION", "step": 0}, "step"),
        ({"model_version": "VERSION", "tools": True}, "tools"),
        ({"model_version": 2**63}, "model_version"),
        ({"model_version": "qwen@1"}, "model_version"),
        ({}, "run"),
        ({"run": None, "model_version": None}, "run"),
    ],
)
def test_a_beginning_that_does_not_name_one_model_is_refused(
    api_of: Any, bob: User, talked_run: Run, version: ModelVersion, body: dict[str, Any], field: str
) -> None:
    meant = {"RUN": str(talked_run.id), "VERSION": version.id}
    filled = {name: meant[value] if str(value) in meant else value for name, value in body.items()}
    answer = api_of(bob).post("/conversations", filled)
    assert answer.status_code == 422
    assert [problem["field"] for problem in answer.json()["problems"]] == [field]
    assert not Conversation.objects.exists()


@pytest.mark.parametrize("state", ["importing", "checking", "failed", "cancelled"])
def test_a_version_that_is_not_ready_is_not_talked_with(
    api_of: Any, bob: User, version: ModelVersion, state: str
) -> None:
    ModelVersion.objects.filter(id=version.id).update(state=state)
    answer = api_of(bob).post("/conversations", {"model_version": version.id})
    assert (answer.status_code, state in answer.json()["detail"]) == (409, True)


def test_a_version_that_is_deleted_while_somebody_presses_is_refused(version: ModelVersion, bob: User) -> None:
    ModelVersion.objects.filter(id=version.id).delete()
    with pytest.raises(Refused, match="qwen@1 was deleted meanwhile"):
        services.begin_with_version(version, acting_user=bob)


def test_another_teams_version_is_not_found_and_a_viewer_begins_nothing(
    api_of: Any, charlie: User, victor: User, version: ModelVersion, with_version: Conversation
) -> None:
    begin = {"model_version": version.id}
    assert api_of(charlie).post("/conversations", begin).status_code == 404
    assert api_of(charlie).post("/conversations", {"model_version": version.id + 1}).status_code == 404
    assert api_of(victor).post("/conversations", begin).status_code == 403
    assert api_of(charlie).get(f"/conversations/{with_version.id}").status_code == 404
    for user, status in ((charlie, 404), (victor, 403)):
        client = Client()
        client.force_login(user)
        assert client.post(f"/models/versions/{version.id}/conversations").status_code == status
    assert Conversation.objects.count() == 1


def test_the_page_of_a_version_leads_to_a_conversation(bob: User, victor: User, version: ModelVersion) -> None:
    client = Client()
    client.force_login(bob)
    here = f"/models/versions/{version.id}/conversations"
    assert f'action="{here}"' in client.get(f"/models/versions/{version.id}/").content.decode()
    assert client.get(here).status_code == 405
    page = client.post(here, follow=True).content.decode()
    assert "<h1>Chat with qwen@1</h1>" in page
    assert f'href="/models/versions/{version.id}/">qwen@1' in page
    assert 'id="composer"' in page
    assert "qwen@1" in client.get("/conversations/").content.decode()
    assert "1 conversation with it can still be read" in client.get(f"/models/versions/{version.id}/").content.decode()
    ModelVersion.objects.filter(id=version.id).update(state="failed")
    refused = client.post(here, follow=True).content.decode()
    assert "The version is failed; only a ready one can be talked with." in refused
    client.force_login(victor)
    assert f'action="{here}"' not in client.get(f"/models/versions/{version.id}/").content.decode()


def test_a_conversation_outlives_its_version_and_says_so(
    api_of: Any, bob: User, alice: User, version: ModelVersion, with_version: Conversation
) -> None:
    api, path = api_of(bob), f"/conversations/{with_version.id}"
    append(with_version.id, [SEND, READING, turn_of("x"), FINISHED], handled_seq=1)
    delete_version(version, acting_user=alice)
    found = api.get(path).json()
    assert (found["model_version"], found["version_name"]) == (None, "qwen@1")
    assert len(api.get(f"{path}/entries").json()["items"]) == 4
    for end in ("/messages", "/retry", "/new"):
        answer = api.post(path + end, text() if end == "/messages" else None)
        assert answer.status_code == 409, end
        assert "qwen@1 was deleted" in answer.json()["detail"]
    client = Client()
    client.force_login(alice)
    page = client.get(f"/conversations/{with_version.id}/").content.decode()
    assert "qwen@1 was deleted. What was said can be read" in page
    assert 'id="composer"' not in page
    assert "qwen@1" in client.get("/conversations/").content.decode()
    assert api.client.delete(f"/api/v1{path}").status_code == 200
    assert AuditEntry.objects.get(verb="conversation.delete").details == {"name": "qwen@1"}
    audit = client.get(f"/teams/{version.model.team.slug}/audit/").content.decode()
    for verb in ("began", "deleted"):
        assert f"{verb} a conversation with" in audit
    assert "step None" not in audit
