"""Anthropic's Messages: ``POST /v1/messages``."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from engine.rollout.agents import fields
from engine.rollout.agents.asked import Asked, Entry, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.dialects.contract import event, left_of, prompt_tokens, sampled_tokens, was_cut
from engine.rollout.agents.fields import Document
from engine.rollout.renderers.contract import Settled
from engine.spec.message import AssistantMessage, Malformed, Message, ToolRequest, ToolSchema

READ = ("messages", "system", "model", "tools", "max_tokens", "stream", "tool_choice", "stop_sequences",
        "temperature", "top_p", "top_k")  # fmt: skip
NO_MATTER = ("metadata", "service_tier", "cache_control")
NEUTRAL: dict[str, Sequence[object]] = {"thinking": ({"type": "disabled"},)}
UNCACHED = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
TEXT_PARTS = ("text",)
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
FAILED = "The tool failed."
"""What the model reads of a result that is an error and says no more: no template has a place for that."""
UNREADABLE = "malformed_arguments"
"""Under this name stand arguments that are no JSON object, as text: the input of a call must be an object here."""


class Messages:
    def read(self, document: Document) -> Asked:
        fields.check_options(document, READ, NEUTRAL, NO_MATTER)
        most_tokens = fields.number(document, "max_tokens", 1, 2**31)
        if most_tokens is None:
            fields.wrong("max_tokens", None, "a whole number of at least 1")
        entries = fields.objects(document.get("messages"), "messages", fields.MOST_MESSAGES)
        system = fields.plain_text(document.get("system"), "system", TEXT_PARTS)
        opening = (Message("system", system),) if system else ()
        return Asked(
            messages=(*opening, *_entries(entries)),
            tools=_tools(document),
            model=fields.text(document, "model", "policy"),
            most_tokens=most_tokens,
            stops=fields.stops(document, "stop_sequences"),
            temperature=fields.share(document, "temperature", 1.0),
            top_p=fields.share(document, "top_p", 1.0),
            top_k=fields.number(document, "top_k", 0, 2**31),
            stream=fields.flag(document, "stream"),
        )

    def answer(self, asked: Asked, calls: Sequence[Call], id: str, pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        [call] = calls
        usage = {"input_tokens": prompt_tokens(calls), "output_tokens": sampled_tokens(calls), **UNCACHED}
        return _envelope(asked, id) | {"content": _blocks(call.reply), **_end(call), "usage": usage}

    def stream(self, asked: Asked, id: str) -> "MessageEvents":
        return MessageEvents(_envelope(asked, id))

    def refusal(self, refusal: RequestRefused) -> dict[str, Any]:
        """By the words "prompt is too long" agents know that they have to compact; there is no code for it."""
        kind = ERRORS.get(refusal.status, "invalid_request_error")
        reason = "prompt is too long" if refusal.kind == "context" else refusal.kind
        return {"type": "error", "error": {"type": kind, "message": f"{reason}: {refusal}"}}


class MessageEvents:
    """An ``EventStream``: a block of text, if anything is said, and one for each call."""

    def __init__(self, envelope: dict[str, Any]) -> None:
        self._envelope = envelope
        self._text = ""

    def begin(self, prompt_tokens: int) -> Iterator[bytes]:
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0, **UNCACHED}
        yield _event("message_start", message=self._envelope | {"content": [], "stop_reason": None, "usage": usage})

    def show(self, choice: int, more: Settled) -> Iterator[bytes]:
        """A thought is not shown in this dialect."""
        if not more.content:
            return
        if not self._text:
            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        self._text += more.content
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": more.content})

    def end(self, calls: Sequence[Call], pieces: Sequence[Sequence[str]]) -> Iterator[bytes]:
        [call] = calls
        yield from self.show(0, left_of(call.reply, Settled(content=self._text)))
        if self._text:
            yield _event("content_block_stop", index=0)
        for index, block in enumerate(map(_tool_use, call.reply.requests), start=1 if self._text else 0):
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield _event("content_block_start", index=index, content_block=block | {"input": {}})
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=_end(call), usage={"output_tokens": sampled_tokens(calls)})
        yield _event("message_stop")

    def fail(self, refusal: RequestRefused) -> Iterator[bytes]:
        yield event(Messages().refusal(refusal), "error")


def _entries(entries: Sequence[Document]) -> Iterator[Entry]:
    names: dict[str, str] = {}
    for place, entry in enumerate(entries):
        field = f"messages.{place}"
        content = entry.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        listed = fields.objects(blocks, f"{field}.content", fields.MOST_MESSAGES)
        match entry.get("role"):
            case "assistant":
                message = _assistant(listed, field)
                names = {request.id: request.name for request in message.requests}
                yield message
            case "user":
                yield from _read(listed, names, field)
            case role:
                fields.no_role(role, field, "user or assistant")


def _read(blocks: Sequence[Document], names: dict[str, str], field: str) -> Iterator[Message]:
    """Results of tools, and what the user says behind them."""
    results = [block for block in blocks if block.get("type") == "tool_result"]
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        raise RequestRefused(
            "conversation",
            f"{field}.content: a tool_result stands behind another block: put all of them first",
            field=f"{field}.content",
        )
    for block in results:
        call = fields.text(block, "tool_use_id")
        content = fields.plain_text(block.get("content"), f"{field}.content", TEXT_PARTS)
        if fields.flag(block, "is_error"):
            content = content or FAILED
        yield Message("tool", content, names.get(call), call)
    others = [block for block in blocks if block.get("type") != "tool_result"]
    if others or not results:
        yield Message("user", fields.plain_text(others, f"{field}.content", TEXT_PARTS))


def _assistant(blocks: Sequence[Document], field: str) -> AssistantMessage:
    requests = [
        _request(block, f"{field}.content.{place}")
        for place, block in enumerate(blocks)
        if block.get("type") == "tool_use"
    ]
    if len({request.id for request in requests}) < len(requests):
        fields.wrong(f"{field}.content", [request.id for request in requests], "an id of its own for each call")
    texts = [block for block in blocks if block.get("type") != "tool_use"]
    return AssistantMessage(fields.plain_text(texts, f"{field}.content", TEXT_PARTS), tuple(requests))


def _request(block: Document, field: str) -> ToolRequest:
    given = block.get("input")
    if not isinstance(given, dict):
        fields.wrong(f"{field}.input", given, "an object")
    if list(given) == [UNREADABLE] and isinstance(given[UNREADABLE], str):
        unreadable = Malformed(given[UNREADABLE], "the arguments are no JSON object")
        return ToolRequest(str(block.get("name")), {}, fields.text(block, "id"), unreadable)
    return fields.tool_request(block.get("name"), given, block.get("id"), field)


def _tools(document: Document) -> tuple[ToolSchema, ...]:
    choice = document.get("tool_choice") or {"type": "auto"}
    if choice not in ({"type": "auto"}, {"type": "none"}, {"type": "auto", "disable_parallel_tool_use": False}):
        fields.lacking("tool_choice", choice, "the policy cannot be made to call a tool, or one alone")
    listed = fields.objects(document.get("tools") or [], "tools", fields.MOST_TOOLS)
    tools = [_tool(tool, f"tools.{place}") for place, tool in enumerate(listed)]
    return () if choice["type"] == "none" else fields.check_names(tools)


def _tool(tool: Document, field: str) -> ToolSchema:
    if tool.get("type") not in (None, "custom"):
        fields.lacking(field, tool.get("type"), "only tools of the agent's own can be called")
    return fields.tool_schema(tool.get("name"), tool.get("description"), tool.get("input_schema"), field)


def _envelope(asked: Asked, id: str) -> dict[str, Any]:
    return {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": asked.model, "stop_sequence": None}


def _blocks(reply: AssistantMessage) -> list[dict[str, Any]]:
    texts = [{"type": "text", "text": reply.content}] if reply.content else []
    return [*texts, *map(_tool_use, reply.requests)]


def _tool_use(request: ToolRequest) -> dict[str, Any]:
    return {"type": "tool_use", "id": request.id, "name": request.name, "input": _input(request)}


def _input(request: ToolRequest) -> dict[str, Any]:
    return dict(request.arguments) if request.malformed is None else {UNREADABLE: request.malformed.text}


def _end(call: Call) -> dict[str, str | None]:
    if call.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": call.stop}
    reason = "max_tokens" if was_cut(call) else "tool_use" if call.reply.requests else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _event(name: str, **entries: Any) -> bytes:
    return event({"type": name, **entries}, name)
