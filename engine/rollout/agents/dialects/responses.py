"""OpenAI's Responses: ``POST /v1/responses``.  Nothing is stored: each request brings its whole conversation."""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from engine.rollout.agents import fields
from engine.rollout.agents.asked import Asked, Entry, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.dialects.chat_completions import ERRORS, HOTTEST
from engine.rollout.agents.dialects.chat_completions import NO_MATTER as NO_MATTER_IN_CHAT
from engine.rollout.agents.dialects.contract import event, left_of, prompt_tokens, sampled_tokens, was_cut
from engine.rollout.agents.fields import Document
from engine.rollout.renderers.contract import Settled
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema

READ = ("input", "instructions", "model", "tools", "max_output_tokens", "stream", "tool_choice", "temperature", "top_p")
NO_MATTER = (*NO_MATTER_IN_CHAT, "stream_options")
NEUTRAL: dict[str, Sequence[object]] = {
    "background": (False,),
    "include": (["reasoning.encrypted_content"],),
    "parallel_tool_calls": (True,),
    "text": ({"format": {"type": "text"}},),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
ECHOED = ("instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p")
"""What a response says again of its request."""
TEXT_PARTS = ("input_text", "output_text", "text")


class Responses:
    def read(self, document: Document) -> Asked:
        fields.check_options(document, READ, NEUTRAL, NO_MATTER)
        given = document.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        instructions = fields.text(document, "instructions")
        opening = (Message("system", instructions),) if instructions else ()
        return Asked(
            messages=(*opening, *_entries(fields.objects(items, "input", fields.MOST_MESSAGES))),
            tools=_tools(document),
            model=fields.text(document, "model", "policy"),
            most_tokens=fields.number(document, "max_output_tokens", 1, 2**31),
            temperature=fields.share(document, "temperature", HOTTEST),
            top_p=fields.share(document, "top_p", 1.0),
            stream=fields.flag(document, "stream"),
            echoed={name: document[name] for name in ECHOED if document.get(name) is not None},
        )

    def answer(self, asked: Asked, calls: Sequence[Call], id: str, pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        [call] = calls
        read, sampled = prompt_tokens(calls), sampled_tokens(calls)
        return _envelope(asked, id) | {
            "status": "incomplete" if was_cut(call) else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if was_cut(call) else None,
            "output": _items(call, id),
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + sampled,
            },
        }

    def stream(self, asked: Asked, id: str) -> "ResponseEvents":
        return ResponseEvents(asked, id)

    def refusal(self, refusal: RequestRefused) -> dict[str, Any]:
        kind = ERRORS.get(refusal.status, "invalid_request_error")
        return {"error": {"message": str(refusal), "type": kind, "param": _field(refusal), "code": _code(refusal)}}


class ResponseEvents:
    """An ``EventStream``: an item with the text, and one for each call.  A message without either is an empty text."""

    def __init__(self, asked: Asked, id: str) -> None:
        self._asked, self._id = asked, id
        self._numbers = count()
        self._text = ""

    def begin(self, prompt_tokens: int) -> Iterator[bytes]:
        response = _envelope(self._asked, self._id) | {"status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def show(self, choice: int, more: Settled) -> Iterator[bytes]:
        """A thought is not shown in this dialect."""
        if not more.content:
            return
        if not self._text:
            yield from self._begin_text()
        self._text += more.content
        yield self._event("response.output_text.delta", **self._of_text(), delta=more.content, logprobs=[])

    def end(self, calls: Sequence[Call], pieces: Sequence[Sequence[str]]) -> Iterator[bytes]:
        [call] = calls
        whole = Responses().answer(self._asked, calls, self._id, pieces)
        yield from self.show(0, left_of(call.reply, Settled(content=self._text)))
        for index, item in enumerate(whole["output"]):
            yield from self._end_text(item) if "content" in item else self._call(index, item)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event(f"response.{whole['status']}", response=whole)

    def fail(self, refusal: RequestRefused) -> Iterator[bytes]:
        yield self._event("error", code=_code(refusal), message=str(refusal), param=_field(refusal))

    def _begin_text(self) -> Iterator[bytes]:
        item = {"id": f"msg_{self._id}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._event("response.content_part.added", **self._of_text(), part=part)

    def _end_text(self, item: dict[str, Any]) -> Iterator[bytes]:
        if not self._text:
            yield from self._begin_text()
            yield self._event("response.output_text.delta", **self._of_text(), delta="", logprobs=[])
        yield self._event("response.output_text.done", **self._of_text(), text=self._text, logprobs=[])
        yield self._event("response.content_part.done", **self._of_text(), part=item["content"][0])

    def _call(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        place = {"output_index": index, "item_id": item["id"]}
        arguments = item["arguments"]
        begun = item | {"status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)

    def _of_text(self) -> dict[str, Any]:
        return {"output_index": 0, "item_id": f"msg_{self._id}", "content_index": 0}

    def _event(self, kind: str, **entries: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **entries}, kind)


def _code(refusal: RequestRefused) -> str:
    return "context_length_exceeded" if refusal.kind == "context" else refusal.kind


def _field(refusal: RequestRefused) -> str | None:
    """The messages of a conversation are the input here."""
    return "input" if refusal.field == "messages" else refusal.field


def _entries(items: Sequence[Document]) -> Iterator[Entry]:
    """A message of the assistant and the calls behind it are one turn."""
    names: dict[str, str] = {}
    content: str | None = None
    requests: list[ToolRequest] = []
    for place, item in enumerate(items):
        field = f"input.{place}"
        kind, role = item.get("type", "message"), item.get("role")
        is_own = kind == "function_call" or (kind == "message" and role == "assistant")
        if (content is not None or requests) and (not is_own or kind == "message"):
            yield _turn(content, requests, field)
            content, requests = None, []
        if kind == "function_call":
            request = fields.tool_request(item.get("name"), item.get("arguments"), item.get("call_id"), field)
            requests.append(request)
            names[request.id] = request.name
        elif is_own:
            content = _content(item, field)
        elif kind == "function_call_output":
            call = fields.text(item, "call_id")
            output = fields.plain_text(item.get("output"), f"{field}.output", TEXT_PARTS)
            yield Message("tool", output, names.get(call), call)
        elif kind == "message" and role in ("user", "system", "developer"):
            yield Message("user" if role == "user" else "system", _content(item, field))
        else:
            of_role = "" if role is None else f" with role {str(role)[:40]!r}"
            problem = f"{field}: type {str(kind)[:40]!r}{of_role} is none that the model can read"
            raise RequestRefused("conversation", problem, field=field)
    if content is not None or requests:
        yield _turn(content, requests, "input")


def _turn(content: str | None, requests: Sequence[ToolRequest], field: str) -> AssistantMessage:
    if len({request.id for request in requests}) < len(requests):
        fields.wrong(field, [request.id for request in requests], "an id of its own for each call")
    return AssistantMessage(content or "", tuple(requests))


def _content(item: Document, field: str) -> str:
    return fields.plain_text(item.get("content"), f"{field}.content", TEXT_PARTS)


def _tools(document: Document) -> tuple[ToolSchema, ...]:
    without_calls = fields.forbids_calls(document)
    listed = fields.objects(document.get("tools") or [], "tools", fields.MOST_TOOLS)
    tools = [_tool(tool, f"tools.{place}") for place, tool in enumerate(listed)]
    return () if without_calls else fields.check_names(tools)


def _tool(tool: Document, field: str) -> ToolSchema:
    if tool.get("type") != "function":
        fields.lacking(field, tool.get("type"), "only functions can be called")
    return fields.tool_schema(tool.get("name"), tool.get("description"), tool.get("parameters"), field)


def _envelope(asked: Asked, id: str) -> dict[str, Any]:
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": int(time.time()),
        "model": asked.model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        **asked.echoed,
    }


def _items(call: Call, id: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    status = "incomplete" if was_cut(call) else "completed"
    if call.reply.content or not call.reply.requests:
        part = {"type": "output_text", "text": call.reply.content, "annotations": [], "logprobs": []}
        items.append({"id": f"msg_{id}", "type": "message", "role": "assistant", "status": status,
                      "content": [part]})  # fmt: skip
    for place, request in enumerate(call.reply.requests):
        items.append({"id": f"fc_{id}_{place}", "type": "function_call", "status": status,
                      "call_id": request.id, "name": request.name,
                      "arguments": fields.arguments_text(request)})  # fmt: skip
    return items
