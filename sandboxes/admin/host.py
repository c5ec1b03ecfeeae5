"""One host, as its admin sees it: where it is, whether it answers, what it has room for."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
from pydantic import ValidationError

from sandboxes.admin.hosts_file import HostEntry
from sandboxes.service.capacity import Capacity, Room
from sandboxes.service.host_routes import HostView

CONNECT_S = 3.0
LOOK_S = 5.0
"""A host that takes longer to say how it is has missed a look."""
MISSES = 3
"""Looks in a row; then the host is down, and what it had is lost."""
PAUSES_S = (0.1, 0.4)


class HostUnreachable(Exception):
    """There is no answer.  What was asked may have been done, or not."""


class Host:
    """Belongs to one event loop."""

    def __init__(self, entry: HostEntry) -> None:
        self.entry = entry
        self.room = Room(entry.name, is_open=False)
        self.view: HostView | None = None
        """What it said last; None before it said anything, and once it is down."""
        self.fault: str | None = None
        """Why it is not up; None if it is."""
        self.known = asyncio.Event()
        """Set once what it has is known, or that it is down."""
        self._misses = 0
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._client = _client(entry)

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def is_up(self) -> bool:
        return self.view is not None

    @property
    def is_down(self) -> bool:
        """Whether it has missed so many looks that what it had is lost."""
        return self._misses >= MISSES

    @property
    def is_draining(self) -> bool:
        return self.entry.draining or (self.view is not None and self.view.draining)

    async def change(self, entry: HostEntry) -> None:
        """Take another address or token, or begin or end draining."""
        former = self._client
        moved = (entry.url, entry.token) != (self.entry.url, self.entry.token)
        self.entry = entry
        if moved:
            self._client = _client(entry)
            await former.aclose()
        self._furnish()

    async def look(self) -> HostView | None:
        """Ask how it is.  Return None for a look that it missed."""
        client = self._client
        try:
            response = await client.get("/v1/host", timeout=httpx.Timeout(LOOK_S, connect=CONNECT_S))
            view = HostView.model_validate_json(response.raise_for_status().content)
        except (httpx.HTTPError, ValidationError) as error:
            self._missed(_why(error))
            return None
        except RuntimeError:  # all that httpx says of a client that was closed before it could send
            if not client.is_closed:
                raise
            self._missed("it has moved or was taken out")
            return None
        self.view, self.fault, self._misses = view, None, 0
        if self._gone.done():
            self._gone = asyncio.get_running_loop().create_future()
        self._furnish()
        return view

    async def ask(
        self,
        method: str,
        path: str,
        *,
        again: bool,
        content: bytes | None = None,
        params: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Ask something, and wait for the answer as long as the host is up.  Raises ``HostUnreachable``.

        ``again``: whether it may be sent again when nobody knows what became of it.
        """
        pauses = list(PAUSES_S)
        while True:
            try:
                return await self._asked(method, path, content=content, params=params, headers=headers)
            except httpx.TransportError as error:
                never_left = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not pauses or not (again or never_left):
                    raise HostUnreachable(f"host '{self.name}' does not answer: {_why(error)}") from error
            await asyncio.sleep(pauses.pop(0))

    async def close(self) -> None:
        """It was taken out: nobody who asks it is answered any more."""
        if not self._gone.done():
            self._gone.set_result(self._taken_out)
        await self._client.aclose()

    @property
    def _taken_out(self) -> str:
        return f"host '{self.name}' was taken out"

    async def _asked(self, method: str, path: str, **sent: Any) -> httpx.Response:
        client = self._client
        asking = asyncio.ensure_future(client.request(method, path, **sent))
        waited_for: set[asyncio.Future[Any]] = {asking, self._gone}
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise HostUnreachable(self._gone.result())
            response = asking.result()
        except RuntimeError as error:  # all that httpx says of a client that was closed before it could send
            if not client.is_closed:
                raise
            if client is not self._client:
                raise httpx.ConnectError("it has moved") from error
            raise HostUnreachable(self._taken_out) from error
        finally:
            asking.cancel()
        if response.status_code in (401, 403):
            raise HostUnreachable(f"host '{self.name}' does not take the token that its admin has for it")
        return response

    def _missed(self, why: str) -> None:
        self._misses += 1
        self.fault = why
        self.room.is_open = False
        if self.is_down:
            self.view = None
            if not self._gone.done():
                self._gone.set_result(f"host '{self.name}' is down: {why}")

    def _furnish(self) -> None:
        """Let the gate know what there is room for."""
        self.room.is_open = self.is_up and self.fault is None and not self.is_draining
        if self.view is not None:
            stats = self.view.stats
            self.room.capacity = Capacity(
                max(stats.capacity_sandboxes - self.view.others_sandboxes, 0),
                max(stats.capacity_memory_mib - self.view.others_memory_mib, 0),
            )


def _client(entry: HostEntry) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=entry.url.rstrip("/"),
        headers={"Authorization": f"Bearer {entry.token}"},
        timeout=httpx.Timeout(None, connect=CONNECT_S),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=30.0),
        trust_env=False,  # no proxy of the environment sees the token
        follow_redirects=False,
    )


def _why(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"it answers {error.response.status_code}"
    return f"{type(error).__name__} {error}".strip()
