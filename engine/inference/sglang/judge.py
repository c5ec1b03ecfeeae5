"""A language model that judges, on servers of the run's own: started, watched and restarted, and never given weights.

    question ──► ask ──► the least busy server that is up ──► answer
                  ▲                │ gone
                  └──── another one, or the same again

It is asked as OpenAI's endpoint is, by ``engine/judge_endpoint.py``, which says what is asked and what an answer means.
Where no server is up a question waits until one is; that takes none of the time which one answer may take.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.inference.interface import Level
from engine.inference.sglang.client import ServerGone, ServerRefused, SglangClient
from engine.inference.sglang.factory import interpreter
from engine.inference.sglang.process import ServerProcess, common_environment, judge_command
from engine.inference.sglang.servers import Fleet, Server, Timings, reading_of
from engine.judge_endpoint import NOT_THAT_DOCUMENT, ChatAnswer
from engine.models.origin import folder_of
from engine.spec.judge import OF_THE_RUN
from engine.spec.resources import Resources
from engine.spec.sglang import JudgeServers
from engine.spec.usage import ServerReading

CPU_QUESTIONS = 4
"""Questions that a server on the CPU has room for at once, where no flag says otherwise."""
CPU_TOKENS = 4096
"""The context of one of them, where ``context_tokens`` does not say."""


@dataclass(frozen=True)
class AnswersInMessages:
    """An ``Expectation``: the server has a tokenizer and a template."""

    async def identify(self, client: SglangClient) -> None:
        """Judges have no servers but those that the engine started."""

    async def check(self, client: SglangClient) -> None:
        document = {"model": "judge", "messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
        status, _, body = await client.chat(document)
        if status != 200:
            answer = body[:300].decode(errors="replace")
            raise ServerRefused(f"{OF_THE_RUN}.path: {client.url} answers a question with status {status}: {answer}")


class ServedJudgeModel:
    """Belongs to one event loop.  Servers are started by ``start``, or by the first question."""

    def __init__(self, settings: JudgeServers, resources: Resources, *, first_gpu: int = 0) -> None:
        """``first_gpu``: so many of the GPUs that this process sees are others'."""
        self._settings, self._resources, self._first_gpu = settings, resources, first_gpu
        self._scratch = Path(tempfile.mkdtemp(prefix="palestra-judge-"))
        self._fleet: Fleet | None = None
        self._closed = False

    def start(self) -> None:
        self._started()

    async def ask(self, document: Mapping[str, Any], timeout_s: float) -> ChatAnswer:
        """A ``ServedJudge``.  Raises TimeoutError where a server takes longer, ServersLost where none is left."""
        fleet = self._started()
        while True:
            server = min(await fleet.up(), key=lambda server: (server.in_hand, server.number))
            try:
                return await self._answer_of(server, document, timeout_s)
            except ServerGone as error:
                fleet.lost(server, error)

    async def servers(self) -> list[ServerReading]:
        servers = [] if self._fleet is None else self._fleet.servers
        return list(await asyncio.gather(*(reading_of(server) for server in servers)))

    def reports(self) -> list[tuple[Level, str]]:
        """What happened to the servers since the last call.  Raises ServersLost where none is left."""
        if self._fleet is None:
            return []
        if self._fleet.failure is not None:
            raise self._fleet.failure
        return self._fleet.reports()

    def close(self) -> None:
        """Twice is fine."""
        self._closed = True
        if self._fleet is not None:
            self._fleet.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _answer_of(self, server: Server, document: Mapping[str, Any], timeout_s: float) -> ChatAnswer:
        server.began(time.perf_counter())
        try:
            async with asyncio.timeout(timeout_s):
                status, retry_after, body = await server.client.chat(document)
        finally:
            server.ended(time.perf_counter())
        if status == 200:
            _count(server, body)
        return ChatAnswer(status, retry_after, body)

    def _started(self) -> Fleet:
        if self._closed:
            raise RuntimeError("the run's judge is closed")
        if self._fleet is None:
            settings = self._settings
            timings = Timings(
                settings.start_timeout_s, settings.health_every_s, settings.health_misses, settings.restarts
            )
            servers = [self._server(number) for number in range(settings.servers)]
            self._fleet = Fleet(servers, None, AnswersInMessages(), timings, field=OF_THE_RUN)
        return self._fleet

    def _server(self, number: int) -> Server:
        settings, device = self._settings, self._resources.device
        folder = folder_of(settings.model)
        environment = common_environment(
            settings, number, threads=self._resources.threads, device=device, first_gpu=self._first_gpu
        )
        if device == "cpu":
            room = CPU_QUESTIONS * (settings.context_tokens or CPU_TOKENS)
            flags = [f"max-total-tokens={room}", f"max-running-requests={CPU_QUESTIONS}", *settings.flags]
            settings = settings.model_copy(update={"flags": flags})
        process = ServerProcess(
            lambda port, key_file: judge_command(
                interpreter(), folder, settings, device=device, port=port, key_file=key_file
            ),
            environment,
            self._scratch / f"server-{number}.log",
        )
        return Server(number, process, SglangClient(process.url), role="judge")


def _count(server: Server, body: bytes) -> None:
    """What the answer says of its tokens."""
    try:
        usage = json.loads(body)["usage"]
        sampled, read = int(usage["completion_tokens"]), int(usage["prompt_tokens"])
        before = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    except NOT_THAT_DOCUMENT:  # whoever asked finds that out by itself
        return
    server.sampled_tokens += sampled
    server.prompt_tokens += read
    server.cached_tokens += before
