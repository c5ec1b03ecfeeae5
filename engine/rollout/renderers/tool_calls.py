"""How models write tool calls, and a strict reading of it.

    hermes        <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number      Hermes, Qwen
    llama         {"name": ..., "parameters": {...}}, also behind <|python_tag|>            Llama 3
    code-fence    ```tool, the text, ```                                                    tools that take one text

A format reads text in which the tokenizer's marks are marks already: a *reading* is the text of a turn with a
separator inside whatever ordinary tokens spell like a mark, so that this is not found.  Nothing is repaired, so that
the policy is only paid for what it really wrote.  A turn in which a call cannot be read is one call that is
``malformed``, with the reason; no text raises.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Protocol

from engine.spec.message import AssistantMessage, Malformed, ToolRequest, ToolSchema, unstorable

Format = Literal["hermes", "llama", "code-fence"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A turn without its end, or a part of one."""

    sewn: str
    """The text, with ``seam`` inside what only looks like a mark."""
    seam: str

    @property
    def text(self) -> str:
        return self.sewn.replace(self.seam, "") if self.seam else self.sewn

    def part(self, sewn: str) -> "Reading":
        return Reading(sewn, self.seam)


class CallFormat(Protocol):
    frames: tuple[str, ...]
    """What it writes around calls, which may be marks of the tokenizer."""
    own_template: bool
    """Whether the model's template writes the calls; otherwise they are text to it."""

    def read(self, turn: Reading, tools: Sequence[ToolSchema]) -> AssistantMessage:
        """The calls, with what is said before them; the answer where nothing begins a call.  Never raises."""
        ...

    def settled(self, turn: Reading, tools: Sequence[ToolSchema]) -> Reading:
        """What of a turn that goes on is said before its calls, or is its answer, whatever follows."""
        ...


class Unreadable(ValueError):
    """A call that cannot be read, and the tool that it names, as far as that can be told."""

    def __init__(self, reason: str, tool: str = "") -> None:
        super().__init__(reason)
        self.tool = tool


class HermesCalls:
    frames: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    own_template = True

    def read(self, turn: Reading, tools: Sequence[ToolSchema]) -> AssistantMessage:
        opening, closing = self.frames
        before, *written = turn.sewn.split(opening)
        if closing in before:
            return _malformed(turn, Unreadable("a call is closed that was not opened"))
        if not written:
            return AssistantMessage(turn.text.strip())
        try:
            requests = [self._request(turn.part(call)) for call in written]
        except Unreadable as error:
            return _malformed(turn, error)
        return AssistantMessage(turn.part(before).text.strip(), tuple(requests))

    def settled(self, turn: Reading, tools: Sequence[ToolSchema]) -> Reading:
        before, opened, _ = turn.sewn.partition(self.frames[0])
        return turn.part(before) if opened else without_head_of(self.frames, turn)

    def _request(self, written: Reading) -> ToolRequest:
        call, closed, behind = written.sewn.partition(self.frames[1])
        if not closed:
            raise Unreadable("a call is not closed")
        if behind.strip():
            raise Unreadable("there is text behind a call")
        return _request(_parsed(written.part(call).text), "arguments")


class LlamaCalls:
    frames: tuple[str, ...] = ("<|python_tag|>",)
    own_template = True

    def read(self, turn: Reading, tools: Sequence[ToolSchema]) -> AssistantMessage:
        before, tagged, written = turn.sewn.partition(self.frames[0])
        if not tagged:
            before, written = "", turn.sewn
        if not tagged and not (tools and _looks_like_call(turn.text)):
            return AssistantMessage(turn.text.strip())
        try:
            requests = [_request(call, "parameters") for call in _several(turn.part(written).text)]
        except Unreadable as error:
            return _malformed(turn, error)
        return AssistantMessage(turn.part(before).text.strip(), tuple(requests))

    def settled(self, turn: Reading, tools: Sequence[ToolSchema]) -> Reading:
        before, tagged, _ = turn.sewn.partition(self.frames[0])
        if not tagged and tools and turn.text.lstrip().startswith("{"):
            return turn.part("")
        return turn.part(before) if tagged else without_head_of(self.frames, turn)


class CodeFenceCalls:
    frames: tuple[str, ...] = ()
    own_template = False

    def read(self, turn: Reading, tools: Sequence[ToolSchema]) -> AssistantMessage:
        arguments = {tool.name: tool.only_text_argument for tool in tools}
        opened = _fence_opening([*arguments])
        text = turn.text
        if (first := opened.search(text)) is None:
            return AssistantMessage(text.strip())
        requests, place = list[ToolRequest](), first.start()
        while (fence := opened.match(text, place)) is not None:
            # From the newline of the opening: the text between may be empty.
            closed = _FENCE_END.search(text, fence.end() - 1)
            name, argument = fence[1], arguments[fence[1]]
            if closed is None:
                return _malformed(turn, Unreadable("a code fence is not closed", name))
            if argument is None:
                return _malformed(turn, Unreadable("the tool takes more than one text", name))
            requests.append(ToolRequest(name, {argument: text[fence.end() : closed.start()]}))
            place = closed.end()
        if text[place:].strip():
            return _malformed(turn, Unreadable("there is text behind a call", requests[-1].name))
        return AssistantMessage(text[: first.start()].strip(), tuple(requests))

    def settled(self, turn: Reading, tools: Sequence[ToolSchema]) -> Reading:
        """Up to the first fence of a tool, and without a last line that may become one."""
        text = turn.text
        if (first := _fence_opening([tool.name for tool in tools]).search(text)) is not None:
            return Reading(text[: first.start()], "")
        before, newline, line = text.rpartition("\n")
        fences = [f"```{tool.name}" for tool in tools]
        may_open = any(line.startswith(fence) or fence.startswith(line) for fence in fences)
        return Reading(before + newline if may_open else text, "")


FORMATS: dict[Format, CallFormat] = {"hermes": HermesCalls(), "llama": LlamaCalls(), "code-fence": CodeFenceCalls()}
_FENCE_END = re.compile(r"\n```[ \t]*(?:\n+|\Z)")


def _fence_opening(tools: Sequence[str]) -> re.Pattern[str]:
    names = "|".join(re.escape(name) for name in sorted(tools, key=len, reverse=True)) or r"(?!)"
    return re.compile(rf"^```({names})[ \t]*\n", re.MULTILINE)


def spelled_calls(text: str, tools: Sequence[str]) -> int:
    """How many calls the text may spell, in whatever form; which of them are calls, a model's form decides."""
    signs = [text.count(form.frames[0]) for form in FORMATS.values() if form.frames]
    return max(*signs, len(_fence_opening(tools).findall(text)), _looks_like_call(text))


def without_head_of(openings: Sequence[str], turn: Reading) -> Reading:
    """The text but for an end with which one of ``openings`` may begin."""
    longest = max(map(len, openings), default=1) - 1
    ends = (turn.sewn[-length:] for length in range(min(longest, len(turn.sewn)), 0, -1))
    head = next((end for end in ends if any(opening.startswith(end) for opening in openings)), "")
    return turn.part(turn.sewn[: len(turn.sewn) - len(head)])


def fenced(content: str, requests: Sequence[ToolRequest]) -> str:
    """Return what ``CodeFenceCalls`` reads as ``requests`` after ``content``."""
    fences = [f"```{request.name}\n{request.text}\n```" for request in requests]
    return "\n".join([content, *fences] if content else fences)


def _looks_like_call(text: str) -> bool:
    return text.lstrip().startswith("{") and '"name"' in text and ('"parameters"' in text or '"arguments"' in text)


def _several(text: str) -> list[Any]:
    """JSON values one behind the other, with white space or a semicolon between."""
    values, place = list[Any](), 0
    while rest := text[place:].lstrip(" \t\r\n;" if values else " \t\r\n"):
        value, length = _decoded(rest)
        values.append(value)
        place = len(text) - len(rest) + length
    if not values:
        raise Unreadable("a call is empty")
    return values


def _parsed(text: str) -> Any:
    value, length = _decoded(text.lstrip())
    if text.lstrip()[length:].strip():
        raise Unreadable("the call is no JSON: there is something behind it")
    return value


def _decoded(text: str) -> tuple[Any, int]:
    """A JSON value and where it ends."""
    try:
        return _DECODER.raw_decode(text)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the call is no JSON: {error}") from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise Unreadable("a key stands twice in one JSON object")
    return entries


def _refused_constant(name: str) -> Any:
    raise Unreadable(f"the call is no JSON: {name} is no value")


def _finite(digits: str) -> float:
    if not isfinite(number := float(digits)):
        raise Unreadable(f"{digits[:40]} is beyond all numbers")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_without_doubles, parse_constant=_refused_constant, parse_float=_finite)


def _request(call: Any, key: Literal["arguments", "parameters"]) -> ToolRequest:
    if not isinstance(call, dict):
        raise Unreadable("the call is no JSON object")
    name, arguments = call.get("name"), call.get(key)
    if not isinstance(name, str) or not name:
        raise Unreadable("the call names no tool")
    if problem := unstorable(name):
        raise Unreadable(f"the call cannot be kept: {problem}")
    if not isinstance(arguments, dict):
        raise Unreadable(f"{key} is no JSON object", name)
    if unknown := sorted(call.keys() - {"name", key}):
        raise Unreadable(f"the call has a key besides name and {key}: {unknown[0]}", name)
    if problem := unstorable(arguments):
        raise Unreadable(f"the call cannot be kept: {problem}", name)
    return ToolRequest(name, arguments)


def _malformed(turn: Reading, error: Unreadable) -> AssistantMessage:
    return unreadable_call(turn, str(error), error.tool)


def unreadable_call(turn: Reading, reason: str, tool: str = "") -> AssistantMessage:
    """The turn as one call that cannot be read, of the tool that it names if that can be told."""
    return AssistantMessage(requests=(ToolRequest(tool, malformed=Malformed(turn.text, reason)),))
