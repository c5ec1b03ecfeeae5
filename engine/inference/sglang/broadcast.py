"""New weights over a process group: the engine is rank 0, and the ranks of one server are the others.

A group is made with each server that comes up, over gloo: it takes tensors of the host, so that the engine needs no GPU
beside those of the servers, and a server with GPUs copies what arrives.  Who meets where is written into a TCP store,
which listens, as gloo does, on the one address of this machine that the server is reached from: nobody asks for a key
there, so it is loopback for servers that the engine starts, and a network of one's own for others.

The names of the store's keys are those under which ``torch.distributed`` looks for them on the server's side.
"""

import asyncio
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import torch
import torch.distributed
from torch import Tensor

from engine.inference.sglang.client import PROBE_S, ServerGone, SglangClient
from engine.inference.sglang.weights import PART_BYTES, WholeWeights, parts_of
from engine.models.weights import WeightSource

C10D: Any = torch.distributed
"""Whose stubs know neither stores nor what a gloo group can do."""
TIMEOUT = timedelta(seconds=PROBE_S)
"""For all ranks to meet, and for one tensor."""


class BroadcastExchange(WholeWeights):
    """An ``Exchange``.  ``ranks`` are those of each server; the newest weights stay in memory, in ``dtype``."""

    def __init__(self, dtype: torch.dtype, *, ranks: int) -> None:
        self.version: int | None = None
        self._dtype, self._ranks = dtype, ranks
        self._tensors: dict[str, Tensor] = {}
        self._groups: WeakKeyDictionary[SglangClient, ServerGroup] = WeakKeyDictionary()
        """A server that was started again has another client, and so another group."""

    async def take(self, source: WeightSource, version: int) -> None:
        self._tensors = await asyncio.to_thread(lambda: dict(source.tensors()))
        self.version = version

    async def give(self, client: SglangClient) -> None:
        assert self.version is not None  # nothing is given before something was taken
        group = self._groups.pop(client, None) or await joined(client, self._ranks)
        async with client.weight_update():
            for part in parts_of(self._tensors.items(), PART_BYTES, self._dtype):
                await _both(client.receive_tensors(part, group.name, self.version), group.send, list(part.values()))
        self._groups[client] = group  # one that broke is not used again

    def close(self) -> None:
        self._tensors = {}
        self._groups.clear()


@dataclass
class ServerGroup:
    """The engine's end of the group with one server.  ``store``, a TCPStore, lives as long as ``group``, over gloo.

    Its name is new each time: a server takes none twice, and one given by URL may have been in other runs' groups.
    """

    name: str
    store: Any
    group: Any

    def send(self, tensors: Sequence[Tensor]) -> None:
        """One after the other, as the server receives them.  Raises RuntimeError where it is gone."""
        for tensor in tensors:
            options = C10D.BroadcastOptions()
            options.rootRank = 0
            self.group.broadcast([tensor], options).wait()


async def joined(client: SglangClient, ranks: int) -> ServerGroup:
    """A new group with all ranks of a server.  Raises ServerGone and ServerRefused."""
    address, name = address_towards(client.url), f"palestra-{uuid.uuid4().hex}"
    listening = socket.create_server((address, 0))
    port: int = listening.getsockname()[1]
    store = C10D.TCPStore(
        address,
        port,
        world_size=1 + ranks,
        is_master=True,
        timeout=TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    made: list[Any] = []
    await _both(
        client.join_group(address, port, world_size=1 + ranks, name=name),
        lambda: made.append(_rank_0(store, name, address, 1 + ranks)),
    )
    return ServerGroup(name, store, made[0])


def _rank_0(store: Any, name: str, address: str, size: int) -> Any:
    options = C10D.ProcessGroupGloo._Options()
    options._devices = [C10D.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = TIMEOUT
    keys = C10D.PrefixStore("cpu/", C10D.PrefixStore(f"{name}/", C10D.PrefixStore(name, store)))
    return C10D.ProcessGroupGloo(keys, 0, size, options)


async def _both(call: Awaitable[None], ours: Callable[..., None], *arguments: object) -> None:
    """The server's side of something and ours at once.  What the server says of a failure counts before our own."""
    asked = asyncio.ensure_future(call)
    done = asyncio.ensure_future(asyncio.to_thread(ours, *arguments))
    await asyncio.wait({asked, done}, return_when=asyncio.FIRST_EXCEPTION)
    if asked.done() and (failure := asked.exception()) is not None:
        done.add_done_callback(lambda ended: ended.exception())  # it ends with the group, and knows less
        raise failure
    try:
        await done
    except RuntimeError as error:
        asked.cancel()
        raise ServerGone(f"the group of its weights broke: {error}") from error
    await asked


def address_towards(url: str) -> str:
    """The address of this machine, by which a server at ``url`` is reached, and reaches us.  Raises ServerGone where
    none does."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((parts.hostname, parts.port or 80))
        except OSError as error:
            raise ServerGone(f"{url} cannot be reached: {error}") from error
        address: str = probe.getsockname()[0]
    return address
