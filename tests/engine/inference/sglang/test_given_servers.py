"""Servers given by URL, which the engine can neither end nor start: they fall silent, and others have paused them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.inference.sglang.client import Adapter, ServerGone, ServerRefused, SglangClient
from engine.inference.sglang.factory import KEYS, _given
from engine.inference.sglang.generator import SglangGenerator
from engine.inference.sglang.identity import WrongServer
from engine.inference.sglang.servers import Fleet, Server, ServersLost, Timings
from engine.inference.sglang.weights import TensorExchange
from engine.spec.sglang import Sglang
from tests.engine.inference.sglang.conftest import turn

TIMINGS = Timings(start_timeout_s=60.0, health_every_s=60.0, health_misses=3, restarts=1, backoff_s=0.01)
SAMPLED = {
    "output_token_logprobs": [[-0.5, 7, None]],
    "finish_reason": {"type": "length"},
    "weight_version": "0",
}


class GivenServer:
    """Samples the token 7, unless it is paused; silent, it takes what is asked and answers nothing; with a refusal it
    answers that."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_silent = False
        self.refusal: tuple[int, str] | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["GivenServer"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r")[0] or 0))
                path = head.split()[1]
                self.asked.append(path)
                status, text = self.refusal or (200, json.dumps(await self._answer(path)))
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        except asyncio.IncompleteReadError:  # the client has closed
            writer.close()

    async def _answer(self, path: str) -> dict[str, Any]:
        if self.is_silent:
            await asyncio.Event().wait()
        if path == "/pause_generation":
            self.goes_on.clear()
        if path == "/continue_generation":
            self.goes_on.set()
        if path != "/generate":
            return {}
        await self.goes_on.wait()
        return {"meta_info": SAMPLED}


class SamplesOne:
    """An ``Expectation``."""

    async def identify(self, client: SglangClient) -> None:
        """Any server will do."""

    async def check(self, client: SglangClient) -> None:
        await client.generate("check", (1,), {"max_new_tokens": 1}, behaviour_logprobs=False)


def fleet(*given: GivenServer) -> Fleet:
    servers = [Server(number, None, SglangClient(each.url)) for number, each in enumerate(given)]
    return Fleet(servers, TensorExchange(torch.float32, ranks=1), SamplesOne(), TIMINGS)


@asynccontextmanager
async def closing(fleet: Fleet) -> AsyncIterator[Fleet]:
    async with asyncio.timeout(20):
        try:
            yield fleet
        finally:
            for task in fleet._tending.values():
                task.cancel()
            for server in fleet.servers:
                await server.client.close()


async def until_asked(given: GivenServer, path: str) -> None:
    async with asyncio.timeout(20):
        while path not in given.asked:  # noqa: ASYNC110 - requests set no event
            await asyncio.sleep(0.005)


async def test_turns_on_a_server_that_falls_silent_are_asked_again_elsewhere(tmp_path: Path) -> None:
    given = [GivenServer(), GivenServer()]
    async with AsyncExitStack() as stack:
        for each in given:
            await stack.enter_async_context(each.listening())
        both = await stack.enter_async_context(closing(fleet(*given)))
        await both.all_started()
        exchange = both._exchange
        assert exchange is not None
        generator = SglangGenerator(
            lambda: both, exchange, scratch=tmp_path, vocab_size=100, context_tokens=64, logprobs_at="one"
        )
        given[0].asked, given[0].is_silent = [], True
        running = asyncio.create_task(generator.generate(turn(tokens=1)))
        await until_asked(given[0], "/generate")
        both.lost(both.servers[0], ServerGone("no answer to 3 looks"))
        assert (await running).token_ids == (7,)
        assert both.servers[0].in_hand == 0


async def test_a_server_that_is_heard_again_loses_the_adapter_that_it_had_of_us() -> None:
    given = GivenServer()
    async with given.listening(), closing(fleet(given)) as alone:
        [server] = await alone.up()
        server.client.adapter = Adapter("palestra-1-v3", 3)
        given.asked = []
        alone.lost(server, ServerGone("no answer to 3 looks"))
        await alone.up()
        assert given.asked == ["/server_info", "/continue_generation", "/unload_lora_adapter", "/generate"]
        assert server.client.adapter is None


async def test_a_server_that_a_killed_attempt_left_paused_goes_on() -> None:
    given = GivenServer()
    async with given.listening():
        killed = SglangClient(given.url)
        await killed.pause()
        await killed.close()
        async with closing(fleet(given)) as alone:
            assert len(await alone.up()) == 1


class AnotherModel(SamplesOne):
    async def identify(self, client: SglangClient) -> None:
        await client.model_info()
        raise WrongServer("it serves another model")


async def test_a_server_that_is_not_ours_is_left_as_it_is() -> None:
    given = GivenServer()
    async with given.listening():
        servers = [Server(0, None, SglangClient(given.url))]
        async with closing(Fleet(servers, TensorExchange(torch.float32, ranks=1), AnotherModel(), TIMINGS)) as alone:
            with pytest.raises(WrongServer, match="another model"):
                await alone.all_started()
    assert given.asked == ["/server_info", "/model_info"]


async def test_a_server_that_is_left_within_an_exchange_of_weights_goes_on() -> None:
    given = GivenServer()
    async with given.listening():
        client = SglangClient(given.url)
        await client.pause()
        given.asked = []
        await asyncio.to_thread(client.leave)
        assert given.asked == ["/continue_generation"]
        await client.proceed()
        given.asked = []
        await asyncio.to_thread(client.leave)
        assert given.asked == []
        await client.close()


async def test_a_server_that_does_not_answer_in_time_is_gone_with_a_reason() -> None:
    given = GivenServer()
    given.is_silent = True
    async with given.listening():
        client = SglangClient(given.url)
        with pytest.raises(ServerGone, match="/model_info: ReadTimeout$"):
            await client._call("GET", "/model_info", timeout_s=0.05)
        await client.close()


@pytest.mark.parametrize("status", [401, 404, 503])
async def test_what_some_other_service_answers_is_not_repeated(status: int) -> None:
    given = GivenServer()
    given.refusal = (status, "internal: the password is hunter2")
    async with given.listening():
        servers = _given(Sglang(urls=[given.url], weights="tensor"))
        timings = replace(TIMINGS, start_timeout_s=0.1)
        async with closing(Fleet(servers, TensorExchange(torch.float32, ranks=1), SamplesOne(), timings)) as lost:
            with pytest.raises(ServersLost, match=f"answered {status}") as failure:
                await lost.all_started()
    assert "hunter2" not in str(failure.value)


async def test_a_server_that_has_proved_what_it_is_says_why_it_refuses() -> None:
    given = GivenServer()
    async with given.listening():
        servers = _given(Sglang(urls=[given.url], weights="tensor"))
        async with closing(Fleet(servers, TensorExchange(torch.float32, ranks=1), SamplesOne(), TIMINGS)) as started:
            await started.all_started()
            given.refusal = (400, "the input is too long")
            with pytest.raises(ServerRefused, match="answered 400: the input is too long"):
                await servers[0].client.model_info()
            again = servers[0].client.anew()
            with pytest.raises(ServerRefused, match="answered 400$"):
                await again.model_info()
            await again.close()


async def test_a_token_beyond_the_vocabulary_is_found_before_a_server_is_known() -> None:
    given = GivenServer()
    given.refusal = (400, "logit_bias must be of the vocabulary")
    async with given.listening():
        client = SglangClient(given.url, is_known=False)
        assert not await client.knows_token(100)
        await client.close()


async def test_each_server_is_sent_the_key_that_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ["http://10.0.0.5:30", "http://10.0.0.5:3000", "http://10.0.0.6"]
    monkeypatch.setenv(KEYS, "http://10.0.0.5:3000=abc== http://10.0.0.6:80=other")
    servers = _given(Sglang(urls=urls, weights="tensor"))
    assert [server.client._http.headers.get("Authorization") for server in servers] == [None, "Bearer abc==", None]
    for server in servers:
        await server.client.close()
