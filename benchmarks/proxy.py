"""What the model proxy adds to a call of an agent: ``./dev bench proxy [--json FILE] [--quick]``.

64 agents, each a rollout with a proxy and a key of its own, hold conversations that grow, over HTTP on loopback.  They
run in a process of their own, as agents do.  The policy behind them answers after a time that is drawn from agent and
call, so that each call has a twin that goes to the generator directly, in the same process and at the same rate: what
the first takes longer than the second is the proxy's.  Then as many calls as go through, behind a policy that answers
at once; and the memory of streams that are open and wait.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import machine, proxy_agents
from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_most, figure, headline_table, write_report
from benchmarks.proxy_agents import KEY, Calls
from engine.launch.sample_model import make_sample_model
from engine.rollout.agents.call_sessions import CallSessions
from engine.rollout.agents.capture import Call
from engine.rollout.agents.proxy import Budget, ModelProxy
from engine.rollout.agents.server import ProxyServer, RolloutDoor
from engine.rollout.policy_session import PolicySession
from engine.rollout.renderers.chat import chat_renderer
from engine.rollout.renderers.contract import Renderer
from engine.seeds import derived_seed
from engine.spec.generation import Generated, GenerateRequest
from engine.spec.message import AssistantMessage

AGENTS = 64
STREAMS_EACH = 4
ANSWERS = 97
ANSWER = "I looked at the file, and the sum of its third column is {number}; next I write it down. {number} is right. "
FASTEST_S, SLOWEST_S = 0.2, 0.4
"""Between which a policy that is drawn answers: 40 tokens at 100 to 200 tokens per second."""
CONTEXT_TOKENS = 32_768
P50_MS, P95_MS = 2.0, 10.0
LIMITS = Budget(
    calls=10**6, sampled_tokens=10**9, turn_tokens=256, parallel=STREAMS_EACH, context_tokens=CONTEXT_TOKENS
)


@dataclass
class Gate:
    """Holds calls back until ``open``; ``full`` once so many as are ``wanted`` wait at it."""

    wanted: int
    waiting: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def passed(self) -> None:
        self.waiting += 1
        if self.waiting >= self.wanted:
            self.full.set()
        await self.open.wait()


@dataclass
class DrawnPolicy:
    """A ``TextGenerator`` whose answer, and the time that it takes, are drawn from how often it was asked."""

    answers: Sequence[Generated]
    seed: int = 0
    fastest_s: float = 0.0
    slowest_s: float = 0.0
    gate: Gate | None = None
    asked: int = 0

    async def generate(self, request: GenerateRequest) -> Generated:
        number, self.asked = self.asked, self.asked + 1
        if self.gate is not None:
            await self.gate.passed()
        if self.slowest_s:
            await asyncio.sleep(Random(derived_seed(self.seed, number)).uniform(self.fastest_s, self.slowest_s))
        return self.answers[derived_seed(self.seed, number, "answer") % len(self.answers)]

    async def rewind(self, session: str, tokens: int) -> None:
        return None

    async def release(self, session: str) -> None:
        return None


@dataclass(frozen=True)
class Added:
    """What the proxy added in the calls of one round."""

    p50_ms: float
    p95_ms: float
    calls_per_s: float


def main() -> None:
    options = _options()
    began = machine.description()
    rounds, calls = (1, 4) if options.quick else (5, 12)
    with tempfile.TemporaryDirectory(prefix="palestra-bench-") as folder, _agents() as agents:
        make_sample_model(Path(folder, "model"), seed=0)
        renderer = chat_renderer(Path(folder, "model"))
        asyncio.run(added_by_the_proxy(renderer, agents, rounds, 2))  # both processes have run everything once then
        gc.freeze()  # as workers do when they have started
        added = [asyncio.run(added_by_the_proxy(renderer, agents, seed, calls)) for seed in range(rounds)]
        most = [asyncio.run(calls_per_second(renderer, agents, calls)) for _ in range(rounds)]
        stream_kib = asyncio.run(memory_per_stream(renderer, agents))
    rows = headlines(added, most, stream_kib)
    if options.json:
        write_report(options.json, rows, {"machine": began, "agents": AGENTS, "calls": calls, "rounds": added})
    Console(width=max(110, Console().width)).print(headline_table(rows))


def headlines(added: list[Added], most: list[float], stream_kib: float) -> list[Headline]:
    rate = statistics.median(each.calls_per_s for each in added)
    return [
        at_most(
            f"added to a call, p50, ms ({AGENTS} agents, {rate:.0f} calls/s)",
            Distribution.of([each.p50_ms for each in added]),
            P50_MS,
        ),
        at_most("added to a call, p95, ms", Distribution.of([each.p95_ms for each in added]), P95_MS),
        figure("calls per second, behind a policy that answers at once", Distribution.of(most)),
        figure("memory per open stream, KiB", stream_kib),
    ]


async def added_by_the_proxy(renderer: Renderer, agents: ProcessPoolExecutor, seed: int, calls: int) -> Added:
    """Each call against its twin that asks the generator directly."""
    answers = spoken(renderer)
    policies = [DrawnPolicy(answers, derived_seed(seed, agent), FASTEST_S, SLOWEST_S) for agent in range(AGENTS)]
    async with served(renderer, policies) as ports:
        began = time.perf_counter()
        through = await in_agents(agents, proxy_agents.latencies, Calls(ports, calls))
        rate = AGENTS * calls / (time.perf_counter() - began)
    for policy in policies:
        policy.asked = 0
    direct = await asyncio.gather(*(_asked_directly(policy, calls) for policy in policies))
    added_ms = (np.array(through) - np.array(direct)).ravel() * 1000
    return Added(float(np.quantile(added_ms, 0.5)), float(np.quantile(added_ms, 0.95)), rate)


async def _asked_directly(policy: DrawnPolicy, calls: int) -> list[float]:
    """Seconds of each call."""
    seconds = []
    request = GenerateRequest(
        session="direct", new_ids=(1,), max_new_tokens=256, stop_ids=frozenset(), temperature=1.0, seed=0
    )
    for _ in range(calls):
        began = time.perf_counter()
        await policy.generate(request)
        seconds.append(time.perf_counter() - began)
    return seconds


async def calls_per_second(renderer: Renderer, agents: ProcessPoolExecutor, calls: int) -> float:
    answers = spoken(renderer)
    policies = [DrawnPolicy(answers, agent) for agent in range(AGENTS)]
    async with served(renderer, policies) as ports:
        began = time.perf_counter()
        await in_agents(agents, proxy_agents.latencies, Calls(ports, calls))
        return AGENTS * calls / (time.perf_counter() - began)


async def memory_per_stream(renderer: Renderer, agents: ProcessPoolExecutor) -> float:
    """KiB of this process for each stream that is open and waits for its policy."""
    gate, answers = Gate(AGENTS * STREAMS_EACH), spoken(renderer)
    async with served(renderer, [DrawnPolicy(answers, agent, gate=gate) for agent in range(AGENTS)]) as ports:
        before = _resident_kib()
        waiting = asyncio.ensure_future(in_agents(agents, proxy_agents.streams, Calls(ports, STREAMS_EACH)))
        await gate.full.wait()
        after = _resident_kib()
        gate.open.set()
        await waiting
    return (after - before) / (AGENTS * STREAMS_EACH)


@asynccontextmanager
async def served(renderer: Renderer, policies: list[DrawnPolicy]) -> AsyncIterator[list[int]]:
    """The ports of as many rollouts, each with a proxy of its own."""
    async with AsyncExitStack() as held:
        ports = []
        for number, policy in enumerate(policies):
            listener = socket.create_server(("127.0.0.1", 0), backlog=AGENTS)
            listener.setblocking(False)
            ports.append(listener.getsockname()[1])
            server = ProxyServer(RolloutDoor(_proxy(renderer, policy, number), KEY))
            await held.enter_async_context(server.serving(listener))
        yield ports


def _proxy(renderer: Renderer, policy: DrawnPolicy, number: int) -> ModelProxy:
    def session() -> PolicySession:
        return PolicySession(
            policy, f"agent-{number}", stop_ids=renderer.stop_ids, max_turn_tokens=LIMITS.turn_tokens,
            context_tokens=CONTEXT_TOKENS, temperature=1.0,
        )  # fmt: skip

    async def on_call(number: int, call: Call) -> None:
        return None

    return ModelProxy(renderer, CallSessions(session), LIMITS, seed=number, on_call=on_call)


def spoken(renderer: Renderer) -> list[Generated]:
    """What a policy says."""
    turns = [tuple(renderer.write(AssistantMessage(ANSWER.format(number=n) * 2), [])) for n in range(ANSWERS)]
    return [Generated(ids, (-0.5,) * len(ids), (1,) * len(ids), "stop") for ids in turns]


@contextmanager
def _agents() -> Iterator[ProcessPoolExecutor]:
    """A process that knows nothing of the engine."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as agents:
        agents.submit(os.getpid).result()
        yield agents


async def in_agents(agents: ProcessPoolExecutor, what: Any, calls: Calls) -> Any:
    return await asyncio.get_running_loop().run_in_executor(agents, what, calls)


def _resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench proxy", description="What the model proxy adds to a call.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--quick", action="store_true", help="one round of few calls")
    return parser.parse_args()


if __name__ == "__main__":
    main()
