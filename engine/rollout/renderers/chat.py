"""The renderer of a model folder: its tokenizer, its chat template, the form of its tool calls.

``prompt`` is what the template writes, id for id.  A turn as sampled is what it writes between the header and the end
mark of an assistant's message; ``bridge`` is what it writes from behind that mark to the next header, taken from a
small conversation that ends with the same messages.  So what an episode appends is what the template writes for the
whole conversation, as long as the template only appends; ``rewritten`` says where it does not (Qwen3 drops earlier
thoughts when a user speaks again), and what then stands before the next turn.

Pieces are cut at the borders of turns, and have the ids that they have in the whole (placed_text.py).  Only a turn that
begins or ends with white space may be cut otherwise; that is right, because it is what the policy read and wrote.
``check_cuts`` refuses a tokenizer with which no such cut is possible.  Sampled ids stand as they are, however the
template would have spaced their JSON; ``rewritten`` compares what messages say.

Text from outside is never a mark, and no text of the policy's is, unless it sampled the mark (template.py,
pretrained_tokenizer.py).  Experience stands at the beginning of the first user's message, encoded by itself, so that
the prompt without those ids is the prompt without experience.
"""

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from engine.models.pretrained_tokenizer import (
    REPLACEMENT,
    PretrainedTokenizer,
    pattern_of,
    shown_characters,
    unicode_form,
)
from engine.models.refusal import FIELD, ModelFolderRefused, refused
from engine.rollout.renderers.contract import Conversation, Exchange, Parsed, Rewritten, Settled
from engine.rollout.renderers.placed_text import PlacedEncoder
from engine.rollout.renderers.spelled_frames import THINK, THOUGHT, SpelledFrames
from engine.rollout.renderers.template import ChatTemplate, Passage, TemplateRefused
from engine.rollout.renderers.tool_calls import (
    FORMATS,
    CallFormat,
    Format,
    Reading,
    fenced,
    unreadable_call,
    without_head_of,
)
from engine.rollout.renderers.turn_frame import USER, Document, assistant, call, tool_message, turn_frame
from engine.spec.message import AssistantMessage, Malformed, Message, ToolRequest, ToolSchema
from engine.spec.model import Reasoning, ToolCallFormat

Messages = Sequence[Message | AssistantMessage]
"""A conversation as one list."""
MOST_STAND_INS, SHORT_NAMES = 256, 256
"""Turns, by the names of the tools that they call, of so many characters together, that are kept to write what may
stand behind them."""
_PROBED_CALL = AssistantMessage.calling("probe", {"a": "b"})
_PROBED_TOOL = ToolSchema.of_text("probe", "a")
_INSERTIONS = range(0x10FF00, 0x10FFFE)


class MalformedTurn(ValueError):
    """Why a turn is neither a call nor an answer."""


class UnendedThought(MalformedTurn):
    """A thought that goes on, and its text so far."""

    def __init__(self, reasoning: Reading) -> None:
        super().__init__("a thought does not end")
        self.reasoning = reasoning


@dataclass(frozen=True, slots=True)
class _Opening:
    """What stands before the first turn of a conversation."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema]
    passage: Passage
    described: Passage


@dataclass(frozen=True, slots=True)
class _Thought:
    """A turn in two."""

    reasoning: Reading
    spoken: Reading
    before_spoken: int
    """Characters of the turn's text before ``spoken`` begins."""
    lead: str
    """White space before ``spoken``; empty behind a thought, where the template writes it."""


class ChatRenderer:
    """A ``Renderer``.  Raises ModelFolderRefused for a folder or a choice with which no turn could be read.

    ``tool_calls``: the form of calls; ``auto`` is the one in which the template writes them.  ``code-fence`` takes
    tools of one text each, of which the template is told nothing: the environment's first message must say how to call
    them.  ``reasoning``: whether the policy may think before it speaks; ``auto`` is what the template does by itself.
    """

    def __init__(
        self, tokenizer: PretrainedTokenizer, *, tool_calls: ToolCallFormat = "auto", reasoning: Reasoning = "auto"
    ) -> None:
        source = tokenizer.chat_template()
        self.tokenizer, self._template = tokenizer, ChatTemplate(source, tokenizer)
        self._writes_thoughts = THINK in source
        self._thinks = self._writes_thoughts and reasoning != "off"
        if reasoning == "on" and not self._thinks:
            raise refused("model.reasoning", reasoning, "the chat template knows no thoughts", "use auto or off")
        self._variables: dict[str, Hashable] = {} if reasoning == "auto" else {"enable_thinking": reasoning == "on"}
        self._frame = turn_frame(self._template, tokenizer, self._variables)
        if self._frame.prefilled == "open-thought" and not self._thinks:
            raise refused("model.reasoning", reasoning, "the chat template begins each turn with a thought", "use auto")
        self._end_id = tokenizer.marks[tokenizer.shown(self._frame.end)]
        self._stop_ids = tokenizer.stop_ids | {self._end_id}
        stops = [mark for mark, token in tokenizer.marks.items() if token in self._stop_ids]
        self._stop_pattern = pattern_of([tokenizer.mark(stop) for stop in stops])
        self._bridged: tuple[tuple[Message, ...], str] | None = None
        self._openings: WeakKeyDictionary[Exchange, _Opening] = WeakKeyDictionary()
        self._passages: WeakKeyDictionary[Exchange, Passage] = WeakKeyDictionary()
        self._before_bridge = lru_cache(MOST_STAND_INS)(self._stand_in)
        self._format = self._chosen_format(tool_calls)

    @cached_property
    def append_only(self) -> bool:
        """Found out by a conversation of two calls, with thoughts where the policy may think; of two answers where no
        call can be written."""
        thought = "a" if self.may_think else ""
        turn, read, tools = AssistantMessage("a", reasoning=thought), Message("user", "b"), tuple[ToolSchema, ...]()
        if self._format is not None:
            turn, tools = replace(_PROBED_CALL, reasoning=thought), (_PROBED_TOOL,)
            read = Message("tool", "b", _PROBED_TOOL.name)
        exchange = Exchange((), Parsed(turn, 0), (read,))
        opening = (Message("user", "c"),)
        conversations = [Conversation(opening, tools, (), (exchange,) * count) for count in (1, 2)]
        return all(self.rewritten(conversation) is None for conversation in conversations)

    @cached_property
    def _own_lead(self) -> str:
        """White space with which the template itself begins what is said."""
        turn = self._turn_text(AssistantMessage("a"))
        return turn[: len(turn) - len(turn.lstrip())]

    @property
    def call_format(self) -> Format | None:
        """The form in which tool calls are written; None where the template writes none."""
        return next((name for name, form in FORMATS.items() if form is self._format), None)

    @property
    def may_think(self) -> bool:
        """Whether a turn may begin with a thought."""
        return self._thinks and self._frame.prefilled != "closed-thought"

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    @property
    def end_id(self) -> int:
        return self._end_id

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], experience: Sequence[str] = ()
    ) -> list[int]:
        return self._context(messages, tools, experience)

    def experience_span(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], experience: Sequence[str]
    ) -> tuple[int, int]:
        begins = self._experience_begins(messages, tools)
        return begins, begins + len(self._experience_ids(experience))

    def bridge(self, messages: Sequence[Message]) -> list[int]:
        return self._behind_turn.encode(self._bridge_text(messages))

    def rewritten(self, conversation: Conversation, turns: int = 1) -> Rewritten | None:
        *written, last = conversation.exchanges[-turns:]
        bridge = self._bridge_text(last.messages)
        before, grown = self._before_and_behind(conversation, turns)
        passages = (self._turn_text(turn.parsed.message) + self._bridge_text(turn.messages) for turn in written)
        known = "".join((before, *passages))
        if grown.startswith(known) and grown.endswith(bridge) and len(grown) >= len(known) + len(bridge):
            turn = grown[len(known) : len(grown) - len(bridge)]
            if self._is_spelled(turn, last.token_ids) or turn == self._turn_text(last.parsed.message):
                return None
        return self._written_again(conversation)

    def _is_spelled(self, turn: str, token_ids: Sequence[int]) -> bool:
        """Whether the ids spell the turn as the template writes it, but for white space at its ends, which no message
        holds."""
        *body, end = token_ids if token_ids else (-1,)
        if (mark := self.tokenizer.mark_of(end)) is None or self.tokenizer.unknown_in(body):
            return False
        text, ending = self._spelled(body), self.tokenizer.mark(mark)
        return turn.endswith(ending) and turn.removesuffix(ending).strip() == text.strip()

    def _spelled(self, token_ids: Sequence[int]) -> str:
        """What ``encode`` reads as the text of known ids."""
        if not self.tokenizer.marks_in(token_ids):
            return self.tokenizer.text(token_ids)
        tokens = zip(token_ids, self.tokenizer.pieces(token_ids), strict=True)
        marks = ((self.tokenizer.mark_of(token), piece) for token, piece in tokens)
        return "".join(piece if mark is None else self.tokenizer.mark(mark) for mark, piece in marks)

    def _before_and_behind(self, conversation: Conversation, turns: int) -> tuple[str, str]:
        """What the template writes before the last ``turns`` turns, and before the one that is due."""
        opening = self._opening(conversation)
        passages = [opening.passage, *map(self._passage, conversation.exchanges)]
        before = self._passages_written(passages[:-turns], opening.described)
        return before, self._passages_written(passages, opening.described)

    def _passages_written(self, passages: Sequence[Passage], tools: Passage) -> str:
        return self._template.passages_written(passages, tools, generation=True, variables=self._variables)

    def _opening(self, conversation: Conversation) -> _Opening:
        first, messages, tools = conversation.exchanges[0], conversation.opening, conversation.tools
        known = self._openings.get(first)
        if known is None or known.messages is not messages or known.tools is not tools:
            documents, described = self._documents(messages), self._described(tools)
            known = _Opening(messages, tools, self._template.passage(documents), self._template.passage(described))
            self._openings[first] = known
        return known

    def _passage(self, exchange: Exchange) -> Passage:
        if (passage := self._passages.get(exchange)) is None:
            documents = self._documents([exchange.parsed.message, *exchange.messages])
            passage = self._passages[exchange] = self._template.passage(documents)
        return passage

    def _written_again(self, conversation: Conversation) -> Rewritten:
        messages = _as_one_list(conversation)
        ids = self._context(messages, conversation.tools, conversation.experience)
        observed = len(self.bridge(conversation.exchanges[-1].messages))
        span = None
        if conversation.experience:
            begins = self._experience_begins(messages, conversation.tools)
            span = begins, begins + len(self._experience_ids(conversation.experience))
        return Rewritten(tuple(ids), max(0, len(ids) - observed), span)

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Parsed:
        """Strict: an end mark, a thought at most and first, then calls in their form or an answer.

        A mark that frames none of these, and an id that the tokenizer does not have, make the turn malformed.
        """
        try:
            pieces = self._pieces_of_turn(token_ids)
            thought = self._thought(self._reading(token_ids[:-1], pieces))
        except MalformedTurn as error:
            # Its end is no part of what it says: it would be written as text where the history is written again.
            body = token_ids[:-1] if token_ids and token_ids[-1] in self._stop_ids else token_ids
            return Parsed(AssistantMessage(malformed=Malformed(self.text(body), str(error))), 0)
        message = self._message(thought.spoken, tools)
        begins = _token_at(pieces, thought.before_spoken)
        answer = thought.lead.removeprefix(self._own_lead) + thought.spoken.text
        spoken = message.content if message.requests else answer
        if reasoning := thought.reasoning.text.strip():
            message = replace(message, reasoning=reasoning)
        return Parsed(message, begins, spoken)

    def settled(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Settled:
        try:
            turn = self._reading(token_ids, self._pieces_of_turn((*token_ids, self._end_id)))
            if self._thinks and THINK.startswith(turn.sewn.lstrip()):
                return Settled()  # which may become a thought
            thought = self._thought(turn)
        except UnendedThought as unended:
            return Settled(_settled(unended.reasoning, THOUGHT))
        except MalformedTurn:
            return Settled()
        spoken = thought.spoken
        content = _settled(spoken) if self._format is None else _settled(self._format.settled(spoken, tools))
        return Settled(thought.reasoning.text.strip(), content)

    def write(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> list[int]:
        """Raises ValueError for a message that would not be read as what it says: one that is malformed, or holds
        characters that the tokenizer does not."""
        if (malformed := _malformed_in(message)) is not None:
            raise ValueError(f"a malformed message cannot be written: {malformed.reason}")
        if message.reasoning.strip() and not self.may_think:
            raise ValueError("this model cannot write the message: its turns hold no thoughts (model.reasoning)")
        try:
            token_ids = self._behind_header.encode(self._turn_text(message))
        except TemplateRefused as error:
            raise ValueError(f"this model cannot write the message: {error}") from error
        read = self.parse(token_ids, tools).message
        if _meaning(read) != _meaning(message):
            raise ValueError(f"this model cannot write the message: {self._why_another(message, read)}")
        return token_ids

    def split(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> AssistantMessage:
        return self._spelled_frames.split(message, tools)

    @cached_property
    def _spelled_frames(self) -> SpelledFrames:
        own = self._format.frames if self._format is not None else ()
        frames = [frame for form in FORMATS.values() for frame in form.frames]
        return SpelledFrames(
            thoughts=self._writes_thoughts or THINK in self.tokenizer.marks,
            may_think=self.may_think,
            begins_thought=self._frame.prefilled == "open-thought",
            calls=[frame for frame in frames if frame in own or frame in self.tokenizer.marks],
            read=self._message,
        )

    def quote(self, content: str) -> list[int]:
        """Raises ValueError where the template cannot write it."""
        return self._behind_header.encode(self._turn_text(AssistantMessage(content)))

    def check_cuts(
        self,
        opening: Sequence[Message],
        turn: AssistantMessage,
        read: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
    ) -> None:
        """Raises ModelFolderRefused where what is read and written turn by turn has other ids in the whole."""
        written = self._written(self._documents([*opening, turn, *read]), tools, generation=True)
        whole = self.tokenizer.encode(written)
        marks = [self.tokenizer.shown(mark) for mark in self.tokenizer.secret_pattern.findall(written)]
        if unread := Counter(marks) - Counter(self.tokenizer.marks_in(whole)):
            raise self._uncut(f"the tokenizer reads no mark where the chat template writes {next(iter(unread))!r}")
        try:
            turn_ids = self.write(turn, tools)
        except ValueError as error:
            raise self._uncut(str(error)) from error
        apart = [*self.prompt(opening, tools), *turn_ids, *self.bridge(read)]
        exchange = Exchange(tuple(turn_ids), Parsed(turn, 0), tuple(read))
        if apart != whole and self.rewritten(Conversation(tuple(opening), tuple(tools), (), (exchange,))) is None:
            raise self._uncut("the tokenizer cuts a conversation otherwise than its turns and what stands between them")

    def _uncut(self, message: str) -> ModelFolderRefused:
        remedy = "use a model whose tokenizer can cut between the turns of its template, e.g. Qwen's or Llama's"
        return refused(FIELD, str(self.tokenizer.folder), message, remedy)

    def text(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.text(token_ids)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        return self.tokenizer.pieces(token_ids)

    @cached_property
    def _behind_header(self) -> PlacedEncoder:
        """Encodes what the policy writes, and what stands behind a user's header, which ends likewise."""
        return PlacedEncoder(self.tokenizer, self._written([USER], [], generation=True))

    @cached_property
    def _behind_turn(self) -> PlacedEncoder:
        return PlacedEncoder(self.tokenizer, self._frame.before + "a" + self._frame.end)

    # What is written

    def _context(self, conversation: Messages, tools: Sequence[ToolSchema], experience: Sequence[str]) -> list[int]:
        ids = self.tokenizer.encode(self._written(self._documents(conversation), tools, generation=True))
        if not experience:
            return ids
        begins = self._experience_begins(conversation, tools)
        return [*ids[:begins], *self._experience_ids(experience), *ids[begins:]]

    def _written(self, documents: Sequence[Document], tools: Sequence[ToolSchema], *, generation: bool = False) -> str:
        described = self._described(tools)
        return self._template.written(documents, described, generation=generation, variables=self._variables)

    def _described(self, tools: Sequence[ToolSchema]) -> list[Document]:
        """The tools for the template.  Raises ModelFolderRefused for such as cannot be called."""
        if not tools:
            return []
        if self._format is None:
            raise refused(
                "model.tool_calls",
                "auto",
                "the chat template writes no tool calls that could be read",
                "use code-fence, whose tools take one text each, or a model with tools",
            )
        if self._format.own_template:
            return [_described_tool(tool) for tool in tools]
        if unfit := [tool.name for tool in tools if tool.only_text_argument is None]:
            raise refused(
                "model.tool_calls",
                "code-fence",
                f"the tool {unfit[0]} takes more than one text",
                "use a model whose template writes tool calls, or an environment whose tools take one text each",
            )
        return []

    def _documents(self, conversation: Messages) -> list[Document]:
        documents = list[Document]()
        for is_tool, messages in groupby(conversation, key=lambda message: _role(message) == "tool"):
            if is_tool:
                documents += self._tool_documents([message for message in messages if isinstance(message, Message)])
            else:
                documents += [self._document(message) for message in messages]
        return documents

    def _document(self, message: Message | AssistantMessage) -> Document:
        if isinstance(message, Message):
            named = {} if message.speaker is None else {"name": message.speaker}
            return {"role": message.role, "content": message.content, **named}
        malformed = _malformed_in(message)
        content = message.content if malformed is None else malformed.text
        thoughts = {"reasoning_content": message.reasoning} if message.reasoning and self._thinks else {}
        if malformed is not None or not message.requests:
            return assistant(content, **thoughts)
        if self._format is not None and not self._format.own_template:
            return assistant(fenced(content, message.requests), **thoughts)
        calls = [self._call(number, request) for number, request in enumerate(message.requests)]
        return assistant(content, tool_calls=calls, **thoughts)

    def _call(self, number: int, request: ToolRequest) -> Document:
        arguments: Any = dict(request.arguments)
        if self._frame.arguments_as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return call(number, request.name, arguments)

    def _tool_documents(self, messages: Sequence[Message]) -> list[Document]:
        """To a template without tools, what they say is said by the user, in one message."""
        if not self._frame.takes_tool_messages:
            return [{"role": "user", "content": "\n".join(message.content for message in messages)}]
        return [
            tool_message(message.content, number, message.tool or "tool") for number, message in enumerate(messages)
        ]

    def _bridge_text(self, messages: Sequence[Message]) -> str:
        """The latest is kept: whoever asked whether anything is rewritten asks for the bridge next."""
        if self._bridged is not None and self._bridged[0] is messages:
            return self._bridged[1]
        text = self._written_bridge(messages)
        if isinstance(messages, tuple):  # which nobody can change
            self._bridged = messages, text
        return text

    def _written_bridge(self, messages: Sequence[Message]) -> str:
        names = tuple(message.tool or "tool" for message in messages if message.role == "tool")
        names = names if self._frame.several_calls else names[:1]
        answered = (self._before_bridge if sum(map(len, names)) <= SHORT_NAMES else self._stand_in)(names)
        passages = [answered, self._template.passage(self._documents(messages))]
        rest = self._after_header(self._passages_written(passages, self._template.nothing))
        return rest[self._end_of_turn(rest) :]

    def _stand_in(self, names: tuple[str, ...]) -> Passage:
        """A user, and a turn to which messages of these tools, or those of somebody else, can be the reply."""
        requests = tuple(ToolRequest(name, {}) for name in names)
        turn = AssistantMessage(requests=requests) if names else AssistantMessage("a")
        return self._template.passage([USER, self._document(turn)])

    def _turn_text(self, message: AssistantMessage) -> str:
        """What the policy writes from the header on, its end mark included."""
        frame, bare = self._frame, message
        if frame.prefilled == "open-thought":
            bare = replace(message, reasoning="")
        document = self._document(bare)
        # As the template writes it in the middle of a conversation, if it can: the last message is a special case to
        # some.  What follows is a tool's, because a user's ends the thoughts of others.
        follow = [tool_message("", number, "tool") for number in range(max(1, len(message.requests)))]
        try:
            written = self._written([USER, document, *(follow if frame.takes_tool_messages else ())], [])
        except TemplateRefused:
            written = self._written([USER, document], [])
        rest = self._after_header(written)
        text = rest[: self._end_of_turn(rest)]
        if frame.prefilled == "open-thought":
            closed = self.tokenizer.mark(THOUGHT) if THOUGHT in self.tokenizer.marks else THOUGHT
            return f"{message.reasoning.strip()}\n{closed}\n\n{text}"
        return text

    def _after_header(self, written: str) -> str:
        if not written.startswith(self._frame.before):
            raise TemplateRefused("the chat template changes what stands before a turn when that is written")
        return written[len(self._frame.before) :]

    def _end_of_turn(self, text: str) -> int:
        found = self._stop_pattern.search(text)
        if found is None:
            raise TemplateRefused("the chat template ends this turn without a mark")
        return found.end()

    # Experience

    def _experience_ids(self, experience: Sequence[str]) -> list[int]:
        return self._behind_header.encode("<EXP>" + "\n".join(experience) + "</EXP>\n") if experience else []

    def _experience_begins(self, conversation: Messages, tools: Sequence[ToolSchema]) -> int:
        """The id before which the first user's text begins: the last that begins there or before."""
        documents = self._documents(conversation)
        plain = self._written(documents, tools, generation=True)
        number = next((at for at, document in enumerate(documents) if document["role"] == "user"), 0)
        sign = next(character for character in map(chr, _INSERTIONS) if character not in plain)
        signed = [*documents]
        signed[number] = documents[number] | {"content": sign + documents[number]["content"]}
        place = self._written(signed, tools, generation=True).find(sign)
        if place < 0:
            raise TemplateRefused("the chat template leaves out what the first user says")
        return sum(end <= place for _, end in self.tokenizer.encode_with_ends(plain))

    # What is read

    def _pieces_of_turn(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each id before the end.  Raises MalformedTurn."""
        *body, end = token_ids if token_ids else (-1,)
        if end not in self._stop_ids:
            raise MalformedTurn("the turn does not end")
        frames = {THINK, THOUGHT, *(self._format.frames if self._format is not None else ())}
        if unknown := self.tokenizer.unknown_in(body):
            raise MalformedTurn(f"the tokenizer has no token {unknown[0]}")
        if misplaced := [mark for mark in self.tokenizer.marks_in(body) if mark not in frames]:
            raise MalformedTurn(f"the mark {misplaced[0]} stands inside the turn")
        return self.tokenizer.pieces(body)

    def _reading(self, token_ids: Sequence[int], pieces: Sequence[str]) -> Reading:
        text = "".join(pieces)
        seam = next(character for character in map(chr, _INSERTIONS) if character not in text)
        if not self.tokenizer.marks_in(token_ids):
            return Reading(self._with_seams(text, seam), seam)
        sewn = ""
        tokens = zip(token_ids, pieces, strict=True)
        for is_mark, run in groupby(tokens, key=lambda token: self.tokenizer.mark_of(token[0]) is not None):
            written = "".join(piece for _, piece in run)
            sewn += written if is_mark else self._with_seams(written, seam)
        return Reading(sewn, seam)

    def _with_seams(self, text: str, seam: str) -> str:
        """Text that the policy spelled: no mark is in it."""
        return self.tokenizer.mark_pattern.sub(lambda found: _sewn(found.group(), seam), text)

    def _thought(self, turn: Reading) -> _Thought:
        before, rest, opened = "", turn.sewn, self._frame.prefilled == "open-thought"
        if self._thinks and not opened and rest.lstrip().startswith(THINK):
            before, _, rest = rest.partition(THINK)
            before, opened = before + THINK, True
        reasoning = ""
        if opened:
            reasoning, closed, rest = rest.partition(THOUGHT)
            if not closed:
                raise UnendedThought(turn.part(reasoning))
            before += reasoning + closed
        if THINK in reasoning or ((self._thinks or THINK in self.tokenizer.marks) and _thought_in(rest)):
            raise MalformedTurn("a thought stands where none may")
        spoken = rest.lstrip()
        lead = rest[: len(rest) - len(spoken)]
        length = len(turn.part(before + lead).text)
        return _Thought(turn.part(reasoning), turn.part(spoken), length, "" if opened else lead)

    def _message(self, spoken: Reading, tools: Sequence[ToolSchema]) -> AssistantMessage:
        if self._format is None:
            return AssistantMessage(spoken.text.strip())
        message = self._format.read(spoken, tools)
        if len(message.requests) > 1 and self._format.own_template and not self._frame.several_calls:
            reason = "the model's template writes one call a turn"
            return unreadable_call(spoken, reason, message.requests[0].name)
        return message

    def _why_another(self, message: AssistantMessage, read: AssistantMessage) -> str:
        calls = [request.name + json.dumps(dict(request.arguments), ensure_ascii=False) for request in message.requests]
        if lost := self.tokenizer.lost_in("".join((message.content, message.reasoning, *calls))):
            return f"its tokenizer cannot hold {shown_characters(lost)}"
        malformed = _malformed_in(read)
        return malformed.reason if malformed is not None else "it would be read as another message"

    def _chosen_format(self, tool_calls: ToolCallFormat) -> CallFormat | None:
        """The format by name; of ``auto`` the one which reads what the template writes, if there is one."""
        if tool_calls == "code-fence":
            return FORMATS[tool_calls]
        names: tuple[Format, ...] = ("hermes", "llama")
        readable = [name for name in names if self._frame.writes_tools and self._is_written_as(name)]
        if tool_calls == "auto":
            return FORMATS[readable[0]] if readable else None
        if tool_calls not in readable:
            raise refused(
                "model.tool_calls",
                tool_calls,
                "the chat template does not write tool calls in this form",
                f"use {readable[0] if readable else 'code-fence'} or auto",
            )
        return FORMATS[tool_calls]

    def _is_written_as(self, name: Format) -> bool:
        self._format = FORMATS[name]
        try:
            self.write(_PROBED_CALL, [_PROBED_TOOL])
        except ValueError:
            return False
        return True


def chat_renderer(folder: Path, *, tool_calls: ToolCallFormat = "auto", reasoning: Reasoning = "auto") -> ChatRenderer:
    """Raises ModelFolderRefused."""
    if not folder.is_dir():
        raise refused(FIELD, str(folder), "there is no such folder", "name the folder of a model")
    return ChatRenderer(PretrainedTokenizer(folder), tool_calls=tool_calls, reasoning=reasoning)


def _as_one_list(conversation: Conversation) -> list[Message | AssistantMessage]:
    messages: list[Message | AssistantMessage] = [*conversation.opening]
    for exchange in conversation.exchanges:
        messages += [exchange.parsed.message, *exchange.messages]
    return messages


def _malformed_in(message: AssistantMessage) -> Malformed | None:
    """Why the message, or a call of it, cannot be read."""
    malformed = (message.malformed, *(request.malformed for request in message.requests))
    return next((problem for problem in malformed if problem is not None), None)


def _meaning(message: AssistantMessage) -> str:
    """What a message says, however Unicode composes it."""
    calls = [[request.name, dict(request.arguments)] for request in message.requests]
    texts = [unicode_form(text).strip() for text in (message.content, message.reasoning)]
    meaning = [*texts, calls, _malformed_in(message) is not None]
    return unicode_form(json.dumps(meaning, ensure_ascii=False, sort_keys=True))


def _role(message: Message | AssistantMessage) -> str:
    return message.role if isinstance(message, Message) else "assistant"


def _described_tool(tool: ToolSchema) -> Document:
    if tool.document is not None:
        return dict(tool.document)
    parameters: Mapping[str, Any] = dict(tool.parameters)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _settled(text: Reading, *openings: str) -> str:
    """Without what may go when more comes: white space at either end, the head of an opening, half a character."""
    return without_head_of(openings, text).text.rstrip(REPLACEMENT).strip()


def _thought_in(sewn: str) -> bool:
    return THINK in sewn or THOUGHT in sewn


def _sewn(mark: str, seam: str) -> str:
    return mark[0] + seam + mark[1:]


def _token_at(pieces: Sequence[str], characters: int) -> int:
    """The first token of which a character stands behind the first ``characters``; the end where there is none."""
    place = 0
    for number, piece in enumerate(pieces):
        place += len(piece)
        if place > characters:
            return number
    return len(pieces)
