"""A rollout's endpoint on this machine's loopback, for tests that need no sandbox."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

from engine.rollout.agents.connection import Patience
from engine.rollout.agents.server import ProxyServer, RolloutDoor
from engine.spec.message import AssistantMessage
from tests.engine.rollout.agents.test_capture import RandomPolicy, proxy

KEY = "the-key-of-this-rollout"


def scripted(renderer, *messages):
    """A policy that means these messages, one after the other, and the last one for ever."""
    policy = RandomPolicy(renderer, 1)
    left = list(messages) or [AssistantMessage("it")]
    policy.message = lambda: left.pop(0) if len(left) > 1 else left[0]
    policy.random.random = lambda: 1.0
    return policy


class Endpoint:
    def __init__(self, port, model, server):
        self.port, self.model, self.server = port, model, server

    async def connected(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def sent(self, raw):
        """All that is answered until the server closes, or there is a whole answer."""
        reader, writer = await self.connected()
        writer.write(raw)
        try:
            return await answer_on(reader)
        finally:
            writer.close()

    async def post(self, path, document, **headers):
        """Status, and the body as JSON, or as the events of a stream."""
        return await self.sent(request(path, document, **headers))


def request(path, document, *, key=KEY, method="POST", **headers):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    fields = {"host": "model", "content-length": str(len(body)), **({"authorization": f"Bearer {key}"} if key else {})}
    lines = [f"{name}: {value}" for name, value in {**fields, **headers}.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body


async def answer_on(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
    if fields.get("transfer-encoding") == "chunked":
        return status, [json.loads(data) for data in events_in(await chunks_on(reader))]
    return status, json.loads(await reader.readexactly(int(fields["content-length"])))


async def chunks_on(reader):
    body = b""
    while length := int(await reader.readline(), 16):
        body += (await reader.readexactly(length + 2))[:-2]
    return body


def events_in(body):
    for event in body.decode().split("\n\n"):
        for line in event.split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                yield line.removeprefix("data: ")


@asynccontextmanager
async def endpoint(policy, *, patience=None, **budget):
    model = proxy(policy, **budget)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    server = ProxyServer(RolloutDoor(model, KEY), patience or Patience())
    async with server.serving(listener):
        yield Endpoint(port, model, server)
    await model.close()
