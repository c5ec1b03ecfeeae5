"""The benchmark of the model proxy measures real proxies, in both arms."""

import asyncio
import subprocess
import sys
from random import Random

import httpx
import pytest

from benchmarks import proxy, proxy_agents
from benchmarks.proxy_agents import Address, Calls
from benchmarks.proxy_figures import Added, in_agents
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
    monkeypatch.setattr(proxy, "FEW_AGENTS", 2)
    with proxy._agents() as agents:
        ours, theirs = proxy.measured(renderer, agents, None, rounds=2, calls=2)
        kib = asyncio.run(proxy.memory_per_stream(renderer, agents))
    assert theirs is None
    assert [len(rounds) for rounds in (ours.added, ours.added_to_few, ours.calls_per_s)] == [2, 2, 2]
    assert all(added.p95_ms > 0 for added in (*ours.added, *ours.added_to_few))
    assert min(ours.calls_per_s) > max(added.calls_per_s for added in ours.added) > 0
    assert [row.what.split(",")[0] for row in proxy.headlines(ours, kib)] == [
        "added to a call", "added to a call", "added to a call", "calls per second", "memory per open stream"
    ]  # fmt: skip


def test_a_peer_is_told_by_how_many_times_ours_round_by_round() -> None:
    ours = proxy.Measured([Added(2.0, 4.0, 9.0), Added(4.0, 4.0, 9.0)], [Added(1.0, 1.0, 9.0)], [300.0])
    theirs = proxy.Measured([Added(4.0, 8.0, 9.0), Added(40.0, 80.0, 9.0)], [Added(3.0, 5.0, 9.0)], [100.0])
    rows = {row.what: (row.value, row.spread) for row in proxy.beside(ours, theirs)}
    assert rows["times ours, p50 (64 agents)"] == (6.0, (2.0, 10.0))
    assert rows["times ours, p50 (8 agents)"] == (3.0, (3.0, 3.0))
    assert rows["rllm-model-gateway: added, p95, ms (64 agents)"] == (44.0, (8.0, 80.0))
    assert rows["calls per second, ours / theirs"] == (3.0, (3.0, 3.0))


def test_the_server_behind_a_gateway_waits_as_the_seed_says_and_tells_ids_to_who_asks() -> None:
    command = [sys.executable, "-m", "benchmarks.peers.drawn_server", "--fastest", "0", "--slowest", "0.5"]
    with subprocess.Popen(command, cwd=proxy.ROOT, stdout=subprocess.PIPE) as server, proxy._agents() as agents:
        assert server.stdout is not None
        address = Address(int(server.stdout.readline()))
        try:
            first, again, other = (
                asyncio.run(in_agents(agents, proxy_agents.latencies, Calls([address] * 2, 2, seed)))
                for seed in (1, 1, 2)
            )
            url = f"http://127.0.0.1:{address.port}/v1/chat/completions"
            plain, with_ids = (
                httpx.post(url, json={"seed": 4, "return_token_ids": ids}).json()["choices"][0] for ids in (False, True)
            )
        finally:
            server.kill()
    drawn = [Random(seed).uniform(0, 0.5) for seed in (4, 5, 6, 7)]
    for seconds in (first, again):
        assert all(took >= waited for took, waited in zip(sum(seconds, []), drawn, strict=True))
    assert sum(other, []) != sum(first, [])
    assert plain["message"] == with_ids["message"]
    assert len(with_ids["token_ids"]) == len(with_ids["logprobs"]["content"])
    assert "token_ids" not in plain


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
