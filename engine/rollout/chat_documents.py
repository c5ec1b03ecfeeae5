"""Conversations as JSON documents, one a line, and what of them is trained.

    {"messages": [{"role": "user", "content": "..."},
                  {"role": "assistant", "content": "...", "tool_calls": [...]}, ...],
     "tools": [{"type": "function", "function": {"name": "...", "description": "...", "parameters": {...}}}]}

The form is that of OpenAI's chat API: arguments of calls are an object, or the JSON text of one; thoughts stand in
``reasoning_content``; tools answer in the order of the calls, and ``is_error`` says that a call failed.  Thoughts and
calls may also be spelled in the content, in the form of the model (spelled_frames.py).
``documents_in`` refuses what it does not understand with line, field and remedy, and guesses nothing.
``supervised_sequences`` gives a document's ids by the model's own renderer, with the turns that are trained: what an
assistant wrote, its end mark included, and nothing that it read.
Each turn is trained once, however often a template that rewrites history makes it stand in a context.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile
from typing import Any, Literal, TypeVar

from engine.algorithms.turn_masks import TurnRecord, turn_mask_reasons
from engine.rollout.renderers.contract import Renderer, SpelledMark
from engine.rollout.renderers.tool_calls import spelled_calls
from engine.rollout.transcript import Transcript
from engine.spec.json_faults import each_key_once, no_number
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema, unstorable
from engine.spec.problems import Problem

Trained = Literal["all", "last"]
"""Which of the assistant's turns."""
_ROLES = ("system", "user", "assistant", "tool")
_EXAMPLE = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}'


class DocumentRefused(ValueError):
    """A document that cannot be trained on; ``problem`` names line and field, value, message and remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ChatDocument:
    conversation: tuple[Message | AssistantMessage, ...]
    tools: tuple[ToolSchema, ...] = ()
    line: int = 0
    """Where it stood, from 1; 0: nowhere."""
    failed: frozenset[int] = frozenset()
    """Which messages, all of them a tool's, say that the call failed."""


@dataclass(frozen=True, slots=True)
class SupervisedSequence:
    """Ids of one context with its turns, and which of them are trained; both equally long."""

    token_ids: list[int]
    trained: list[bool]


def documents_in(lines: Iterable[str]) -> Iterator[ChatDocument]:
    """One document per line that is not blank.  Raises DocumentRefused."""
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix("\ufeff") if number == 1 else line
        if text.strip():
            yield document_in(text, number)


def document_in(line: str, number: int) -> ChatDocument:
    """The document of line ``number``.  Raises DocumentRefused."""
    return _document(_json(line, number), number)


def as_line(document: ChatDocument) -> str:
    """The inverse of ``documents_in``, without a newline.  Raises ValueError for a malformed turn."""
    content: dict[str, Any] = {"messages": _written_messages(document.conversation, document.failed)}
    if document.tools:
        content["tools"] = [_written_tool(tool) for tool in document.tools]
    return json.dumps(content, ensure_ascii=False)


def supervised_sequences(
    document: ChatDocument,
    renderer: Renderer,
    *,
    trained: Trained = "all",
    mask_errors: bool = False,
    mask_irrelevant: bool = False,
) -> list[SupervisedSequence]:
    """One sequence, and one more from each turn on before which the renderer's template rewrites the history.

    The masks leave turns untrained whose call failed, and those that Rel(k) finds (ALE, eq. 2).

    A sequence in which nothing would be trained is left out.  Raises DocumentRefused where the model cannot write the
    document.  Thoughts and calls that an assistant's content spells are its thoughts and calls (``Renderer.split``).
    """
    document = _split(document, renderer)
    opening, *exchanges = _exchanges(document.conversation)
    written = _attempted(document, 0, lambda: Transcript(renderer, opening.read, document.tools))
    for exchange in exchanges:
        _attempted(document, exchange.place, partial(_write, written, exchange, document, renderer))
    last = exchanges[-1].place
    records = [_record(exchange, document.failed) for exchange in exchanges]
    reasons = turn_mask_reasons(records, errors=mask_errors, relevance=mask_irrelevant)
    trains = iter(
        [
            reason is None and (trained == "all" or exchange.place == last)
            for exchange, reason in zip(exchanges, reasons, strict=True)
        ]
    )
    return [sequence for sequence in _sequences(written, trains) if any(sequence.trained)]


def _split(document: ChatDocument, renderer: Renderer) -> ChatDocument:
    conversation = [
        _split_turn(message, document, place, renderer) if isinstance(message, AssistantMessage) else message
        for place, message in enumerate(document.conversation)
    ]
    due = 0
    for place, message in enumerate(conversation):
        if isinstance(message, AssistantMessage):
            due = len(message.requests)
        elif message.role == "tool":
            due -= 1
            if due < 0:
                raise _refused(document.line, f"messages[{place}].role", "tool", "it answers no call", _CALLED)
    return replace(document, conversation=tuple(conversation))


def _split_turn(message: AssistantMessage, document: ChatDocument, place: int, renderer: Renderer) -> AssistantMessage:
    try:
        return renderer.split(message, document.tools)
    except SpelledMark as error:
        value = message.content if error.field == "content" else message.reasoning
        raise _refused(document.line, f"messages[{place}].{error.field}", value, str(error), error.remedy) from error


_REMEDY = "leave the document out, or use a model whose template can write it"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A turn and what is read behind it; the opening has no turn."""

    place: int
    turn: AssistantMessage | None
    read: tuple[Message, ...]


def _exchanges(conversation: Sequence[Message | AssistantMessage]) -> list[_Exchange]:
    exchanges = [_Exchange(0, None, ())]
    for place, message in enumerate(conversation):
        if isinstance(message, AssistantMessage):
            exchanges.append(_Exchange(place, message, ()))
        else:
            latest = exchanges[-1]
            exchanges[-1] = replace(latest, read=(*latest.read, message))
    return exchanges


def _record(exchange: _Exchange, failed: frozenset[int]) -> TurnRecord:
    assert exchange.turn is not None, "only the opening has none"
    calls = [f"{call.name} {json.dumps(call.arguments, sort_keys=True)}" for call in exchange.turn.requests]
    replies = [message for message in exchange.read if message.role == "tool"]
    places = range(exchange.place + 1, exchange.place + 1 + len(exchange.read))
    return TurnRecord(
        call="\n".join(calls) if calls else None,
        output="\n".join(message.content for message in replies),
        failed=not failed.isdisjoint(places),
    )


def _attempted(document: ChatDocument, place: int, write: Callable[[], T]) -> T:
    try:
        return write()
    except ValueError as error:
        content = document.conversation[place].content
        raise _refused(document.line, f"messages[{place}]", content, str(error), _REMEDY) from error


def _write(written: Transcript, exchange: _Exchange, document: ChatDocument, renderer: Renderer) -> None:
    assert exchange.turn is not None, "only the opening has none"
    token_ids = renderer.write(exchange.turn, document.tools)
    unknown = [0.0] * len(token_ids)
    written.wrote(written.turn(token_ids, logprobs=unknown, policy_versions=[0] * len(token_ids)))
    if exchange.read:
        written.observed(renderer.parse(token_ids, document.tools), exchange.read)


def _sequences(written: Transcript, trains: Iterator[bool]) -> Iterator[SupervisedSequence]:
    for number, segment in enumerate(written.segments):
        shared = written.shared_by(number)
        token_ids, trained = [*shared], [False] * len(shared)
        for turn in segment.turns:
            token_ids += [*turn.context_ids, *turn.token_ids]
            trained += [*[False] * len(turn.context_ids), *[next(trains)] * len(turn.token_ids)]
        yield SupervisedSequence(token_ids, trained)


def _json(line: str, number: int) -> Any:
    if number == 1 and line.lstrip().startswith("["):
        raise _refused(number, "", line, "this is no JSON object but an array, as of all documents together", _LINES)
    try:
        return _parsed(line)
    except (ValueError, RecursionError) as error:
        raise _refused(
            number, "", line, f"the line is no JSON: {error}", f"write one document, e.g. {_EXAMPLE}"
        ) from error


def _parsed(text: str) -> Any:
    """Raises ValueError also for NaN and for a key that stands twice in one object; and RecursionError."""
    return json.loads(text, object_pairs_hook=each_key_once, parse_constant=no_number)


def _document(content: Any, line: int) -> ChatDocument:
    reader = _Reader(line)
    document = reader.mapping("", content)
    if "conversations" in document and "messages" not in document:
        raise _refused(line, "conversations", document["conversations"], "this is the form of ShareGPT", _FORM)
    reader.known("", document, ("messages", "tools"))
    messages = reader.entries("messages", document.get("messages"))
    conversation = [reader.message(f"messages[{place}]", entry) for place, entry in enumerate(messages)]
    reader.check_order(conversation)
    tools = reader.entries("tools", document.get("tools") or [])
    schemas = [reader.tool(f"tools[{place}]", entry) for place, entry in enumerate(tools)]
    reader.check_replies(messages, [schema.name for schema in schemas])
    failed = frozenset(place for place, entry in enumerate(messages) if reader.failed(f"messages[{place}]", entry))
    reader.check_answered(messages)
    return ChatDocument(tuple(conversation), tuple(schemas), line, failed)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the parts of one line's document; each raises DocumentRefused."""

    line: int

    def message(self, field: str, content: Any) -> Message | AssistantMessage:
        message = self.mapping(field, content)
        role = message.get("role")
        if role == "assistant":
            return self._turn(field, message)
        if role not in _ROLES:
            raise _refused(
                self.line, f"{field}.role", role, "there is no such role", f"use one of: {', '.join(_ROLES)}"
            )
        known = ("role", "content", "name", "tool_call_id")
        self.known(field, message, (*known, "is_error") if role == "tool" else known)
        name = message.get("name")
        name = None if name is None else self.text(f"{field}.name", name)
        content = self.text(f"{field}.content", message.get("content"))
        return Message(role, content, name) if role == "tool" else Message(role, content, speaker=name)

    def failed(self, field: str, message: Mapping[str, Any]) -> bool:
        """Whether a message says that the call which it answers failed."""
        value = message.get("is_error", False)
        if not isinstance(value, bool):
            raise _refused(self.line, f"{field}.is_error", value, "this is no truth value", "give true or false")
        return value

    def _turn(self, field: str, message: Mapping[str, Any]) -> AssistantMessage:
        self.known(field, message, ("role", "content", "tool_calls", "reasoning_content"))
        calls = self.entries(f"{field}.tool_calls", message.get("tool_calls") or [])
        requests = [self._request(f"{field}.tool_calls[{place}]", call) for place, call in enumerate(calls)]
        text, thought = message.get("content"), message.get("reasoning_content")
        content = "" if text is None and requests else self.text(f"{field}.content", text)
        reasoning = "" if thought is None else self.text(f"{field}.reasoning_content", thought)
        return AssistantMessage(content, tuple(requests), reasoning=reasoning)

    def _request(self, field: str, content: Any) -> ToolRequest:
        call = self.function(field, content, ("id", "type", "function"))
        field = f"{field}.function"
        self.known(field, call, ("name", "arguments"))
        arguments = call.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = _parsed(arguments)
            except (ValueError, RecursionError) as error:
                remedy = "give an object, or the JSON text of one"
                raise _refused(self.line, f"{field}.arguments", arguments, f"it is no JSON: {error}", remedy) from error
        arguments = self.kept(f"{field}.arguments", self.mapping(f"{field}.arguments", arguments))
        return ToolRequest(self.text(f"{field}.name", call.get("name")), dict(arguments))

    def tool(self, field: str, content: Any) -> ToolSchema:
        function = self.function(field, content, ("type", "function"))
        known = ("name", "description", "parameters")
        asks_nothing = function.get("strict") in (None, False)
        self.known(f"{field}.function", function, (*known, "strict") if asks_nothing else known)
        name = self.text(f"{field}.function.name", function.get("name"))
        described = function.get("description")
        description = "" if described is None else self.text(f"{field}.function.description", described)
        given = function.get("parameters")
        parameters = {"type": "object"} if given is None else self.mapping(f"{field}.function.parameters", given)
        tool = ToolSchema(name, description, self.kept(f"{field}.function.parameters", parameters))
        # Compared as texts, for the order of keys is printed too.
        return tool if json.dumps(content) == json.dumps(_written_tool(tool)) else replace(tool, document=content)

    def function(self, field: str, content: Any, known: Sequence[str]) -> Mapping[str, Any]:
        """That of a tool or of a call."""
        entry = self.mapping(field, content)
        function = self.mapping(f"{field}.function", entry.get("function"))
        self.known(field, entry, known)
        if (kind := entry.get("type", "function")) != "function":
            raise _refused(self.line, f"{field}.type", kind, "only functions can be called", 'write "function"')
        return function

    def check_order(self, conversation: Sequence[Message | AssistantMessage]) -> None:
        """There is something to read and something to train, and something to read between two turns."""
        if not conversation or isinstance(conversation[0], AssistantMessage):
            raise _refused(self.line, "messages", len(conversation), "the policy has nothing to read first", _FIRST)
        if not any(isinstance(message, AssistantMessage) for message in conversation):
            raise _refused(self.line, "messages", len(conversation), "there is no turn of the assistant", _TURN)
        for place, (previous, message) in enumerate(pairwise(conversation), start=1):
            if isinstance(message, AssistantMessage) and isinstance(previous, AssistantMessage):
                raise _refused(self.line, f"messages[{place}]", "assistant", "two turns follow each other", _BETWEEN)

    def check_replies(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> None:
        """Each message of a tool answers the call at its place of the turn before, which may only be spelled."""
        due = list[Any]()
        for place, message in enumerate(messages):
            if message["role"] != "tool":
                due = [call.get("id") for call in message.get("tool_calls") or []]
                if not due and message["role"] == "assistant":
                    due = [None] * spelled_calls(message["content"], tools)
                continue
            if not due:
                raise _refused(self.line, f"messages[{place}].role", "tool", "it answers no call", _CALLED)
            answered, call = message.get("tool_call_id"), due.pop(0)
            if None not in (answered, call) and answered != call:
                raise _refused(self.line, f"messages[{place}].tool_call_id", answered, "another call is due", _IN_ORDER)

    def check_answered(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Each call has its result right behind the turn, as at the model's endpoint; a last turn waits for none."""
        for place, message in enumerate(messages[:-1]):
            calls = len(message.get("tool_calls") or [])
            results = list(takewhile(lambda reply: reply["role"] == "tool", messages[place + 1 :]))
            if message["role"] == "assistant" and len(results) < calls:
                problem = f"{calls} calls have {len(results)} results behind them"
                raise _refused(
                    self.line, f"messages[{place}].tool_calls", message["tool_calls"], problem, _EACH_ANSWERED
                )

    def mapping(self, field: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise _refused(self.line, field, value, "this is no JSON object", f"write it as in {_EXAMPLE}")
        return value

    def entries(self, field: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _refused(self.line, field, value, "this is no list", f"write it as in {_EXAMPLE}")
        return value

    def text(self, field: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _refused(self.line, field, value, "this is no text", "give a text; parts and pictures are not taken")
        if (problem := unstorable(value)) is not None:
            raise _refused(self.line, field, value, problem, "leave it out, or leave the document out")
        return value

    def kept(self, field: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """What can be stored and written again, as the model endpoint asks it of a call."""
        if (problem := unstorable(value)) is not None:
            raise _refused(self.line, field, value, problem, "write it flatter, as a text, or leave it out")
        return value

    def known(self, field: str, content: Mapping[str, Any], names: Sequence[str]) -> None:
        if unknown := sorted(content.keys() - set(names)):
            path = f"{field}.{unknown[0]}" if field else unknown[0]
            known = f"remove it; known here: {', '.join(names)}"
            raise _refused(self.line, path, content[unknown[0]], "this is not understood", known)


_LINES = "write one document a line: jq -c '.[]' FILE > FILE.jsonl makes lines of an array"
_FORM = f"write it as {_EXAMPLE}: from -> role (human -> user, gpt -> assistant), value -> content"
_FIRST = "begin with a message of the system or the user"
_TURN = "add what the model should learn to say, as a message of the assistant"
_BETWEEN = "make them one, or say what came between"
_CALLED = "put it behind the assistant's message with its call"
_EACH_ANSWERED = "put one message of a tool behind it for each call, or leave out the calls that nobody answered"
_IN_ORDER = "let the tools answer in the order of the calls"


def _written_messages(
    conversation: Sequence[Message | AssistantMessage], failed: frozenset[int]
) -> list[dict[str, Any]]:
    written = list[dict[str, Any]]()
    for place, message in enumerate(conversation):
        if isinstance(message, AssistantMessage):
            written.append(_written_turn(message))
        else:
            name = message.tool if message.role == "tool" else message.speaker
            named = {"name": name} if name is not None else {}
            marked = {"is_error": True} if place in failed else {}
            written.append({"role": message.role, "content": message.content, **named, **marked})
    return written


def _written_turn(message: AssistantMessage) -> dict[str, Any]:
    if message.malformed is not None:
        raise ValueError(f"a malformed message cannot be written: {message.malformed.reason}")
    turn: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.requests:
        calls = [{"name": request.name, "arguments": dict(request.arguments)} for request in message.requests]
        turn["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return turn


def _written_tool(tool: ToolSchema) -> Mapping[str, Any]:
    if tool.document is not None:
        return tool.document
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _refused(line: int, field: str, value: Any, message: str, remedy: str) -> DocumentRefused:
    place = ": ".join(part for part in (f"line {line}" if line else "", field) if part)
    return DocumentRefused(Problem(place, value, message, remedy))
