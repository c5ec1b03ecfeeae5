import asyncio

import pytest

from benchmarks.slow_python import LONGEST_S, SHORTEST_S, SlowPython
from engine.spec.message import AssistantMessage
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec


class OneSandbox:
    def acquire(self):
        return opened(SandboxSpec())


async def slept_in(monkeypatch: pytest.MonkeyPatch, environment: SlowPython, calls: int) -> list[float]:
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, *result: object) -> None:
        if seconds >= SHORTEST_S:
            slept.append(seconds)
        await real(0)

    task = environment.tasks("train")[0]
    async with environment.session(task, OneSandbox()) as session:
        await session.reset()
        monkeypatch.setattr("benchmarks.slow_python.asyncio.sleep", sleep)
        for _ in range(calls):
            observation = await session.act(AssistantMessage.calling("python", {"code": "1 + 1"}))
            assert [call.output for call in observation.calls] == ["2"]
        assert (await session.act(AssistantMessage(task.answer))).done
        monkeypatch.undo()
        assert (await session.score()).success
    return slept


async def test_each_turn_with_a_call_takes_longer_as_the_task_and_the_try_have_it(monkeypatch):
    first = SlowPython()
    slept = [await slept_in(monkeypatch, first, 3) for _ in range(2)]
    assert [len(episode) for episode in slept] == [3, 3]
    assert all(SHORTEST_S <= seconds <= LONGEST_S for episode in slept for seconds in episode)
    assert slept[0] != slept[1]
    assert await slept_in(monkeypatch, SlowPython(), 3) == slept[0]
