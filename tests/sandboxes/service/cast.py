"""What the tests of the service share besides fixtures."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx


async def create(client: httpx.AsyncClient, **body: object) -> str:
    """The path of a new sandbox that is open."""
    body = {"spec": {"timeout_s": 10}} | body
    answer = await client.post("/v1/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    return answer.headers["Location"]


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  what happens at the service sets no event here
            await asyncio.sleep(0.02)
