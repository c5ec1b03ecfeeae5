"""The benchmark of the model proxy measures real proxies, in both arms."""

import asyncio

import pytest

from benchmarks import proxy
from engine.launch.sample_model import make_sample_model
from engine.rollout.renderers.chat import chat_renderer
from engine.rollout.renderers.contract import Renderer


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_sample_model(folder, seed=0)
    return chat_renderer(folder)


def test_calls_streams_and_their_twins_are_measured(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "AGENTS", 3)
    with proxy._agents() as agents:
        added = asyncio.run(proxy.added_by_the_proxy(renderer, agents, seed=0, calls=2))
        most = asyncio.run(proxy.calls_per_second(renderer, agents, calls=2))
        kib = asyncio.run(proxy.memory_per_stream(renderer, agents))
    assert added.p95_ms > 0
    assert most > added.calls_per_s > 0
    assert [row.what.split(",")[0] for row in proxy.headlines([added], [most], kib)] == [
        "added to a call", "added to a call", "calls per second", "memory per open stream"
    ]  # fmt: skip


def test_twins_wait_for_the_same_drawn_time(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def remembered(seconds: float) -> None:
        waited.append(seconds)

    waited: list[float] = []
    monkeypatch.setattr(proxy.asyncio, "sleep", remembered)
    for _ in range(2):
        asyncio.run(proxy._asked_directly(proxy.DrawnPolicy(proxy.spoken(renderer), 1, 0.0, 1.0), calls=3))
    assert waited[:3] == waited[3:]
    assert len(set(waited)) == 3


def test_the_answer_ends_as_a_turn_does(renderer: Renderer) -> None:
    answers = proxy.spoken(renderer)
    assert {answer.token_ids[-1] for answer in answers} <= renderer.stop_ids
    assert len(set(answers)) == proxy.ANSWERS
