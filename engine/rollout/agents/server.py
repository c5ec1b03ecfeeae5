"""The server of the model proxy, whose connections are bounded (``connection.py``).

A rollout's listens in the network of its sandbox alone, answers one key, and is gone with the rollout; that of served
models (``engine/serving/models``) answers the keys of teams.
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

from engine.rollout.agents.asked import Asked
from engine.rollout.agents.bodies import Bodies
from engine.rollout.agents.connection import USUAL_PATIENCE, Answers, Connection, Incoming, Patience
from engine.rollout.agents.door import Answerer, Completed, Door
from engine.rollout.agents.live import Live
from engine.rollout.agents.proxy import ModelProxy, pieces_shown

MOST_CONNECTIONS = 64

log = logging.getLogger(__name__)


class RolloutDoor:
    """One key, for one rollout.  A ``Door`` and its ``Answerer``."""

    def __init__(self, proxy: ModelProxy, key: str) -> None:
        self._proxy, self._key = proxy, key.encode()
        self._ids, self.bodies = count(), Bodies()

    def answerer(self, keys: Sequence[bytes]) -> Answerer | None:
        """Every key that is given must be the right one, and one must be given."""
        return self if keys and all(hmac.compare_digest(key, self._key) for key in keys) else None

    def begin(self) -> None:
        """Calls are bounded by the rollout's budget, once they are read."""

    def models(self) -> Sequence[str]:
        return ("policy",)

    def new_id(self) -> str:
        return str(next(self._ids))

    async def complete(self, asked: Asked, live: Live | None) -> Completed:
        calls = await self._proxy.complete(asked, live)
        return Completed(calls, [pieces_shown(asked, call, self._proxy.renderer) for call in calls])

    def refuse(self, kind: str) -> None:
        self._proxy.refuse(kind)

    def failed(self) -> None:
        if self._proxy.failure is None:  # else the episode raises it
            log.exception("an agent's call failed")
            self._proxy.refuse("failed")


class ProxyServer:
    def __init__(
        self, door: Door, patience: Patience = USUAL_PATIENCE, *, most_connections: int = MOST_CONNECTIONS
    ) -> None:
        self._door, self._patience, self._most_connections = door, patience, most_connections
        self._connections: set[asyncio.Task[None]] = set()
        self._closing = False
        self._answers = Answers()

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Takes ``listener`` over.  At the end of the block no connection and no call is left."""
        server = await asyncio.get_running_loop().create_server(self._protocol, sock=listener)
        try:
            yield
        finally:
            self._closing = True
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    @property
    def answering(self) -> int:
        """How many requests are being answered."""
        return self._answers.under_way

    async def finish(self, most_s: float) -> None:
        """Let what is being answered be answered to its end, for so long at most; the door refuses what is new."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._answers.over(), most_s)

    def _protocol(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(Incoming(), self._connected)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        assert isinstance(reader, Incoming)
        if len(self._connections) >= self._most_connections:
            writer.transport.abort()
            return
        self._connections.add(connection)
        # asyncio does so itself where it knows that the listener speaks TCP, which not every listener tells.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What is written is the kernel's then, and the end of the connection cuts nothing of it.
        writer.transport.set_write_buffer_limits(0)
        try:
            await Connection(self._door, self._patience, self._answers, reader, writer).serve()
        except (OSError, TimeoutError):
            log.debug("an agent's connection ended in the middle", exc_info=True)
        except asyncio.CancelledError:
            if not self._closing:
                raise
        except Exception:
            self._door.failed()
        finally:
            self._connections.discard(connection)
            writer.transport.abort()
