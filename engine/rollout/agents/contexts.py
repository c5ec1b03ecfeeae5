"""From the messages of a call to the ids that the policy reads.

Where the messages begin with what an earlier call read and answered, its ids stand as they were read and sampled, and
only what came since is written, by the renderer's bridge.  Text that the policy sampled is never made into ids again.
An assistant's message that no call sampled (the agent wrote or changed it) is text to be read, written by the
renderer.  Others go on while these are written: an agent may send thousands.

Whether a template only appends to what stands is known when it has written the whole conversation.  Where it has done
so before, it is expected to do so again: a turn can begin to be sampled while that is confirmed.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import and_

from engine.rollout.agents.asked import Asked, Entry, RequestRefused
from engine.rollout.renderers.contract import Conversation, Exchange, Parsed, Renderer, Rewritten
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema

MOST_SHORTENED = 2
"""A history that is written again is shorter than its turns and bridges, which begin with marks of thoughts that no
history holds; but no so many times."""


@dataclass(frozen=True, slots=True)
class Context:
    """All that stands before a turn."""

    conversation: Conversation
    token_ids: tuple[int, ...]
    observed: int = 0
    """Where in ``token_ids`` what came since the turn before begins."""
    experience_span: tuple[int, int] | None = None
    """Where ``token_ids`` hold the experience, half open."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn of the policy that may be built on."""

    context: Context
    token_ids: tuple[int, ...]
    """As sampled, with an end: the renderer's, where the turn was cut short."""
    parsed: Parsed


@dataclass(frozen=True, slots=True)
class Found:
    """The context of a call, and the turn that it goes on from."""

    context: Context
    digest: bytes
    """The digest of its tools and messages, which ``Contexts.spoke`` takes with the answer."""
    number: int | None
    """The number of the turn; None where it begins anew."""
    results: dict[str, str]
    """What the call's messages say of that turn's tool calls, by their ids."""
    expected: bool = False
    """Whether the context is the right one only if the template appends, which ``Contexts.confirmed`` finds out."""


class Contexts:
    """Remembers the turns of one rollout by the messages that lead to them."""

    def __init__(self, renderer: Renderer, experience: Sequence[str] = ()) -> None:
        self._renderer, self._experience = renderer, tuple(experience)
        self._spoken: dict[bytes, tuple[int, Spoken]] = {}
        self._digests = _Digests()
        self._appends_to_calls: bool | None = None
        self._appends_to_words = False
        """Whether the template only appends where tools alone answer, None before it is asked; and where others speak,
        and nothing was thought, which it has to show first."""

    def spoke(self, number: int, digest: bytes, reply: AssistantMessage, spoken: Spoken) -> None:
        """From now on messages may go on from this turn, which was answered with ``reply``."""
        self._spoken[_chained(digest, reply)] = number, spoken

    async def find(self, asked: Asked, context_tokens: int) -> Found:
        """Raises RequestRefused for messages that no template can express, and may for those that leave no room."""
        if (messages := _joined(asked.messages)) is not asked.messages:
            asked = replace(asked, messages=messages)
        opening, exchanges = exchanges_in(asked.messages)
        digests = self._digests.of(asked)
        known = self._longest_known(asked.messages, digests)
        try:
            if known is None:
                context, number, left = self._opened(opening, asked.tools), None, exchanges
                results = dict[str, str]()
            else:
                place, number, spoken = known
                read, left = exchanges[place][1], exchanges[place + 1 :]
                turn = Exchange(spoken.token_ids, spoken.parsed, tuple(read))
                results = {message.call: message.content for message in read if message.call}
                if not left and self._is_expected_to_append(spoken, turn):
                    context = appended(self._renderer, spoken.context, [turn])
                    return Found(context, digests[-1], number, results, expected=True)
                context = extended(self._renderer, spoken.context, [turn])
                stood = spoken.context.token_ids + turn.token_ids
                self._appends_to_words |= self._is_appending() and context.token_ids[: len(stood)] == stood
            if left:
                context = extended(self._renderer, context, await self._written(left, asked.tools, context_tokens))
        except ValueError as error:
            raise _unwritable(error) from error
        return Found(context, digests[-1], number, results)

    def confirmed(self, found: Found) -> Found:
        """The same where its context is the right one, or with another: the whole conversation is written to see that,
        and where it is another one than was expected, nothing is expected any more.  Raises RequestRefused."""
        if not found.expected:
            return found
        try:
            rewritten = self._renderer.rewritten(found.context.conversation)
        except ValueError as error:
            self._expect_nothing()
            raise _unwritable(error) from error
        if rewritten is None:
            return found
        self._expect_nothing()
        return replace(found, context=_rewritten(found.context.conversation, rewritten), expected=False)

    def _expect_nothing(self) -> None:
        self._appends_to_calls = self._appends_to_words = False

    def _is_expected_to_append(self, spoken: Spoken, turn: Exchange) -> bool:
        if all(message.role == "tool" for message in turn.messages):
            return self._is_appending()
        turns = (*spoken.context.conversation.exchanges, turn)
        return self._appends_to_words and not any(turn.parsed.message.reasoning for turn in turns)

    def _is_appending(self) -> bool:
        if self._appends_to_calls is None:
            try:
                self._appends_to_calls = self._renderer.append_only
            except ValueError:  # a template that cannot write so much, which a call's own messages may be less than
                self._appends_to_calls = False
        return self._appends_to_calls

    def _longest_known(self, messages: Sequence[Entry], digests: Sequence[bytes]) -> tuple[int, int, Spoken] | None:
        """The last assistant's message, by its place among those, up to which a turn is known."""
        places = [place for place, entry in enumerate(messages) if isinstance(entry, AssistantMessage)]
        for order in reversed(range(len(places))):
            if (known := self._spoken.get(digests[places[order] + 1])) is not None:
                return order, *known
        return None

    async def _written(
        self, turns: Sequence[tuple[AssistantMessage, list[Message]]], tools: Sequence[ToolSchema], context_tokens: int
    ) -> list[Exchange]:
        """Turns that the policy did not sample: their calls are written as calls, all else is text to be read.

        Raises RequestRefused as soon as they cannot fit, whatever the template leaves out of them.
        """
        exchanges, stays = list[Exchange](), 0
        for entry, read in turns:
            await asyncio.sleep(0)
            message = _readable(entry)
            is_text = not message.requests and not message.reasoning
            token_ids = self._renderer.quote(message.content) if is_text else self._renderer.write(message, tools)
            exchanges.append(Exchange(tuple(token_ids), Parsed(message, 0), tuple(read)))
            stays += len(self._renderer.bridge(exchanges[-1].messages)) + (0 if message.reasoning else len(token_ids))
            if stays > MOST_SHORTENED * context_tokens:
                raise RequestRefused(
                    "context",
                    f"the first {len(exchanges)} exchanges of the messages are {stays} tokens, and the model's context "
                    f"has {context_tokens}: send less",
                    field="messages",
                )
        return exchanges

    def _opened(self, opening: Sequence[Message], tools: Sequence[ToolSchema]) -> Context:
        conversation = Conversation(tuple(opening), tuple(tools), self._experience, ())
        token_ids = tuple(self._renderer.prompt(opening, tools, self._experience))
        span = self._renderer.experience_span(opening, tools, self._experience) if self._experience else None
        return Context(conversation, token_ids, 0, span)


def extended(renderer: Renderer, context: Context, exchanges: Sequence[Exchange]) -> Context:
    """What stands before the turn that follows on ``exchanges``, of which the policy sampled the last one at most."""
    conversation = _grown(context.conversation, exchanges)
    rewritten = renderer.rewritten(conversation, len(exchanges))
    if rewritten is not None:
        return _rewritten(conversation, rewritten)
    return appended(renderer, context, exchanges)


def appended(renderer: Renderer, context: Context, exchanges: Sequence[Exchange]) -> Context:
    """The same, if the template only appends."""
    behind, observed = list[int](), 0
    for exchange in exchanges:
        behind += exchange.token_ids
        observed = len(context.token_ids) + len(behind)
        behind += renderer.bridge(exchange.messages)
    token_ids = context.token_ids + tuple(behind)
    return Context(_grown(context.conversation, exchanges), token_ids, observed, context.experience_span)


def _grown(conversation: Conversation, exchanges: Sequence[Exchange]) -> Conversation:
    before = conversation.exchanges
    return Conversation(conversation.opening, conversation.tools, conversation.experience, (*before, *exchanges))


def _rewritten(conversation: Conversation, rewritten: Rewritten) -> Context:
    return Context(conversation, rewritten.token_ids, rewritten.observed, rewritten.experience_span)


def _unwritable(error: ValueError) -> RequestRefused:
    return RequestRefused("template", f"the model's chat template cannot write this: {error}")


def _joined(messages: Sequence[Entry]) -> tuple[Entry, ...]:
    """Messages of the assistant that stand next to each other are one: what it said, and all of its calls."""
    spoken = [isinstance(entry, AssistantMessage) for entry in messages]
    if not any(map(and_, spoken, spoken[1:])):
        return tuple(messages)
    joined = list[Entry]()
    for _, run in groupby(messages, key=type):
        entries = list(run)
        turns = [entry for entry in entries if isinstance(entry, AssistantMessage)]
        joined += [_one_turn(turns)] if len(turns) > 1 else entries
    return tuple(joined)


def _one_turn(turns: Sequence[AssistantMessage]) -> AssistantMessage:
    try:
        return AssistantMessage(
            _paragraphs(turn.content for turn in turns),
            tuple(request for turn in turns for request in turn.requests),
            reasoning=_paragraphs(turn.reasoning for turn in turns),
        )
    except ValueError as error:
        raise RequestRefused("conversation", f"of messages that are one turn: {error}", field="messages") from error


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _readable(entry: AssistantMessage) -> AssistantMessage:
    """A turn with calls that nobody can read is read as text: so the policy may have written it, and never again
    will."""
    if not any(request.malformed for request in entry.requests):
        return entry
    calls = (f"{request.name} {request.text}".strip() for request in entry.requests)
    return AssistantMessage("\n".join(filter(None, (entry.content, *calls))), reasoning=entry.reasoning)


def exchanges_in(messages: Sequence[Entry]) -> tuple[list[Message], list[tuple[AssistantMessage, list[Message]]]]:
    """What stands before the first turn, and each turn with what was read behind it: first the results of its calls,
    in their order, for no template writes whose result one is.  Raises RequestRefused."""
    opening, exchanges = list[Message](), list[tuple[AssistantMessage, list[Message]]]()
    for entry in messages:
        if isinstance(entry, AssistantMessage):
            exchanges.append((entry, []))
        else:
            (exchanges[-1][1] if exchanges else opening).append(entry)
    if not opening:
        raise RequestRefused("conversation", "nobody speaks before the assistant: begin with a user", field="messages")
    for entry, read in exchanges:
        if not read:
            raise RequestRefused(
                "conversation",
                "nothing stands behind an assistant's message: add what the model is to answer, "
                "for it continues no text that somebody else began",
                field="messages",
            )
        _check_results(entry, read)
        order = {request.id: place for place, request in enumerate(entry.requests)}
        read.sort(key=lambda message: order.get(message.call or "", len(order)))
    if any(message.role == "tool" for message in opening):
        stray = next(message.call for message in opening if message.role == "tool")
        raise RequestRefused(
            "conversation", f"a tool result without a call before it, of {stray!r}: send the call too", field="messages"
        )
    return opening, exchanges


def _check_results(entry: AssistantMessage, read: Sequence[Message]) -> None:
    """Each call has one result, right behind it, and nothing else has one."""
    calls, results = [request.id for request in entry.requests], [m.call for m in read if m.role == "tool"]
    if not calls and not results:
        return
    if sorted(calls) != sorted(map(str, results)):
        raise RequestRefused(
            "conversation",
            f"the calls {calls} of an assistant's message have the results {results}: give each call one, and no other",
            field="messages",
        )
    if any(message.role != "tool" for message in read[: len(results)]):
        late = next(message.call for message in reversed(read) if message.role == "tool")
        raise RequestRefused(
            "conversation", f"the tool result of {late!r} stands behind another message: put it first", field="messages"
        )


class _Digests:
    """Most messages of a call are those of the call before, whose digests are kept."""

    def __init__(self) -> None:
        self._latest: list[tuple[Entry, bytes, bytes]] = []
        """Each message with the digest before it and the digest behind it."""

    def of(self, asked: Asked) -> list[bytes]:
        """The digests of the tools, and of the tools and each beginning of the messages."""
        tools = [(tool.name, tool.description, tool.parameters) for tool in asked.tools]
        digests = [hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).digest()]
        for place, entry in enumerate(asked.messages):
            digests.append(self._known(place, digests[-1], entry) or _chained(digests[-1], entry))
        self._latest = list(zip(asked.messages, digests, digests[1:], strict=False))
        return digests

    def _known(self, place: int, before: bytes, entry: Entry) -> bytes | None:
        """Arguments of calls are not compared: True is 1 to Python, and not to JSON."""
        if place >= len(self._latest) or (isinstance(entry, AssistantMessage) and entry.requests):
            return None
        known, began, ended = self._latest[place]
        return ended if began == before and known == entry else None


def _chained(digest: bytes, entry: Entry) -> bytes:
    return hashlib.sha256(digest + json.dumps(_meaning(entry), sort_keys=True).encode()).digest()


def _meaning(entry: Entry) -> list[object]:
    """What an agent sends back of a message.  Thoughts are not in it: most agents leave them out."""
    if isinstance(entry, Message):
        return [entry.role, entry.content, entry.call]
    return ["assistant", entry.content, [_call_meaning(request) for request in entry.requests]]


def _call_meaning(request: ToolRequest) -> list[object]:
    written = dict(request.arguments) if request.malformed is None else request.malformed.text
    return [request.id, request.name, written]
