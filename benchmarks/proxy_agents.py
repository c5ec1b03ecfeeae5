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
class Address:
    port: int
    path: str = "/v1/chat/completions"


@dataclass(frozen=True)
class Calls:
    """``calls`` of each agent, whose model is asked at ``addresses``."""

    addresses: list[Address]
    calls: int
    seed: int = 0
    """Decides the seeds of requests, each of which has its own."""


def latencies(wanted: Calls) -> list[list[float]]:
    """The seconds of each agent's calls, one after the other, in a conversation that grows."""
    return asyncio.run(_all(wanted))


def streams(wanted: Calls) -> None:
    """Each agent asks for as many streams at once, and reads them to their end."""
    asyncio.run(_streamed(wanted))


async def _all(wanted: Calls) -> list[list[float]]:
    return list(await asyncio.gather(*(_conversation(wanted, agent) for agent in range(len(wanted.addresses)))))


async def _conversation(wanted: Calls, agent: int) -> list[float]:
    address = wanted.addresses[agent]
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Begin with file {agent}."}]
    await asyncio.sleep(Random(agent).uniform(0, STARTS_WITHIN_S))
    seconds = []
    for call in range(wanted.calls):
        seed = (wanted.seed * len(wanted.addresses) + agent) * wanted.calls + call
        request = _request(address, {"model": "policy", "messages": messages, "seed": seed})
        began = time.perf_counter()
        writer.write(request)
        answer = await _answer(reader)
        seconds.append(time.perf_counter() - began)
        messages += [
            answer["choices"][0]["message"],
            {"role": "user", "content": RESULT.format(size=10_000 + agent * 100 + call)},
        ]
    writer.close()
    return seconds


async def _streamed(wanted: Calls) -> None:
    streams = (_stream(address, number) for address in wanted.addresses for number in range(wanted.calls))
    await asyncio.gather(*streams)


async def _stream(address: Address, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Part {number}."}]
    writer.write(_request(address, {"model": "policy", "messages": messages, "stream": True}))
    await reader.readuntil(b"data: [DONE]")
    writer.close()


def _request(address: Address, document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    head = f"POST {address.path} HTTP/1.1\r\nhost: model\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    body: dict[str, Any] = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the proxy answered {head.splitlines()[0].decode()}: {body}")
    return body
