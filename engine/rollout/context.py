"""What the policy of an episode has before it: contexts that are written again, and habits of what it reads.

    exchanges ──► template: which of them are shown, and how ──► context of the next turn
    result    ──► habits: trimmed, reminded, told of repetition ──► what the policy reads of it

Sampled ids stay as they were sampled wherever a turn is shown whole.
"""

from collections.abc import Sequence
from dataclasses import replace

from engine.rollout.agents.contexts import Context as ReadContext
from engine.rollout.agents.contexts import extended
from engine.rollout.context_tools import ManagedSession, left_by_choice, memory_of
from engine.rollout.renderers.contract import Conversation, Exchange, Renderer, Rewritten
from engine.spec.context import Context, ContextRecord
from engine.spec.message import AssistantMessage, Malformed, Message

WORKFLOW = "Work in these steps:"


def instructed(context: Context | None, opening: Sequence[Message]) -> Sequence[Message]:
    """The opening of an episode with what the recipe says before it."""
    if context is None or not (context.system_prompt or context.workflow):
        return opening
    steps = [f"{number}. {step}" for number, step in enumerate(context.workflow, start=1)]
    parts = [*([context.system_prompt] if context.system_prompt else ()), *([WORKFLOW, *steps] if steps else ())]
    prompt = "\n".join(parts)
    if opening and opening[0].role == "system":
        return [replace(opening[0], content=f"{prompt}\n\n{opening[0].content}"), *opening[1:]]
    return [Message("system", prompt), *opening]


def rewritten(context: Context | None, renderer: Renderer, conversation: Conversation) -> Rewritten | None:
    """As ``Renderer.rewritten``, with what the context leaves out."""
    shown = conversation if context is None else _shown(context, renderer, conversation)
    return renderer.rewritten(conversation) if shown == conversation else _written(renderer, shown)


def _shown(context: Context, renderer: Renderer, conversation: Conversation) -> Conversation:
    """What is left of a conversation; the same where everything is."""
    opening, exchanges = conversation.opening, conversation.exchanges
    match context.template:
        case "self-managing":
            left = left_by_choice(exchanges, context)
            stays = [exchange for turn, exchange in enumerate(exchanges, start=1) if turn not in left]
            return replace(
                conversation, opening=_noted(opening, memory_of(exchanges, left, context)), exchanges=tuple(stays)
            )
        case "sliding-window" if len(exchanges) > context.window_turns:
            notes = _kept_notes(context, exchanges, len(exchanges) - context.window_turns)
            note = "\n".join(filter(None, (context.window_note, notes)))
            return replace(conversation, opening=_noted(opening, note), exchanges=exchanges[-context.window_turns :])
        case "reasoning":
            stripped = tuple(_without_thought(exchange, renderer, conversation) for exchange in exchanges)
            return _compacted(context, renderer, replace(conversation, exchanges=stripped))
        case _:
            return _compacted(context, renderer, conversation)


def _compacted(context: Context, renderer: Renderer, conversation: Conversation) -> Conversation:
    """What compactions leave of a conversation that holds no thoughts but those that are shown.

    It follows from the conversation alone: each turn in order, the contexts are as long as they were before that turn.
    """
    if not context.compact_tokens:
        return conversation
    lengths = [len(exchange.token_ids) + len(renderer.bridge(exchange.messages)) for exchange in conversation.exchanges]
    first: int = 0
    opening = conversation.opening
    before = len(renderer.prompt(opening, conversation.tools, conversation.experience))
    for turns in range(1, len(lengths) + 1):
        kept = max(first, turns - context.window_turns)
        if before + sum(lengths[first:turns]) > context.compact_tokens and kept > first:
            first, opening = kept, _noted(conversation.opening, _summary(context, conversation.exchanges, kept))
            before = len(renderer.prompt(opening, conversation.tools, conversation.experience))
    return replace(conversation, opening=opening, exchanges=conversation.exchanges[first:])


def _kept_notes(context: Context, exchanges: Sequence[Exchange], left: int) -> str:
    """The notes made in the first ``left`` turns, where the policy may keep some."""
    return memory_of(exchanges, set(range(1, left + 1)), context) if context.remembers else ""


def _summary(context: Context, exchanges: Sequence[Exchange], left: int) -> str:
    """What is told of the first ``left`` turns."""
    lines = ["Earlier, of which nothing else is shown:"]
    for number, exchange in enumerate(exchanges[:left], start=1):
        message, most = exchange.parsed.message, context.compact_characters
        did = _in_one_line(message.call_text if message.requests else message.content, most)
        came = _in_one_line(" ".join(result.content for result in exchange.messages), most)
        lines.append(f"{number}. {did} -> {came}")
    return "\n".join(filter(None, (*lines, _kept_notes(context, exchanges, left))))


def _in_one_line(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..."


def _written(renderer: Renderer, conversation: Conversation) -> Rewritten:
    """The context of a conversation, turn by turn."""
    opening, tools, experience = conversation.opening, conversation.tools, conversation.experience
    span = renderer.experience_span(opening, tools, experience) if experience else None
    begun = replace(conversation, exchanges=())
    read = ReadContext(begun, tuple(renderer.prompt(opening, tools, experience)), 0, span)
    for exchange in conversation.exchanges:
        read = extended(renderer, read, [exchange])
    return Rewritten(read.token_ids, read.observed, read.experience_span)


def _noted(opening: tuple[Message, ...], note: str) -> tuple[Message, ...]:
    if not note:
        return opening
    *before, last = opening
    return (*before, replace(last, content=f"{last.content}\n{note}"))


def _thinks(exchange: Exchange) -> bool:
    return bool(exchange.parsed.message.reasoning.strip())


def _without_thought(exchange: Exchange, renderer: Renderer, conversation: Conversation) -> Exchange:
    """The turn stays whole where a call of it cannot be read: nobody could write it again.

    Raises ValueError where the renderer cannot write the rest of the turn, which it could read.
    """
    if not _thinks(exchange) or any(request.malformed for request in exchange.parsed.message.requests):
        return exchange
    token_ids = tuple(renderer.write(replace(exchange.parsed.message, reasoning=""), conversation.tools))
    return Exchange(token_ids, renderer.parse(token_ids, conversation.tools), exchange.messages)


class Habits:
    """What one episode's policy reads of what came of its turns.  Without a context: all, and nothing else."""

    def __init__(self, context: Context | None) -> None:
        self._context, self._latest, self._in_a_row = context, AssistantMessage(), 0
        self._trimmed = self._reminders = self._repeated = self._thoughts = self._prompts = self._subagents = 0
        self._numbered = 0

    def read(
        self,
        number: int,
        message: AssistantMessage,
        results: Sequence[Message],
        *,
        tokens: int = 0,
        aside: bool = False,
    ) -> Sequence[Message]:
        """Return what the policy reads behind turn ``number``, from 0, which says ``message`` and ends a context of
        ``tokens``.  ``aside``: it is a sub-agent's, which manages no context."""
        if self._context is None:
            return results
        self._thoughts += bool(message.reasoning.strip())
        self._in_a_row = self._in_a_row + 1 if _same_calls(message, self._latest) else 1
        self._latest = message
        if not results:
            return results
        return _with_behind([self._trim(result) for result in results], self._notes(number, tokens, aside=aside))

    def goes_aside(self) -> None:
        """A sub-agent begins, which repeats no call of another one."""
        self._subagents += 1
        self.goes_on()

    def goes_on(self) -> None:
        """The policy itself goes on behind one."""
        self._latest, self._in_a_row = AssistantMessage(), 0

    def record(self, managed: ManagedSession | None = None) -> ContextRecord | None:
        """``managed``: the session in which the policy has tools of its context, if it has some."""
        if self._context is None:
            return None
        return ContextRecord(
            trimmed_characters=self._trimmed,
            reminders=self._reminders,
            repeated_calls=self._repeated,
            thoughts=self._thoughts,
            notes=0 if managed is None else managed.notes,
            left_turns=0 if managed is None else managed.left,
            manage_prompts=self._prompts,
            subagents=self._subagents,
            numbered_turns=self._numbered,
        )

    def _notes(self, number: int, tokens: int, *, aside: bool) -> list[str]:
        assert self._context is not None
        notes = []
        if self._context.template == "self-managing" and not aside:
            self._numbered += 1
            notes.append(f"(turn {number + 1})")
        if 0 < self._context.manage_tokens < tokens and not aside:
            self._prompts += 1
            notes.append(f"The context has {tokens} tokens; fold or drop turns that you do not need.")
        if 0 < self._context.repeated_calls <= self._in_a_row and self._latest.requests:
            self._repeated += 1
            notes.append(f"You have made this call {self._in_a_row} times in a row.")
        if self._context.reminder and (number + 1) % self._context.reminder_turns == 0:
            self._reminders += 1
            notes.append(self._context.reminder)
        return notes

    def _trim(self, message: Message) -> Message:
        assert self._context is not None
        most = self._context.result_characters
        left = len(message.content) - most
        if message.role != "tool" or not most or left <= 0:
            return message
        self._trimmed += left
        head, tail = message.content[: most - most // 2], message.content[len(message.content) - most // 2 :]
        return replace(message, content=f"{head}\n({left} characters are left out here)\n{tail}")


def _with_behind(messages: list[Message], notes: list[str]) -> list[Message]:
    *before, last = messages
    return [*before, replace(last, content="\n".join((last.content, *notes)))]


def _same_calls(message: AssistantMessage, other: AssistantMessage) -> bool:
    """Calls that cannot be read are the same where they are the same text."""

    def meant(of: AssistantMessage) -> list[tuple[str, dict[str, object], Malformed | None]]:
        return [(request.name, dict(request.arguments), request.malformed) for request in of.requests]

    return bool(message.requests) and meant(message) == meant(other)
