"""Writes to a conversation's log, and reads from it what a process needs to go on."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction

from engine.spec.chat import ChatMessage, Send
from webapp.conversations.models import Conversation, Entry
from webapp.runs.notify import notify_group

NewEntry = tuple[str, dict[str, Any]]
"""A kind and a body."""
BY_PEOPLE = ("send", "stop", "new", "retry")


def group_of(conversation_id: UUID | str) -> str:
    return f"conversation.{conversation_id}"


def append(conversation_id: UUID, entries: Sequence[NewEntry], **fields: Any) -> int:
    """Write them behind the others, with changes of the conversation; return the last number.

    Raises Conversation.DoesNotExist.
    """
    with transaction.atomic():
        conversation = Conversation.objects.select_for_update().get(id=conversation_id)
        Entry.objects.bulk_create(
            Entry(conversation=conversation, seq=conversation.last_seq + number, kind=kind, body=body)
            for number, (kind, body) in enumerate(entries, start=1)
        )
        conversation.last_seq += len(entries)
        if entries and entries[-1][0] in BY_PEOPLE:
            conversation.asked_seq = conversation.last_seq
        for name, value in fields.items():
            setattr(conversation, name, value)
        conversation.save(update_fields=["last_seq", "asked_seq", *fields])
        transaction.on_commit(lambda: notify_group(group_of(conversation_id)))
    return conversation.last_seq


def unanswered(entries: Iterable[tuple[str, dict[str, Any]]]) -> tuple[list[ChatMessage], Send | None]:
    """What a process that begins anew is told: what was said, and the message that waits for an answer.

    ``entries`` are a conversation's, in their order.  A message that was refused before the model read it is left out;
    a ``retry`` leaves out what came of the last message, and asks it again.
    """
    history: list[ChatMessage] = []
    asked: Send | None = None
    before, was_read, waits = 0, False, False
    for kind, body in entries:
        match kind:
            case "new":
                history, asked, waits = [], None, False
            case "send":
                asked, before, was_read, waits = _sent(body), len(history), False, True
                history += asked.messages
            case "retry" if asked is not None:
                history, was_read, waits = [*history[:before], *asked.messages], False, True
            case "reading":
                was_read = True
            case "said":
                history.append(ChatMessage.model_validate(body["message"]))
            case "result":
                content = {"content": body["output"], "call": body["call"][:100], "tool": body["tool"][:100]}
                history.append(ChatMessage(role="tool", **content))
            case "finished":
                waits = False
            case "failed":
                waits = False
                if not was_read:
                    del history[before:]
    if asked is None or not waits:
        return history, None
    return history[:before], asked


def _sent(body: dict[str, Any]) -> Send:
    """Without the name of who sent it, which the model is not told."""
    return Send.model_validate({name: value for name, value in body.items() if name != "by"})
