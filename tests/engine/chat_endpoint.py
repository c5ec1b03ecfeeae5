"""An endpoint of chat completions that answers as a test wants, over real connections."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

Answering = Callable[[int, dict[str, Any]], Awaitable[bytes | None]]


def completion(text: object) -> bytes:
    return http(200, {"choices": [{"message": {"content": text}}]})


def http(status: int, document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Endpoint:
    """Counts what it is asked, and answers as it is told by the number of the request (from 0)."""

    def __init__(self, answering: Answering) -> None:
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.at_once, self.most_at_once, self.hung_up = 0, 0, 0
        self._answering = answering

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                assert lines[0].split()[:2] == ["POST", "/v1/chat/completions"]
                self.requests.append(body)
                self.authorizations.append(headers.get("authorization"))
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    answer = await self._answering(len(self.requests) - 1, body)
                finally:
                    self.at_once -= 1
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up += 1
        finally:
            writer.close()


def always(answer: bytes | None) -> Answering:
    async def answering(_: int, __: dict[str, Any]) -> bytes | None:
        return answer

    return answering


def in_turn(*answers: bytes | None) -> Answering:
    async def answering(number: int, _: dict[str, Any]) -> bytes | None:
        return answers[number]

    return answering
