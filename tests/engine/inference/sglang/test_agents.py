"""An agent's calls through the model proxy to real SGLang servers: what is trained is what they sampled."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.inference.sglang.generator import SglangGenerator
from engine.inference.torch.factory import generator_for_folder
from engine.models.weights import StateDict
from engine.rollout.agents.call_sessions import CallSessions
from engine.rollout.agents.capture import Call
from engine.rollout.agents.proxy import Budget, ModelProxy
from engine.rollout.agents.server import ProxyServer, RolloutDoor
from engine.rollout.policy_session import PolicySession
from engine.rollout.renderers.chat import chat_renderer
from tests.engine.inference.sglang.conftest import CONTEXT, turn
from tests.engine.inference.sglang.test_servers import CLOSE, in_hand, updated

pytestmark = [pytest.mark.backends, pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]
KEY = "the-key-of-this-rollout"
TOKENS = 12


@dataclass(frozen=True)
class Agent:
    """A rollout's proxy, and a client of it that knows nothing else."""

    proxy: ModelProxy
    client: httpx.AsyncClient

    async def asks(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        request = {"model": "policy", "messages": messages, "max_tokens": TOKENS, **options}
        response = await self.client.post("/v1/chat/completions", json=request)
        assert response.status_code == 200, response.text
        if not options.get("stream"):
            return dict(response.json())
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
        return {"events": [json.loads(event) for event in events]}


@asynccontextmanager
async def agent_of(generator: SglangGenerator, folder: Path) -> AsyncIterator[Agent]:
    renderer = chat_renderer(folder)

    def session() -> PolicySession:
        return PolicySession(
            generator, "agent", stop_ids=renderer.stop_ids, max_turn_tokens=TOKENS, context_tokens=CONTEXT,
            temperature=1.0,
        )  # fmt: skip

    async def on_call(number: int, call: Call) -> None:
        return None

    budget = Budget(calls=100, sampled_tokens=10_000, turn_tokens=200, parallel=8, context_tokens=CONTEXT)
    proxy = ModelProxy(renderer, CallSessions(session), budget, seed=1, on_call=on_call)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    headers = {"authorization": f"Bearer {KEY}"}
    async with ProxyServer(RolloutDoor(proxy, KEY)).serving(listener):
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, trust_env=False) as client:
            yield Agent(proxy, client)
    await proxy.close()


async def test_calls_retries_choices_and_streams_are_trained_as_the_servers_sampled_them(
    generator: SglangGenerator, folder: Path, weights: StateDict, other_weights: StateDict
) -> None:
    begin = [{"role": "user", "content": "2 + 2"}]
    async with agent_of(generator, folder) as agent:
        sampled_before = generator.stats()["sampled_tokens"]
        first = await agent.asks(begin)
        # Random weights may say U+0000, which no agent can send back.
        content = (first["choices"][0]["message"]["content"] or "").replace("\0", "")
        answer = {"role": "assistant", "content": content}
        both = await agent.asks(begin, n=2)
        await updated(generator, other_weights, 4)
        await agent.asks([*begin, answer, {"role": "user", "content": "and 3"}])
        streamed = await agent.asks(begin, stream=True)
        assert len(both["choices"]) == 2
        assert any(event["choices"][0]["finish_reason"] for event in streamed["events"] if event["choices"])
        calls, segments = agent.proxy.calls, agent.proxy.segments()
        sampled = generator.stats()["sampled_tokens"] - sampled_before
    trained = [turn for segment in segments for turn in segment.turns]
    assert sum(len(turn.token_ids) for turn in trained) == sampled == agent.proxy.sampled_tokens
    assert [set(call.generated.policy_versions) for call in calls] == [{0}, {0}, {0}, {4}, {4}]
    reference = generator_for_folder(folder, context_tokens=CONTEXT, slots=8)
    for number, call in enumerate(calls):
        version = call.generated.policy_versions[0]
        await reference.load_weights(other_weights if version else weights, version)
        forced = turn(f"c{number}", ids=call.context.token_ids, forced_ids=call.generated.token_ids)
        assert call.generated.logprobs == pytest.approx((await reference.generate(forced)).logprobs, abs=CLOSE)
    reference.close()


async def test_an_agent_that_hangs_up_ends_its_turn_at_the_server(generator: SglangGenerator, folder: Path) -> None:
    async with agent_of(generator, folder) as agent:
        asking = asyncio.create_task(agent.asks([{"role": "user", "content": "2 + 2"}], max_tokens=200))
        await in_hand(generator)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(60):
            await agent.asks([{"role": "user", "content": "2 + 3"}])  # its place is free again
        assert len(agent.proxy.calls) == 1
        assert agent.proxy.unfinished == 1
