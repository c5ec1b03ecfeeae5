"""What the model proxy adds to a call of an agent: ``./dev bench proxy [--json FILE] [--quick] [--no-peer]``.

64 agents, each a rollout with a proxy and a key of its own, hold conversations that grow, over HTTP on loopback.  They
run in a process of their own, as agents do.  The policy behind them answers after a time that is drawn from agent and
call, so that each call has a twin that goes to the generator directly, in the same process and at the same rate: what
the first takes longer than the second is the proxy's.  Then as many calls as go through, behind a policy that answers
at once; and the memory of streams that are open and wait.  rllm's model gateway (``proxy_peer.py``) is asked by the
same agents in alternate rounds.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console

from benchmarks import machine, peer_venvs, proxy_agents, proxy_peer
from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_most, figure, headline_table, report_file, write_report
from benchmarks.peers.drawn_server import ANSWER, ANSWERS
from benchmarks.proxy_agents import KEY, Address, Calls
from benchmarks.proxy_figures import Added, in_agents
from engine.cluster.garbage import collect_rarely
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

ROOT = Path(__file__).resolve().parent.parent
AGENTS, FEW_AGENTS = 64, 8
"""As many as a worker has at most, and so few that calls hardly wait for one another."""
STREAMS_EACH = 4
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
class Measured:
    """A proxy in all rounds."""

    added: list[Added]
    added_to_few: list[Added]
    calls_per_s: list[float]


def main() -> None:
    options = _options()
    began = machine.description()
    rounds, calls = (1, 4) if options.quick else (5, 12)
    home = Path(os.environ.get("PALESTRA_HOME", ROOT / ".palestra")).resolve()
    peer = None if options.no_peer else peer_venvs.python_of(peer_venvs.RLLM_GATEWAY, home)
    with tempfile.TemporaryDirectory(prefix="palestra-bench-") as folder, _agents() as agents:
        make_sample_model(Path(folder, "model"), seed=0)
        renderer = chat_renderer(Path(folder, "model"))
        asyncio.run(
            added_by_the_proxy(renderer, agents, AGENTS, rounds, 2)
        )  # both processes have run everything once then
        collect_rarely()  # as workers do when they have started
        ours, theirs = measured(renderer, agents, peer, rounds, calls)
        stream_kib = asyncio.run(memory_per_stream(renderer, agents))
    rows = [*headlines(ours, stream_kib), *([] if theirs is None else beside(ours, theirs))]
    Console(width=max(110, Console().width)).print(headline_table(rows))
    if options.json:
        document = {"machine": began, "agents": AGENTS, "calls": calls, "ours": ours, "rllm_model_gateway": theirs}
        write_report(options.json, rows, document)


def measured(
    renderer: Renderer, agents: ProcessPoolExecutor, peer: Path | None, rounds: int, calls: int
) -> tuple[Measured, Measured | None]:
    """The proxy and, where there is an interpreter that has it, the gateway, in alternate rounds."""
    ours, theirs = Measured([], [], []), Measured([], [], [])
    with ExitStack() as opened:
        slow, quick = (
            None if peer is None else opened.enter_context(proxy_peer.gateway(peer, fastest_s, slowest_s))
            for fastest_s, slowest_s in ((FASTEST_S, SLOWEST_S), (0.0, 0.0))
        )
        for count, our, their in (
            (FEW_AGENTS, ours.added_to_few, theirs.added_to_few),
            (AGENTS, ours.added, theirs.added),
        ):
            for seed in range(rounds):
                our.append(asyncio.run(added_by_the_proxy(renderer, agents, count, seed, calls)))
                if slow is not None:
                    their.append(asyncio.run(proxy_peer.added_by_the_gateway(slow, agents, count, seed, calls)))
        for _ in range(rounds):
            ours.calls_per_s.append(asyncio.run(calls_per_second(renderer, agents, AGENTS, calls)))
            if quick is not None:
                rate = asyncio.run(proxy_peer.calls_per_second(quick, agents, AGENTS, calls))
                theirs.calls_per_s.append(rate)
    return ours, None if peer is None else theirs


def headlines(ours: Measured, stream_kib: float) -> list[Headline]:
    rate = statistics.median(each.calls_per_s for each in ours.added)
    return [
        at_most(f"added to a call, p50, ms ({AGENTS} agents, {rate:.0f} calls/s)", _p50_ms(ours.added), P50_MS),
        at_most("added to a call, p95, ms", _p95_ms(ours.added), P95_MS),
        figure(f"added to a call, p50, ms ({FEW_AGENTS} agents)", _p50_ms(ours.added_to_few)),
        figure("calls per second, behind a policy that answers at once", Distribution.of(ours.calls_per_s)),
        figure("memory per open stream, KiB", stream_kib),
    ]


def beside(ours: Measured, theirs: Measured) -> list[Headline]:
    """The gateway's figures, and how many times ours they are, round by round."""
    rows = []
    for count, our, their in (
        (AGENTS, ours.added, theirs.added),
        (FEW_AGENTS, ours.added_to_few, theirs.added_to_few),
    ):
        p50s = [theirs.p50_ms / ours.p50_ms for ours, theirs in zip(our, their, strict=True)]
        rows += [
            figure(f"rllm-model-gateway: added, p50, ms ({count} agents)", _p50_ms(their)),
            figure(f"rllm-model-gateway: added, p95, ms ({count} agents)", _p95_ms(their)),
            figure(f"times ours, p50 ({count} agents)", Distribution.of(p50s)),
        ]
    rates = [ours / theirs for ours, theirs in zip(ours.calls_per_s, theirs.calls_per_s, strict=True)]
    return [
        *rows,
        figure("rllm-model-gateway: calls per second", Distribution.of(theirs.calls_per_s)),
        figure("calls per second, ours / theirs", Distribution.of(rates)),
    ]


def _p50_ms(rounds: list[Added]) -> Distribution:
    return Distribution.of([each.p50_ms for each in rounds])


def _p95_ms(rounds: list[Added]) -> Distribution:
    return Distribution.of([each.p95_ms for each in rounds])


async def added_by_the_proxy(
    renderer: Renderer, agents: ProcessPoolExecutor, count: int, seed: int, calls: int
) -> Added:
    """Each call of ``count`` agents against its twin that asks the generator directly."""
    answers = spoken(renderer)
    policies = [DrawnPolicy(answers, derived_seed(seed, agent), FASTEST_S, SLOWEST_S) for agent in range(count)]
    async with served(renderer, policies) as addresses:
        began = time.perf_counter()
        through = await in_agents(agents, proxy_agents.latencies, Calls(addresses, calls))
        seconds = time.perf_counter() - began
    for policy in policies:
        policy.asked = 0
    direct = await asyncio.gather(*(_asked_directly(policy, calls) for policy in policies))
    return Added.of(np.array(through) - np.array(direct), seconds)


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


async def calls_per_second(renderer: Renderer, agents: ProcessPoolExecutor, count: int, calls: int) -> float:
    answers = spoken(renderer)
    policies = [DrawnPolicy(answers, agent) for agent in range(count)]
    async with served(renderer, policies) as addresses:
        began = time.perf_counter()
        await in_agents(agents, proxy_agents.latencies, Calls(addresses, calls))
        return count * calls / (time.perf_counter() - began)


async def memory_per_stream(renderer: Renderer, agents: ProcessPoolExecutor) -> float:
    """KiB of this process for each stream that is open and waits for its policy."""
    gate, answers = Gate(AGENTS * STREAMS_EACH), spoken(renderer)
    async with served(renderer, [DrawnPolicy(answers, agent, gate=gate) for agent in range(AGENTS)]) as addresses:
        before = _resident_kib()
        waiting = asyncio.ensure_future(in_agents(agents, proxy_agents.streams, Calls(addresses, STREAMS_EACH)))
        await gate.full.wait()
        after = _resident_kib()
        gate.open.set()
        await waiting
    return (after - before) / (AGENTS * STREAMS_EACH)


@asynccontextmanager
async def served(renderer: Renderer, policies: list[DrawnPolicy]) -> AsyncIterator[list[Address]]:
    """As many rollouts, each with a proxy of its own."""
    async with AsyncExitStack() as held:
        addresses = []
        for number, policy in enumerate(policies):
            listener = socket.create_server(("127.0.0.1", 0), backlog=AGENTS)
            listener.setblocking(False)
            addresses.append(Address(listener.getsockname()[1]))
            server = ProxyServer(RolloutDoor(_proxy(renderer, policy, number), KEY))
            await held.enter_async_context(server.serving(listener))
        yield addresses


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


def _resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench proxy", description="What the model proxy adds to a call.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--quick", action="store_true", help="one round of few calls")
    parser.add_argument("--no-peer", action="store_true", help="without rllm's model gateway, which pip installs first")
    return parser.parse_args()


if __name__ == "__main__":
    main()
