"""The side of a package: sessions that are opened and closed, whoever is faster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from palestra_env.serving import Fields, Serving

TASK = {"id": "train-0", "split": "train", "level": 1, "question": "?", "answer": "!"}
OPEN, CLOSE = {"verb": "open", "session": 1, "task": TASK}, {"verb": "close", "session": 1}


class Slow:
    """Its sessions never come to be open."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.held = 0

    @asynccontextmanager
    async def session(self, task: object, sandboxes: object) -> AsyncIterator[None]:
        self.held += 1
        self.begun.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            self.held -= 1


async def done(serving: Serving, request: Any) -> Fields:
    answers = list[Fields]()
    async with asyncio.timeout(10):
        await serving.do(request, answers.append)
    [answer] = answers
    return answer


async def test_a_session_that_is_closed_while_it_opens_holds_nothing() -> None:
    environment = Slow()
    serving = Serving(environment)
    opening = asyncio.create_task(done(serving, OPEN))
    await environment.begun.wait()
    assert await done(serving, CLOSE) == {}
    with pytest.raises(RuntimeError, match="the session is over"):
        await opening
    assert environment.held == 0


async def test_a_session_that_is_closed_before_it_begins_to_open_is_never_open() -> None:
    environment = Slow()
    serving = Serving(environment)
    opened, closed = await asyncio.gather(done(serving, OPEN), done(serving, CLOSE), return_exceptions=True)
    assert (str(opened), closed, environment.held) == ("the session is over", {}, 0)
