"""rllm's model gateway in the place of the proxy, asked by the same agents.

    agents ──► gateway ──► inference server        the same agents ──► inference server

The gateway is a process of its own that forwards requests to an inference server, and keeps the token ids and log-probs
which that answers.  So its twin is a call that asks the server directly; and what the proxy does itself, template and
tokenizer, is left to the server, which here does neither.
"""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import proxy_agents
from benchmarks.proxy_agents import Address, Calls
from benchmarks.proxy_figures import Added, in_agents

ROOT = Path(__file__).resolve().parent.parent
STARTS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Gateway:
    """A gateway and the server behind it, both running."""

    port: int
    server_port: int

    def through(self, agents: int) -> list[Address]:
        return [Address(self.port, f"/sessions/agent-{agent}/v1/chat/completions") for agent in range(agents)]

    def direct(self, agents: int) -> list[Address]:
        return [Address(self.server_port)] * agents


@contextmanager
def gateway(python: Path, fastest_s: float, slowest_s: float) -> Iterator[Gateway]:
    """``python``: an interpreter that has the gateway."""
    waits = ["--fastest", str(fastest_s), "--slowest", str(slowest_s)]
    behind = [sys.executable, "-m", "benchmarks.peers.drawn_server", *waits]
    with _process(behind, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server_port, port = int(server.stdout.readline()), _free_port()
        where = ["--host", "127.0.0.1", "--port", str(port), "--worker", f"http://127.0.0.1:{server_port}/v1"]
        quick = ["--store", "memory", "--log-level", "warning"]
        with _process([str(python), "-m", "rllm_model_gateway", *where, *quick]) as process:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield Gateway(port, server_port)


async def added_by_the_gateway(
    opened: Gateway, agents: ProcessPoolExecutor, count: int, seed: int, calls: int
) -> Added:
    """Each call of ``count`` agents against its twin that asks the server directly."""
    began = time.perf_counter()
    through = await in_agents(agents, proxy_agents.latencies, Calls(opened.through(count), calls, seed))
    seconds = time.perf_counter() - began
    direct = await in_agents(agents, proxy_agents.latencies, Calls(opened.direct(count), calls, seed))
    return Added.of(np.array(through) - np.array(direct), seconds)


async def calls_per_second(opened: Gateway, agents: ProcessPoolExecutor, count: int, calls: int) -> float:
    began = time.perf_counter()
    await in_agents(agents, proxy_agents.latencies, Calls(opened.through(count), calls))
    return count * calls / (time.perf_counter() - began)


@contextmanager
def _process(command: list[str], stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, cwd=ROOT, stdout=stdout) as process:
        try:
            yield process
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5.0):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the gateway does not answer at {url}: {error}") from error
        time.sleep(0.1)
