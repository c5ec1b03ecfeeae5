"""What can be done to a conversation: begin, say, stop, begin anew, ask again, delete.

Callers have been through the door.  Each verb writes to the log; the host (``workers/chats.py``) reads it there.
"""

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from engine.spec.chat import MOST_MESSAGES, Send
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import ModelVersion, VersionState
from webapp.conversations.log import append, unanswered
from webapp.conversations.models import Conversation, Entry, State
from webapp.refusals import Invalid, Refused, TooMany
from webapp.runs.models import Run

MOST_PER_TEAM = 200
"""Conversations that are kept; the oldest that nobody uses make room."""
MOST_ENTRIES = 50_000
"""The most entries of one conversation."""
KEPT_FOR = timedelta(days=30)


@transaction.atomic
def begin_conversation(run: Run, step: int | None, *, with_tools: bool, acting_user: User) -> Conversation:
    """With a checkpoint of the run, by default its newest.  Raises Refused and Invalid."""
    steps = sorted(checkpoint.step for checkpoint in run.checkpoints_on_disk)
    if not steps:
        raise Refused(f"run #{run.number} has no checkpoint on the disk to talk with")
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        shown = ", ".join(map(str, steps))
        raise Invalid.field("step", chosen, "the run has no checkpoint of this step on the disk", f"use one of {shown}")
    _make_room(run.team_id)
    conversation = Conversation.objects.create(
        team=run.team, run=run, step=chosen, with_tools=with_tools, created_by=acting_user
    )
    record(run.team, acting_user, "conversation.begin", f"run {run.id}", number=run.number, step=chosen,
           tools=with_tools)  # fmt: skip
    return conversation


@transaction.atomic
def begin_with_version(version: ModelVersion, *, acting_user: User) -> Conversation:
    """With a version of a model; it has no environment, so no tools.  Raises Refused for one that is not ready."""
    _make_room(version.model.team_id)
    # Under the team's lock, as versions are deleted.
    rows = ModelVersion.objects.select_for_update(of=("self",)).select_related("model__team")
    found = rows.filter(id=version.id).first()
    if found is None:
        raise Refused(f"{version} was deleted meanwhile")
    if found.state != VersionState.READY:
        raise Refused(f"the version is {found.state}; only a ready one can be talked with")
    conversation = Conversation.objects.create(
        team=found.model.team, model_version=found, version_name=str(found), created_by=acting_user
    )
    record(found.model.team, acting_user, "conversation.begin", f"model-version {found.id}", name=str(found))
    return conversation


def _make_room(team_id: int) -> None:
    """For one more conversation; holds the team's lock from now on."""
    Team.objects.select_for_update().get(id=team_id)
    kept = Conversation.objects.filter(team=team_id).order_by("-used_at").values_list("id", flat=True)
    if surplus := list(kept[MOST_PER_TEAM - 1 :]):
        Conversation.objects.filter(id__in=surplus).delete()


@transaction.atomic
def send(conversation: Conversation, message: Send, *, acting_user: User) -> int:
    """Say something; return the entry's number.

    Raises Refused while an answer is under way, where the version was deleted, and where the conversation would have
    more messages than a process that begins anew can be told.
    """
    conversation = Conversation.objects.select_for_update().get(id=conversation.id)
    _refuse_without_version(conversation)
    _refuse_while_answering(conversation)
    if conversation.last_seq >= MOST_ENTRIES:
        raise TooMany("this conversation has become too long: begin another one")
    _refuse_too_many_messages(conversation, message)
    body = message.model_dump(mode="json", exclude_none=True) | {"by": acting_user.display_name}
    return _say(conversation, "send", body)


def stop(conversation: Conversation) -> int:
    return _say(conversation, "stop", {})


@transaction.atomic
def begin_anew(conversation: Conversation) -> int:
    """The model forgets what was said; the log keeps it.  Raises Refused where the version was deleted."""
    _refuse_without_version(Conversation.objects.select_for_update().get(id=conversation.id))
    return _say(conversation, "new", {})


@transaction.atomic
def retry(conversation: Conversation) -> int:
    """Ask the last message again.  Raises Refused where there is none, where it is being answered, and where the
    version was deleted."""
    conversation = Conversation.objects.select_for_update().get(id=conversation.id)
    _refuse_without_version(conversation)
    _refuse_while_answering(conversation)
    last = conversation.entries.filter(kind__in=("send", "new")).order_by("-seq").first()
    if last is None or last.kind == "new":
        raise Refused("nothing was said yet that could be asked again")
    return _say(conversation, "retry", {})


@transaction.atomic
def delete_conversation(conversation: Conversation, *, acting_user: User) -> None:
    details: dict[str, object]
    if (run := conversation.run) is not None:
        target, details = f"run {run.id}", {"number": run.number, "step": conversation.step}
    else:
        target = f"model-version {conversation.model_version_id or conversation.version_name}"
        details = {"name": conversation.version_name}
    record(conversation.team, acting_user, "conversation.delete", target, **details)
    conversation.delete()


def forget_old_conversations() -> int:
    return Conversation.objects.filter(used_at__lt=timezone.now() - KEPT_FOR).delete()[0]


def _refuse_without_version(conversation: Conversation) -> None:
    if conversation.version_is_gone:
        gone = f"{conversation.version_name} was deleted: what was said can be read, and nobody answers any more"
        raise Refused(gone)


def _refuse_while_answering(conversation: Conversation) -> None:
    """Raises Refused also for a message that the host has not read yet: two tabs may press at once."""
    unread = Entry.objects.filter(
        conversation=conversation, seq__gt=conversation.handled_seq, kind__in=("send", "retry")
    )
    if conversation.state in (State.WAITING, State.ANSWERING) or unread.exists():
        raise Refused("an answer is under way: wait for it, or stop it first")


def _refuse_too_many_messages(conversation: Conversation, message: Send) -> None:
    entries = conversation.entries.exclude(kind="tokens").order_by("seq").values_list("kind", "body")
    history, _ = unanswered(entries)
    if len(history) + len(message.messages) > MOST_MESSAGES:
        raise Refused(
            f"a conversation has at most {MOST_MESSAGES} messages, answers and results of tools among them, and this "
            f"one has {len(history)}: begin a new conversation"
        )


def _say(conversation: Conversation, kind: str, body: dict[str, object]) -> int:
    return append(conversation.id, [(kind, body)], used_at=timezone.now())
