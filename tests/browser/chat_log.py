"""What the log of a conversation holds: an answer with a tool, written as a process of ``engine chat`` would."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection

from webapp.conversations import log
from webapp.conversations.models import Conversation, State

HOSTILE = "<img src=x onerror=alert(1)></pre><script>alert(2)</script>"


def turn_of(content: str, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "reasoning": "", "calls": [], "token_ids": [5], **more}
    return {"id": "", "turn": 0, "message": message}


def tokens(*texts: str) -> tuple[str, dict[str, Any]]:
    shown = [{"token": place, "text": text, "logprob": -0.7 * place} for place, text in enumerate(texts)]
    return "tokens", {"id": "", "turn": 0, "tokens": shown}


USAGE = {"turns": 2, "read_tokens": 20, "sampled_tokens": 9, "seconds": 1.5}
READING = ("reading", {"id": "", "turn": 0, "tokens": 14, "text": "<bos><user>1+1=<assistant>"})


def append(*entries: Any, **fields: Any) -> None:
    """In a thread of its own: in this one Playwright's loop runs, beside which nobody can be notified."""

    def write() -> None:
        try:
            log.append(*entries, **fields)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()


def answer_with_a_tool(conversation: Conversation) -> None:
    call = {"id": "call-1", "name": "python", "arguments": {"code": "print(1 + 1)"}}
    append(conversation.id, [READING, tokens("<tool>", "print(1 + 1)")], state=State.ANSWERING)
    append(conversation.id, [
        ("said", turn_of("", calls=[call])),
        ("result", {"id": "", "turn": 0, "call": "call-1", "tool": "python", "output": HOSTILE, "status": "error",
                    "error_class": "name", "seconds": 0.02}),
        READING, tokens("<answer>", "2", "</answer>"), ("said", turn_of(f"2 {HOSTILE}")),
        ("finished", {"id": "", "reason": "answered", "usage": USAGE, "tools_begin_anew": False}),
    ], state=State.READY)  # fmt: skip
