"""Conversations over REST: begin, say, follow, stop, begin anew, ask again, delete."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.params.functions import Query
from pydantic import Field, model_validator

from engine.spec.chat import ChatMessage, Sampling, Send
from engine.spec.impossible import impossible
from engine.spec.strict import Strict
from webapp.accounts.access import caller_of
from webapp.api.cursors import MOST_PER_PAGE, page_of
from webapp.api.doors import somewhere, to_one, without_body
from webapp.api.idempotency import once
from webapp.catalog.access import version_for
from webapp.conversations import services
from webapp.conversations.access import conversation_for, conversations_of
from webapp.conversations.models import Conversation
from webapp.runs.access import run_for

router = Router(tags=["conversations"])
TO_LAUNCH = to_one(conversation_for, "conversation_id", "launch")
PATH = "/conversations/{uuid:conversation_id}"


class ConversationRequest(Strict):
    run: UUID | None = None
    """With one of whose checkpoints."""
    model_version: int | None = Field(default=None, ge=1, lt=2**63)
    """In place of a run: the id of a version of a model."""
    step: int | None = Field(default=None, ge=0, lt=2**31)
    """The step of the checkpoint; absent: the newest."""
    tools: bool = False
    """Whether the tools of the run's environment answer calls, in sandboxes under the run's egress policy."""

    @model_validator(mode="after")
    def _names_one_model(self) -> Self:
        if self.model_version is None:
            if self.run is None:
                raise impossible("run", None, "a conversation is with a model", "name a run or a model_version")
            return self
        for field in ("run", "step", "tools"):
            if (value := getattr(self, field)) is not None and value is not False:
                problem = f"{field} is of a run's checkpoint, and the conversation is with a version of a model"
                raise impossible(field, value, problem, f"remove {field} or model_version")
        return self


class MessagesRequest(Strict):
    messages: list[ChatMessage] = Field(min_length=1, max_length=64)
    sampling: Sampling = Sampling()


class ConversationOut(Schema):
    id: UUID
    team: str
    run: UUID | None
    step: int | None
    model_version: int | None = Field(description="Absent also where the version was deleted")
    version_name: str = Field(description="Of a version of a model: name@number, also when it is gone")
    tools: bool
    state: str
    reason: str
    last_seq: int
    created_at: datetime
    used_at: datetime

    @classmethod
    def of(cls, conversation: Conversation) -> "ConversationOut":
        return cls(
            id=conversation.id, team=conversation.team.slug, run=conversation.run_id, step=conversation.step,
            model_version=conversation.model_version_id, version_name=conversation.version_name,
            tools=conversation.with_tools, state=conversation.state, reason=conversation.reason,
            last_seq=conversation.last_seq, created_at=conversation.created_at, used_at=conversation.used_at,
        )  # fmt: skip


class ConversationPage(Schema):
    items: list[ConversationOut]
    next_cursor: str | None


class SentOut(Schema):
    seq: int = Field(description="The number of the entry; what answers it has higher ones")


class EntryOut(Schema):
    seq: int
    kind: str
    at: datetime
    body: dict[str, Any]


class EntriesOut(Schema):
    items: list[EntryOut]
    next_after: int = Field(description="Send it as `after` to go on")


@router.post(
    "/conversations", response={201: ConversationOut}, operation_id="begin_conversation", auth=somewhere("launch")
)
def begin(request: HttpRequest, wanted: ConversationRequest) -> Status[object]:
    user = caller_of(request).user
    if wanted.model_version is not None:
        version = version_for(request, wanted.model_version, to="launch")

        def act_with_version() -> tuple[int, ConversationOut]:
            return 201, ConversationOut.of(services.begin_with_version(version, acting_user=user))

        return once(request, version.model.team, act_with_version)
    assert wanted.run is not None  # the request names one of the two
    run = run_for(request, wanted.run, to="launch")

    def act() -> tuple[int, ConversationOut]:
        begun = services.begin_conversation(run, wanted.step, with_tools=wanted.tools, acting_user=user)
        return 201, ConversationOut.of(begun)

    return once(request, run.team, act)


@router.get("/conversations", response=ConversationPage, operation_id="list_conversations")
def list_conversations(
    request: HttpRequest, limit: int = Query(50, ge=1, le=MOST_PER_PAGE), cursor: str | None = None
) -> ConversationPage:
    fields = (("used_at", datetime), ("id", UUID))
    page, next_cursor = page_of(conversations_of(request), fields, limit=limit, cursor=cursor)
    return ConversationPage(items=[ConversationOut.of(one) for one in page], next_cursor=next_cursor)


@router.get(PATH, response=ConversationOut, operation_id="get_conversation")
def get_conversation(request: HttpRequest, conversation_id: UUID) -> ConversationOut:
    return ConversationOut.of(conversation_for(request, conversation_id))


@router.get(f"{PATH}/entries", response=EntriesOut, operation_id="list_conversation_entries")
def entries(
    request: HttpRequest,
    conversation_id: UUID,
    after: int = Query(0, ge=0, lt=2**63),
    limit: int = Query(200, ge=1, le=1000),
) -> EntriesOut:
    """Everything that was said, the oldest first; kinds and bodies are those of docs/guide/chat.md."""
    found = conversation_for(request, conversation_id).entries.filter(seq__gt=after).order_by("seq")[:limit]
    items = [EntryOut(seq=entry.seq, kind=entry.kind, at=entry.at, body=entry.body) for entry in found]
    return EntriesOut(items=items, next_after=items[-1].seq if items else after)


@router.post(f"{PATH}/messages", response={202: SentOut}, operation_id="send_messages", auth=TO_LAUNCH)
def send(request: HttpRequest, conversation_id: UUID, wanted: MessagesRequest) -> Status[object]:
    conversation = conversation_for(request, conversation_id, to="launch")
    user = caller_of(request).user
    message = Send(messages=wanted.messages, sampling=wanted.sampling)

    def act() -> tuple[int, SentOut]:
        return 202, SentOut(seq=services.send(conversation, message, acting_user=user))

    return once(request, conversation.team, act)


@router.post(f"{PATH}/stop", response={202: SentOut}, operation_id="stop_answer", auth=TO_LAUNCH)
@without_body
def stop(request: HttpRequest, conversation_id: UUID) -> Status[object]:
    return _sent_to(request, conversation_id, services.stop)


@router.post(f"{PATH}/new", response={202: SentOut}, operation_id="begin_anew", auth=TO_LAUNCH)
@without_body
def begin_anew(request: HttpRequest, conversation_id: UUID) -> Status[object]:
    return _sent_to(request, conversation_id, services.begin_anew)


@router.post(f"{PATH}/retry", response={202: SentOut}, operation_id="ask_again", auth=TO_LAUNCH)
@without_body
def retry(request: HttpRequest, conversation_id: UUID) -> Status[object]:
    return _sent_to(request, conversation_id, services.retry)


@router.delete(PATH, response=ConversationOut, operation_id="delete_conversation", auth=TO_LAUNCH)
@without_body
def delete(request: HttpRequest, conversation_id: UUID) -> ConversationOut:
    """Answers with what it was."""
    conversation = conversation_for(request, conversation_id, to="launch")
    was = ConversationOut.of(conversation)
    services.delete_conversation(conversation, acting_user=caller_of(request).user)
    return was


def _sent_to(request: HttpRequest, conversation_id: UUID, verb: Callable[[Conversation], int]) -> Status[object]:
    conversation = conversation_for(request, conversation_id, to="launch")
    return once(request, conversation.team, lambda: (202, SentOut(seq=verb(conversation))))
