"""The servers of a run: started, watched, restarted, ended.

One task tends each server:

    started -> ready -> has the newest weights -> up ... dead -> (back-off) -> started

Servers given by URL are not started or ended, else it is the same.  Whoever wants one waits in ``up`` until there is
one.  A server that fails before it was ever up would fail again, and so does one that serves another model: that ends
the fleet, with the reason (``ServersLost``).
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from engine.inference.interface import Level
from engine.inference.sglang.client import ServerGone, ServerRefused, SglangClient
from engine.inference.sglang.process import ServerFailed, ServerProcess
from engine.inference.sglang.weights import Exchange
from engine.spec.usage import Health, ServerReading, ServerRole

LOG = logging.getLogger(__name__)
LONGEST_BACKOFF_S = 60.0
READY_LOOK_S = 0.25


class ServersLost(RuntimeError):
    """There is no server left, and none will come back."""


@dataclass(frozen=True, slots=True)
class Timings:
    start_timeout_s: float
    health_every_s: float
    health_misses: int
    restarts: int
    backoff_s: float = 1.0
    """Before the first restart; doubled with each."""


@dataclass
class Server:
    """One server.  ``process`` is None where it is given by URL."""

    number: int
    process: ServerProcess | None
    client: SglangClient
    is_up: bool = False
    was_up: bool = False
    is_given_up: bool = False
    role: ServerRole = "policy"
    reason: Exception | None = None
    """Why it is not up any more."""
    version: int = 0
    restarts: int = 0
    in_hand: int = 0
    """Requests that it has not answered yet."""
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    busy_seconds: float = 0.0
    """In which it had something in hand."""
    busy_since: float = 0.0
    began_at: float = field(default_factory=time.time)
    """Since when tokens are counted; Unix time in seconds."""
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by whoever finds out."""

    def began(self, now: float) -> None:
        """A request of it begins; ``now`` in seconds, as for ``ended``."""
        if not self.in_hand:
            self.busy_since = now
        self.in_hand += 1

    def ended(self, now: float) -> None:
        self.in_hand -= 1
        if not self.in_hand:
            self.busy_seconds += now - self.busy_since

    @property
    def health(self) -> Health:
        if self.is_given_up:
            return "given-up"
        return "up" if self.is_up else ("down" if self.was_up else "starting")

    @property
    def name(self) -> str:
        whose = "SGLang server" if self.role == "policy" else f"SGLang server of the {self.role}"
        return f"{whose} {self.number} ({self.client.url})"


async def reading_of(server: Server) -> ServerReading:
    """With its own count of what runs and waits in it, where it answers."""
    running, queued = None, None
    if server.is_up:
        try:
            running, queued = await server.client.load()
        except (ServerGone, ServerRefused):  # its watcher says so, if it lasts
            running, queued = None, None
    return ServerReading(
        number=server.number,
        url=server.client.url,
        health=server.health,
        reason="" if server.is_up or server.reason is None else str(server.reason),
        running=running,
        queued=queued,
        in_hand=server.in_hand,
        sampled_tokens=server.sampled_tokens,
        prompt_tokens=server.prompt_tokens,
        cached_tokens=server.cached_tokens,
        restarts=server.restarts,
        version=server.version,
        began_at=server.began_at,
        pid=None if server.process is None else server.process.pid,
        role=server.role,
    )


class Expectation(Protocol):
    async def identify(self, client: SglangClient) -> None:
        """Look at what a server says of itself, which changes nothing there.  Raises as ``check`` does."""
        ...

    async def check(self, client: SglangClient) -> None:
        """Raises where a server is not what it is meant to be; ServerGone, ServerRefused."""
        ...


class Fleet:
    """All servers of one model.  Made and used on one event loop.

    ``exchange`` is None where they never get weights; ``field`` is where the spec speaks of them.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        exchange: Exchange | None,
        expected: Expectation,
        timings: Timings,
        *,
        field: str = "resources.sglang",
    ) -> None:
        self.servers = list(servers)
        self._exchange, self._expected, self._timings, self._field = exchange, expected, timings, field
        self._changed = asyncio.Condition()
        self.weights = asyncio.Lock()
        """Held while weights are exchanged, so that a server which comes up has them or is not counted yet."""
        self._failure: Exception | None = None
        self._tending = {server.number: asyncio.create_task(self._tend(server)) for server in self.servers}
        self._reports: list[tuple[Level, str]] = []

    async def up(self) -> list[Server]:
        """Those that answer, at least one.  Raises ServersLost, or what made the fleet end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or any(server.is_up for server in self.servers))
        if self._failure is not None:
            raise self._failure
        return [server for server in self.servers if server.is_up]

    async def all_started(self) -> None:
        """Wait until no server is still on its way for the first time."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or all(server.was_up for server in self.servers))
        if self._failure is not None:
            raise self._failure

    def lost(self, server: Server, error: Exception) -> None:
        """A request found out that the server is gone."""
        if server.is_up:
            server.is_up, server.reason = False, error
            self._report("warning", f"{server.name} is gone: {error}")
            server.dead.set()

    async def load_weights(self) -> None:
        """Bring the exchange's newest weights to all that are up; who comes up later gets them then."""
        async with self.weights:
            await asyncio.gather(*(self._bring_weights(server) for server in self.servers if server.is_up))

    @property
    def failure(self) -> Exception | None:
        """Why there is no server left, once there is none."""
        return self._failure

    def reports(self) -> list[tuple[Level, str]]:
        """What happened to the servers since the last call, for the run's log."""
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        """End what was started; a server of somebody else's is left without our adapter.  Twice is fine."""
        for task in self._tending.values():
            task.cancel()
        for server in self.servers:
            server.is_up = False
            if server.process is not None:
                server.process.stop()
            else:
                server.client.leave()

    async def _bring_weights(self, server: Server) -> None:
        assert self._exchange is not None
        try:
            await self._exchange.give(server.client)
        except ServerGone as error:
            self.lost(server, error)
        else:
            assert self._exchange.version is not None
            server.version = self._exchange.version

    async def _tend(self, server: Server) -> None:
        try:
            while (reason := await self._life(server)) and server.restarts < self._timings.restarts:
                server.restarts += 1
                await asyncio.sleep(min(self._timings.backoff_s * 2 ** (server.restarts - 1), LONGEST_BACKOFF_S))
            self._give_up(server, reason)
        except Exception as error:  # nobody awaits this task: whoever wants a server is told
            self._failure = error
        await self._tell()

    async def _life(self, server: Server) -> Exception:
        """From its start to its death, of which the reason is returned.  Raises what would come again."""
        try:
            await self._bring_up(server)
        except (ServerGone, ServerFailed, ServerRefused) as error:
            if not server.was_up:
                raise ServersLost(f"{server.name} did not start: {error}") from error
            self._report("warning", f"{server.name} did not come back: {error}")
            return error
        return await self._watch(server)

    def _give_up(self, server: Server, reason: Exception) -> None:
        server.is_given_up = True
        self._report("warning", f"{server.name} is given up after {server.restarts} restarts")
        if all(other.is_given_up for other in self.servers):
            self._failure = ServersLost(
                f"all SGLang servers are lost, the last one for this: {reason}; raise {self._field}.restarts, or "
                f"lower {self._field}.memory_fraction if they ran out of memory"
            )
            self._failure.__cause__ = reason

    async def _bring_up(self, server: Server) -> None:
        server.dead.clear()
        if server.process is not None:
            server.process.start()
            await server.client.close()
            server.client = SglangClient(server.process.url, api_key=server.process.api_key)
        await self._ready(server)
        if server.process is None:
            await self._expected.identify(server.client)  # one that is not ours is left as it is
            await self._take_over(server.client)
        await self._checked(server)
        async with self.weights:
            await self._bring_newest(server)
            server.is_up = server.was_up = True
        again = f" again (restart {server.restarts})" if server.restarts else ""
        process = f" as process {server.process.pid}" if server.process is not None else ""
        self._report("info", f"{server.name} is up{again}{process}")
        await self._tell()

    async def _take_over(self, client: SglangClient) -> None:
        """A server of somebody else's may be as a killed attempt left it, or as we lost it."""
        if self._exchange is not None:
            await self._exchange.go_on(client)
        if client.adapter is not None:
            with suppress(ServerRefused):  # one that its owner has started again has none
                await client.unload_adapter(client.adapter.name)
            client.adapter = None

    async def _bring_newest(self, server: Server) -> None:
        """It may hold the batch of the checks still, though they are answered."""
        if self._exchange is not None and self._exchange.version is not None:
            await self._exchange.hold(server.client)
            try:
                await self._exchange.give(server.client)
            finally:  # also where it refuses them: one of somebody else's would wait for ever
                await self._exchange.go_on(server.client)
            server.version = self._exchange.version

    async def _ready(self, server: Server) -> None:
        deadline = asyncio.get_running_loop().time() + self._timings.start_timeout_s
        while True:
            if server.process is not None:
                server.process.check()
            try:
                await server.client.server_info()
                return
            except ServerGone as error:
                if asyncio.get_running_loop().time() > deadline:
                    took = f"{self._timings.start_timeout_s:.0f} s ({self._field}.start_timeout_s)"
                    raise ServerFailed(f"{server.name} does not answer after {took}: {error}") from error
            await asyncio.sleep(READY_LOOK_S)

    async def _checked(self, server: Server) -> None:
        """A server that answers and then never samples its first token would be waited for without an end.

        One that the engine started and that is late with an answer, on a busy machine, is asked again."""
        try:
            async with asyncio.timeout(self._timings.start_timeout_s):
                while True:
                    if await self._passes(server):
                        return
                    await asyncio.sleep(READY_LOOK_S)
        except TimeoutError as error:
            took = f"{self._timings.start_timeout_s:.0f} s ({self._field}.start_timeout_s)"
            raise ServerFailed(f"{server.name} does not sample its first tokens within {took}") from error

    async def _passes(self, server: Server) -> bool:
        try:
            await self._expected.check(server.client)
        except ServerGone:
            if server.process is None:
                raise
            server.process.check()
            return False
        server.client.is_known = True
        return True

    async def _watch(self, server: Server) -> Exception:
        """Return when the server is dead, and why."""
        misses = 0
        while not server.dead.is_set():
            try:
                async with asyncio.timeout(self._timings.health_every_s):
                    await server.dead.wait()
            except TimeoutError:
                misses = 0 if await self._answers(server) else misses + 1
            if misses >= self._timings.health_misses:
                self.lost(server, ServerGone(f"no answer to {misses} looks"))
        if server.process is not None:
            server.process.stop()
        else:  # its turns would wait for an answer as long as it is silent
            await server.client.close()
            server.client = server.client.anew()
        assert server.reason is not None  # ``lost`` says it before it sets ``dead``
        return server.reason

    async def _answers(self, server: Server) -> bool:
        if server.process is not None and server.process.has_ended():
            self.lost(server, ServerGone("its process has ended"))
        try:
            await server.client.model_info()
        except ServerGone:
            return False
        return True

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _report(self, level: Level, message: str) -> None:
        LOG.log(logging.WARNING if level == "warning" else logging.INFO, message)
        self._reports.append((level, message))
