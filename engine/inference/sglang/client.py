"""One SGLang server over HTTP: token ids in, token ids with log-probs and versions out.

Two things can go wrong, and callers choose between them: the server is gone (``ServerGone``: ask another one), or it
answered that it will not (``ServerRefused``: asking again would not help).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from torch import Tensor

CONNECTIONS = 4096
"""More than a server runs at once; what is beyond waits in the server, not here."""
CALL_S = 30.0
"""For calls that take no model pass."""
LOOK_S = 2.0
"""For what a page shows: who does not answer by then is shown without."""
EVENT = "data: "
"""Begins a line of a stream that says something."""
PROBE_S = 120.0
"""For a first pass."""
LOAD_S = 1800.0
"""For new weights."""
ABORT_AGAIN_S = 0.2
"""A request that a server had not seen when it was told to end it is ended again so much later."""


class ServerGone(Exception):
    """The server does not answer any more, or not yet."""


class ServerRefused(RuntimeError):
    """The server answered, and the answer is no."""

    def __init__(self, message: str, answer: str = "") -> None:
        """``answer`` is all of it, of which the message may say less."""
        super().__init__(message)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Adapter:
    """What the requests of a server name to be computed with.  A name is never given twice, so neither is its cache."""

    name: str
    version: int
    """The policy's, which is then that of every token."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """What one request sampled, in order; ``versions`` are the server's names of the weights, one for each token."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[str]
    finish: str
    """``stop``, ``length`` or ``abort``."""
    message: str
    prompt_tokens: int
    cached_tokens: int


class SglangClient:
    """Calls of one server.  Every method raises ServerGone and ServerRefused."""

    def __init__(self, url: str, *, api_key: str | None = None, is_known: bool = True) -> None:
        """``is_known``: the engine started the server.  One that a spec names has to prove what it is first."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        # trust_env: a proxy of the environment is for the internet, not for a server next door.
        self._http = httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=CALL_S, trust_env=False)
        self.url = url
        self.adapter: Adapter | None = None
        """With which the requests from now on are computed; None: with the server's own weights alone."""
        self.is_known = is_known
        """Whether errors may repeat what it answers.  What some other service answers is nobody's to read."""
        self._api_key = api_key
        self._is_paused = False
        self._under_way: set[str] = set()
        self._idle = asyncio.Event()

    async def close(self) -> None:
        """Calls that are not answered yet raise ServerGone."""
        await self._http.aclose()

    def anew(self) -> "SglangClient":
        """Another client of the same address, which goes on where this one was and has to be proved again."""
        client = SglangClient(self.url, api_key=self._api_key, is_known=False)
        client.adapter, client._is_paused = self.adapter, self._is_paused
        return client

    def leave(self) -> None:
        """Leave a server that goes on without us awake and without our adapter.  One that does not answer stays as it
        is."""
        adapter, self.adapter = self.adapter, None
        calls: dict[str, dict[str, str]] = {"/continue_generation": {}} if self._is_paused else {}
        if adapter is not None:
            calls["/unload_lora_adapter"] = {"lora_name": adapter.name}
        try:
            for path, body in calls.items():
                httpx.post(self.url + path, json=body, headers=self._http.headers, timeout=LOOK_S, trust_env=False)
        except httpx.TransportError:
            return

    async def model_info(self) -> dict[str, Any]:
        info: dict[str, Any] = await self._call("GET", "/model_info")
        return info

    async def server_info(self) -> dict[str, Any]:
        """It asks the scheduler, which answers after what it was told before."""
        info: dict[str, Any] = await self._call("GET", "/server_info")
        return info

    async def load(self) -> tuple[int, int]:
        """How many requests run in it and how many wait, over its data-parallel ranks."""
        answer = await self._call("GET", "/v1/loads?include=core", timeout_s=LOOK_S)
        ranks = answer["loads"]
        return sum(rank["num_running_reqs"] for rank in ranks), sum(rank["num_waiting_reqs"] for rank in ranks)

    async def generate(
        self, request_id: str, ids: Sequence[int], sampling: Mapping[str, Any], *, behaviour_logprobs: bool
    ) -> ServerReply:
        """Sample after ``ids``.  There is no time limit: a paused server answers when it goes on.

        ``behaviour_logprobs`` are those of the very distribution that is drawn from, after every truncation.
        """
        adapter = self.adapter
        body = _generation(request_id, ids, sampling, adapter, behaviour_logprobs=behaviour_logprobs)
        with self._asking(request_id):
            reply = await self._call("POST", "/generate", body, timeout_s=None)
        return _answer(reply["meta_info"], adapter, behaviour_logprobs=behaviour_logprobs)

    async def stream(
        self, request_id: str, ids: Sequence[int], sampling: Mapping[str, Any], *, behaviour_logprobs: bool
    ) -> AsyncGenerator[ServerReply, None]:
        """``generate`` in parts: each with the tokens that came since the last; the last one has a ``finish``.

        It is right for servers that tell all tokens in each part and for those that tell the new ones alone.
        """
        adapter = self.adapter
        body = _generation(request_id, ids, sampling, adapter, behaviour_logprobs=behaviour_logprobs)
        received, last = 0, None
        with self._asking(request_id):
            events = self._events("/generate", body | {"stream": True})
            async with aclosing(events):
                async for event in events:
                    meta = event["meta_info"]
                    if (finish := meta["finish_reason"]) is not None:
                        _check_finish(self.url, finish)
                    reply = _part(meta, received, adapter, behaviour_logprobs=behaviour_logprobs)
                    received += len(reply.token_ids)
                    if reply.finish:
                        last = reply  # given when the stream has ended, so that its connection can be used again
                    else:
                        yield reply
        if last is None:
            raise ServerGone(f"{self.url}/generate: the stream ends within a turn")
        yield last

    async def score(self, request_id: str, ids: Sequence[int], begin: int) -> ServerReply:
        """The log-prob of each of ``ids[begin:]`` after what stands before it, at temperature 1; ``begin`` >= 1.

        All of them, or none where it was aborted."""
        adapter = self.adapter
        body = _with_adapter(adapter) | {
            "rid": request_id,
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": begin - 1,
        }
        with self._asking(request_id):
            reply = await self._call("POST", "/generate", body, timeout_s=None)
        meta = reply["meta_info"]
        finish = meta["finish_reason"]
        scored = [] if finish["type"] == "abort" else meta["input_token_logprobs"][1:]
        version = str(adapter.version if adapter is not None else meta["weight_version"])
        return ServerReply(
            [entry[1] for entry in scored],
            [entry[0] for entry in scored],
            [version] * len(scored),
            finish["type"],
            str(finish.get("message", "")),
            *_read(meta),
        )

    async def chat(self, document: Mapping[str, Any]) -> tuple[int, str, bytes]:
        """Status, the header ``Retry-After`` and body of what OpenAI's chat completions answer.  Raises ServerGone."""
        timeout = httpx.Timeout(None, connect=CALL_S)
        try:
            response = await self._http.post("/v1/chat/completions", json=dict(document), timeout=timeout)
        except (httpx.TransportError, RuntimeError) as error:  # RuntimeError: the client was closed meanwhile
            raise ServerGone(f"{self.url}/v1/chat/completions: {str(error) or type(error).__name__}") from error
        return response.status_code, response.headers.get("Retry-After", ""), response.content

    async def abort(self, request_id: str) -> None:
        await self._call("POST", "/abort_request", {"rid": request_id})

    async def drain(self) -> None:
        """End all requests that are under way, with what they have, and wait until they are answered."""
        try:
            async with asyncio.timeout(LOAD_S):
                while self._under_way:
                    self._idle.clear()
                    await asyncio.gather(*(self.abort(request_id) for request_id in self._under_way))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ABORT_AGAIN_S):
                            await self._idle.wait()
        except TimeoutError as error:
            raise ServerGone(f"{self.url} does not answer what was aborted within {LOAD_S:.0f} s") from error

    @contextmanager
    def _asking(self, request_id: str) -> Iterator[None]:
        self._under_way.add(request_id)
        try:
            yield
        finally:
            self._under_way.discard(request_id)
            if not self._under_way:
                self._idle.set()

    async def pause(self) -> None:
        """When this returns the last token has been sampled.  Requests keep theirs and are read again later."""
        self._is_paused = True
        await self._call("POST", "/pause_generation", {"mode": "retract"})
        await self.server_info()

    async def proceed(self) -> None:
        await self._call("POST", "/continue_generation", {})
        self._is_paused = False

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Within it the server holds no batch, not even one whose answers have come: it refuses weights with one.

        It goes on also when what was to be done fails: a server of somebody else's would wait for ever."""
        await self.pause()
        try:
            yield
        finally:
            await self.proceed()

    async def load_folder(self, folder: str, version: int) -> None:
        """Safetensors by their Hugging Face names, from a folder that the server sees."""
        body = {"model_path": folder, "weight_version": str(version), "flush_cache": True}
        await self._call("POST", "/update_weights_from_disk", body, timeout_s=LOAD_S)

    @asynccontextmanager
    async def weight_update(self) -> AsyncIterator[None]:
        """Within it, weights come by ``load_tensors``."""
        await self._call("POST", "/begin_weight_update", {})
        yield
        await self._call("POST", "/end_weight_update", {}, timeout_s=LOAD_S)

    async def load_tensors(self, serialized: str, ranks: int, version: int) -> None:
        """A part of the weights, serialised for each of the server's ``ranks`` alike."""
        body = {"serialized_named_tensors": [serialized] * ranks, "weight_version": str(version), "flush_cache": True}
        await self._call("POST", "/update_weights_from_tensor", body, timeout_s=LOAD_S)

    async def load_adapter(self, name: str, folder: str) -> None:
        """An adapter in the form of peft, from a folder that the server sees."""
        await self._call("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": folder}, timeout_s=LOAD_S)

    async def load_adapter_tensors(self, name: str, config: Mapping[str, Any], serialized: str, ranks: int) -> None:
        """An adapter within the request, serialised for each of the server's ``ranks`` alike."""
        body = {"lora_name": name, "config_dict": dict(config), "serialized_named_tensors": [serialized] * ranks}
        await self._call("POST", "/load_lora_adapter_from_tensors", body, timeout_s=LOAD_S)

    async def unload_adapter(self, name: str) -> None:
        """It waits for the requests that name it."""
        await self._call("POST", "/unload_lora_adapter", {"lora_name": name}, timeout_s=LOAD_S)

    async def join_group(self, address: str, port: int, *, world_size: int, name: str) -> None:
        """The server's ranks become ranks 1 and up of a group over gloo, which rank 0 opens at ``address``."""
        body = {
            "master_address": address,
            "master_port": port,
            "rank_offset": 1,
            "world_size": world_size,
            "group_name": name,
            "backend": "gloo",
        }
        await self._call("POST", "/init_weights_update_group", body, timeout_s=PROBE_S)

    async def receive_tensors(self, tensors: Mapping[str, "Tensor"], group: str, version: int) -> None:
        """A part of the weights, which rank 0 of ``group`` broadcasts meanwhile in this order."""
        body = {
            "names": list(tensors),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
            "group_name": group,
            "weight_version": str(version),
            "flush_cache": True,
        }
        await self._call("POST", "/update_weights_from_distributed", body, timeout_s=LOAD_S)

    async def knows_token(self, token: int) -> bool:
        """Whether the token is of the server's vocabulary.  (A prompt that holds one which is not ends the server.)"""
        sampling = {"max_new_tokens": 1, "temperature": 0, "logit_bias": {str(token): 0.0}}
        try:
            await self._call("POST", "/generate", {"input_ids": [0], "sampling_params": sampling}, timeout_s=PROBE_S)
        except ServerRefused as error:
            if "logit_bias" in error.answer:
                return False
            raise
        return True

    async def _events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        timeout = httpx.Timeout(None, connect=CALL_S)
        try:
            async with self._http.stream("POST", path, json=body, timeout=timeout) as response:
                if response.status_code >= 400:
                    await response.aread()
                self._check(response, path)
                async for line in response.aiter_lines():
                    if line.startswith(EVENT) and (data := line.removeprefix(EVENT)) != "[DONE]":
                        event = json.loads(data)
                        if "error" in event:
                            raise ServerRefused(f"{self.url}{path} answered {event['error']}")
                        yield event
        except (httpx.TransportError, RuntimeError) as error:
            if isinstance(error, ServerRefused):
                raise
            raise ServerGone(f"{self.url}{path}: {str(error) or type(error).__name__}") from error

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = CALL_S
    ) -> Any:
        timeout = httpx.Timeout(timeout_s, connect=CALL_S)
        try:
            response = await self._http.request(method, path, json=body, timeout=timeout)
        except (httpx.TransportError, RuntimeError) as error:  # RuntimeError: the client was closed meanwhile
            raise ServerGone(f"{self.url}{path}: {str(error) or type(error).__name__}") from error
        self._check(response, path)
        return response.json() if response.content else None

    def _check(self, response: httpx.Response, path: str) -> None:
        answered = f"{self.url}{path} answered {response.status_code}"
        if response.status_code >= 500:
            raise ServerGone(f"{answered}: {response.text[:300]}" if self.is_known else answered)
        if response.status_code >= 400:
            raise ServerRefused(f"{answered}: {response.text[:600]}" if self.is_known else answered, response.text)


def _with_adapter(adapter: Adapter | None) -> dict[str, Any]:
    """A server calls the name of a loaded adapter its path."""
    return {} if adapter is None else {"lora_path": adapter.name}


def _generation(
    request_id: str,
    ids: Sequence[int],
    sampling: Mapping[str, Any],
    adapter: Adapter | None,
    *,
    behaviour_logprobs: bool,
) -> dict[str, Any]:
    body = _with_adapter(adapter) | {
        "rid": request_id,
        "input_ids": list(ids),
        "sampling_params": dict(sampling),
        "return_logprob": True,
        "logprob_start_len": -1,
    }
    if behaviour_logprobs:
        body |= {"return_sampling_mask": True, "sampling_logprobs_mode": "selected"}
    return body


def _check_finish(url: str, finish: Mapping[str, Any]) -> None:
    """A server that ends a stream with an error says so in its last part, where it would else answer with a status."""
    status = finish.get("status_code")
    if finish["type"] != "abort" or status is None:
        return
    refusal = ServerRefused if status < 500 else ServerGone
    raise refusal(f"{url}/generate answered {int(status)}: {str(finish.get('message'))[:600]}")


def _part(meta: Mapping[str, Any], received: int, adapter: Adapter | None, *, behaviour_logprobs: bool) -> ServerReply:
    """The tokens behind the first ``received``, of which a part holds some or none."""
    entries = meta.get("output_token_logprobs") or []
    total = meta.get("output_token_logprobs_length", len(entries))
    new = slice(received - (total - len(entries)), None)
    logprobs = [entry[0] for entry in entries]
    if behaviour_logprobs and entries:
        logprobs = list(meta["output_token_sampling_logprobs"])
    finish = meta["finish_reason"] or {"type": ""}
    return ServerReply(
        [entry[1] for entry in entries[new]],
        logprobs[new],
        _versions(meta, total, adapter)[received:],
        finish["type"],
        str(finish.get("message", "")),
        *_read(meta),
    )


def _answer(meta: Mapping[str, Any], adapter: Adapter | None, *, behaviour_logprobs: bool) -> ServerReply:
    sampled = meta["output_token_logprobs"]
    token_ids, logprobs = [entry[1] for entry in sampled], [entry[0] for entry in sampled]
    if behaviour_logprobs and sampled:
        logprobs = list(meta["output_token_sampling_logprobs"])
    finish = meta["finish_reason"]
    return ServerReply(
        token_ids,
        logprobs,
        _versions(meta, len(sampled), adapter),
        finish["type"],
        str(finish.get("message", "")),
        *_read(meta),
    )


def _read(meta: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, and those of them that it had read before; it tells none of what it never began."""
    return meta.get("prompt_tokens", 0), meta.get("cached_tokens", 0)


def _versions(meta: Mapping[str, Any], tokens: int, adapter: Adapter | None) -> list[str]:
    """That of the adapter, which is loaded once and never changed.  Without one, by the spans of the answer; a server
    that tells none has one version for all of it."""
    if adapter is not None:
        return [str(adapter.version)] * tokens
    spans = meta.get("weight_versions")
    if not spans:
        return [str(meta["weight_version"])] * tokens
    versions = [str(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
    if len(versions) != tokens:
        raise ServerRefused(f"the weight versions {spans} do not cover the {tokens} tokens of the answer")
    return versions
