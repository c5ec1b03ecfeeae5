"""How a generator comes to new weights, and in what state it is left where that fails."""

import asyncio
from typing import Any

import pytest

from engine.cluster.generators import hand_over_weights
from engine.models.weights import StateDict


class Servers:
    """A generator that suspends one server after the other, and hangs at the second."""

    def __init__(self) -> None:
        self.suspended: list[int] = []

    async def suspend(self) -> None:
        self.suspended.append(0)
        await asyncio.Event().wait()

    async def resume(self) -> None:
        self.suspended.clear()


@pytest.mark.parametrize(("stays_suspended", "left"), [(False, []), (True, [0])])
async def test_a_generator_that_is_left_half_suspended_samples_again_unless_somebody_else_resumes_it(
    *, stays_suspended: bool, left: list[int]
) -> None:
    servers: Any = Servers()
    handing_over = asyncio.create_task(hand_over_weights(servers, StateDict(), 1, stays_suspended=stays_suspended))
    await asyncio.sleep(0)
    handing_over.cancel()
    await asyncio.wait({handing_over})
    assert servers.suspended == left
