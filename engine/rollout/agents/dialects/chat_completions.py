"""OpenAI's Chat Completions: ``POST /v1/chat/completions``."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from engine.rollout.agents import fields
from engine.rollout.agents.asked import Asked, Entry, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.dialects.contract import event, left_of, prompt_tokens, sampled_tokens, was_cut
from engine.rollout.agents.fields import Document
from engine.rollout.renderers.contract import Settled
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema

READ = ("messages", "model", "tools", "n", "max_tokens", "max_completion_tokens", "seed", "stream", "stream_options",
        "logprobs", "tool_choice", "stop", "temperature", "top_p", "top_k")  # fmt: skip
NO_MATTER = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
HOTTEST = 2.0
NEUTRAL: dict[str, Sequence[object]] = {
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "min_p": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
}
TEXT_PARTS = ("text",)
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "server_error",
}


class ChatCompletions:
    def read(self, document: Document) -> Asked:
        fields.check_options(document, READ, NEUTRAL, NO_MATTER)
        entries = fields.objects(document.get("messages"), "messages", fields.MOST_MESSAGES)
        return Asked(
            messages=tuple(_entries(entries)),
            tools=_tools(document),
            model=fields.text(document, "model", "policy"),
            choices=fields.number(document, "n", 1, fields.MOST_CHOICES) or 1,
            most_tokens=_most_tokens(document),
            stops=fields.stops(document, "stop"),
            seed=fields.number(document, "seed", -(2**63), 2**63 - 1),
            temperature=fields.share(document, "temperature", HOTTEST),
            top_p=fields.share(document, "top_p", 1.0),
            top_k=_top_k(document),
            stream=fields.flag(document, "stream"),
            logprobs=fields.flag(document, "logprobs"),
            usage_in_stream=fields.switches(document, "stream_options").get("include_usage", False),
        )

    def answer(self, asked: Asked, calls: Sequence[Call], id: str, pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        choices = [
            {
                "index": number,
                "message": _message(call.reply),
                "finish_reason": _finish(call),
                "logprobs": _logprobs(call, of_call) if asked.logprobs else None,
            }
            for number, (call, of_call) in enumerate(zip(calls, pieces, strict=True))
        ]
        return _envelope(asked, id, "chat.completion") | {"choices": choices, "usage": _usage(calls)}

    def stream(self, asked: Asked, id: str) -> "ChatCompletionChunks":
        return ChatCompletionChunks(asked, _envelope(asked, id, "chat.completion.chunk"))

    def refusal(self, refusal: RequestRefused) -> dict[str, Any]:
        kind = ERRORS.get(refusal.status, "invalid_request_error")
        code = "context_length_exceeded" if refusal.kind == "context" else refusal.kind
        return {"error": {"message": str(refusal), "type": kind, "param": refusal.field, "code": code}}


class ChatCompletionChunks:
    """An ``EventStream``."""

    def __init__(self, asked: Asked, chunk: dict[str, Any]) -> None:
        self._asked, self._chunk = asked, chunk
        self._shown = [Settled()] * asked.choices

    def begin(self, prompt_tokens: int) -> Iterator[bytes]:
        for choice in range(self._asked.choices):
            yield self._delta(choice, {"role": "assistant", "content": ""})

    def show(self, choice: int, more: Settled) -> Iterator[bytes]:
        before = self._shown[choice]
        self._shown[choice] = Settled(before.reasoning + more.reasoning, before.content + more.content)
        if more.reasoning:
            yield self._delta(choice, {"reasoning_content": more.reasoning})
        if more.content:
            yield self._delta(choice, {"content": more.content})

    def end(self, calls: Sequence[Call], pieces: Sequence[Sequence[str]]) -> Iterator[bytes]:
        for choice, (call, of_call) in enumerate(zip(calls, pieces, strict=True)):
            yield from self.show(choice, left_of(call.reply, self._shown[choice]))
            for place, request in enumerate(call.reply.requests):
                yield self._delta(choice, {"tool_calls": [{"index": place, **_call(request)}]})
            last: dict[str, Any] = {"index": choice, "delta": {}, "finish_reason": _finish(call)}
            if self._asked.logprobs:
                last["logprobs"] = _logprobs(call, of_call)
            yield event(self._chunk | {"choices": [last]})
        if self._asked.usage_in_stream:
            yield event(self._chunk | {"choices": [], "usage": _usage(calls)})
        yield b"data: [DONE]\n\n"

    def fail(self, refusal: RequestRefused) -> Iterator[bytes]:
        yield event(ChatCompletions().refusal(refusal))

    def _delta(self, choice: int, delta: dict[str, Any]) -> bytes:
        return event(self._chunk | {"choices": [{"index": choice, "delta": delta, "finish_reason": None}]})


def _most_tokens(document: Document) -> int | None:
    """The smaller of its two names."""
    limits = [fields.number(document, name, 1, 2**31) for name in ("max_completion_tokens", "max_tokens")]
    return min((limit for limit in limits if limit is not None), default=None)


def _top_k(document: Document) -> int | None:
    """No option of OpenAI's, but of servers that speak its dialect; -1 asks for all tokens there."""
    return None if document.get("top_k") == -1 else fields.number(document, "top_k", 0, 2**31)


def _tools(document: Document) -> tuple[ToolSchema, ...]:
    without_calls = fields.forbids_calls(document)
    listed = fields.objects(document.get("tools") or [], "tools", fields.MOST_TOOLS)
    tools = [_tool(tool, f"tools.{place}") for place, tool in enumerate(listed)]
    return () if without_calls else fields.check_names(tools)


def _tool(tool: Document, field: str) -> ToolSchema:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        fields.lacking(field, tool.get("type"), "only functions can be called")
    return fields.tool_schema(
        function.get("name"), function.get("description"), function.get("parameters"), f"{field}.function"
    )


def _entries(entries: Sequence[Document]) -> Iterator[Entry]:
    names: dict[str, str] = {}
    for place, entry in enumerate(entries):
        field = f"messages.{place}"
        match entry.get("role"):
            case "system" | "developer":
                yield Message("system", _content(entry, field))
            case "user":
                yield Message("user", _content(entry, field))
            case "assistant":
                message = _assistant(entry, field)
                names = {request.id: request.name for request in message.requests}
                yield message
            case "tool":
                call = fields.text(entry, "tool_call_id")
                yield Message("tool", _content(entry, field), names.get(call), call)
            case role:
                fields.no_role(role, field, "system, user, assistant or tool")


def _content(entry: Document, field: str) -> str:
    return fields.plain_text(entry.get("content"), f"{field}.content", TEXT_PARTS)


def _assistant(entry: Document, field: str) -> AssistantMessage:
    if entry.get("function_call") is not None:
        fields.lacking(f"{field}.function_call", entry["function_call"], "calls stand in tool_calls")
    calls = fields.objects(entry.get("tool_calls") or [], f"{field}.tool_calls", fields.MOST_TOOLS)
    requests = tuple(_request(call, f"{field}.tool_calls.{place}") for place, call in enumerate(calls))
    if len({request.id for request in requests}) < len(requests):
        fields.wrong(f"{field}.tool_calls", [request.id for request in requests], "an id of its own for each call")
    content = _content(entry, field) or fields.text(entry, "refusal")
    return AssistantMessage(content, requests, reasoning=fields.text(entry, "reasoning_content"))


def _request(call: Document, field: str) -> ToolRequest:
    function = call.get("function")
    if not isinstance(function, dict):
        fields.wrong(f"{field}.function", function, "an object with name and arguments")
    return fields.tool_request(function.get("name"), function.get("arguments"), call.get("id"), field)


def _envelope(asked: Asked, id: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": int(time.time()), "model": asked.model}


def _message(reply: AssistantMessage) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, "refusal": None}
    if not reply.requests:
        message["content"] = reply.content
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.requests:
        message["tool_calls"] = [_call(request) for request in reply.requests]
    return message


def _call(request: ToolRequest) -> dict[str, Any]:
    function = {"name": request.name, "arguments": fields.arguments_text(request)}
    return {"id": request.id, "type": "function", "function": function}


def _finish(call: Call) -> str:
    if was_cut(call):
        return "length"
    return "tool_calls" if call.reply.requests else "stop"


def _usage(calls: Sequence[Call]) -> dict[str, Any]:
    read, sampled = prompt_tokens(calls), sampled_tokens(calls)
    return {
        "prompt_tokens": read,
        "completion_tokens": sampled,
        "total_tokens": read + sampled,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _logprobs(call: Call, pieces: Sequence[str]) -> dict[str, Any]:
    tokens = zip(pieces, call.generated.logprobs, strict=True)
    return {
        "content": [
            {"token": piece, "logprob": logprob, "bytes": list(piece.encode("utf-8", "replace")), "top_logprobs": []}
            for piece, logprob in tokens
        ]
    }
