"""The agents of ``./dev bench proxy``: HTTP clients of the barest kind, in a process without the engine."""

import asyncio
import json
import time
from dataclasses import dataclass
from random import Random
from typing import Any

KEY = "the-key-of-this-rollout"
SYSTEM = "You are an agent that works in a terminal. " * 20
RESULT = "-rw-r--r-- 1 agent agent {size} data.csv, 31 lines; " * 8
"""What a tool returns, about a hundred tokens."""
STARTS_WITHIN_S = 0.4
"""Agents of a run start as sandboxes become free, not all at once."""


@dataclass(frozen=True)
class Calls:
    """``calls`` of each agent, whose proxies listen at ``ports``."""

    ports: list[int]
    calls: int


def latencies(wanted: Calls) -> list[list[float]]:
    """The seconds of each agent's calls, one after the other, in a conversation that grows."""
    return asyncio.run(_all(wanted))


def streams(wanted: Calls) -> None:
    """Each agent asks for as many streams at once, and reads them to their end."""
    asyncio.run(_streamed(wanted))


async def _all(wanted: Calls) -> list[list[float]]:
    return list(await asyncio.gather(*(_conversation(port, wanted.calls) for port in wanted.ports)))


async def _conversation(port: int, calls: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Begin with file {port}."}]
    await asyncio.sleep(Random(port).uniform(0, STARTS_WITHIN_S))
    seconds = []
    for call in range(calls):
        request = _request({"model": "policy", "messages": messages})
        began = time.perf_counter()
        writer.write(request)
        answer = await _answer(reader)
        seconds.append(time.perf_counter() - began)
        messages += [
            answer["choices"][0]["message"],
            {"role": "user", "content": RESULT.format(size=port * 100 + call)},
        ]
    writer.close()
    return seconds


async def _streamed(wanted: Calls) -> None:
    await asyncio.gather(*(_stream(port, number) for port in wanted.ports for number in range(wanted.calls)))


async def _stream(port: int, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Part {number}."}]
    writer.write(_request({"model": "policy", "messages": messages, "stream": True}))
    await reader.readuntil(b"data: [DONE]")
    writer.close()


def _request(document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: model\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    body: dict[str, Any] = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the proxy answered {head.splitlines()[0].decode()}: {body}")
    return body
