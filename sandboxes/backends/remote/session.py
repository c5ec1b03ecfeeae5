"""Requests for one sandbox at the service, from its opening to its end.

A heartbeat keeps the sandbox in use: if this process dies the service closes it soon, and if the service is gone the
sandbox is lost here, whatever is being waited for.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx
from pydantic import BaseModel

from sandboxes.backends.remote.connection import Connection
from sandboxes.backends.remote.wire import SandboxView
from sandboxes.interface import SandboxFrozen, SandboxLost, SandboxUnavailable

BEAT_S = 20.0
BEAT_WITHIN_S = 10.0


class Session:
    """Belongs to one event loop.  Once the sandbox is lost or frozen, no request is sent any more but by ``asked``."""

    def __init__(self, connection: Connection, id_: str) -> None:
        self.connection = connection
        self.path = f"/v1/sandboxes/{id_}"
        self.lost: str | None = None
        self.frozen: str | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._posting: asyncio.Task[None] | None = None
        self._beating = asyncio.ensure_future(self._beat())

    async def ask(
        self,
        method: str,
        verb: str,
        body: BaseModel | None = None,
        *,
        again: bool = False,
        content: bytes | None = None,
        params: Mapping[str, str | int | float] | None = None,
    ) -> httpx.Response:
        """Raises what the service says, ``SandboxLost`` if it says nothing."""
        self.refuse_if_gone()
        await self.all_posted()
        return await self.asked(method, verb, body, again=again, content=content, params=params)

    async def asked(self, method: str, verb: str, body: BaseModel | None = None, **more: Any) -> httpx.Response:
        """Ask the service, also about a frozen sandbox."""
        asking = asyncio.ensure_future(self.connection.ask(method, f"{self.path}/{verb}", body, **more))
        try:
            waited_for: set[asyncio.Future[Any]] = {asking, self._gone}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                self.refuse_if_gone()
            return asking.result()
        except SandboxLost as error:
            self.lose(str(error))
            raise
        except SandboxFrozen as error:
            self.frozen = self.frozen or str(error)
            raise
        finally:
            asking.cancel()

    def post(self, method: str, verb: str, body: BaseModel) -> None:
        """Say something without waiting for the answer; what is asked later waits until it was heard."""
        self._posting = asyncio.ensure_future(self._post_after(self._posting, method, verb, body))

    async def all_posted(self) -> None:
        """Return when all that was told has been heard."""
        if self._posting is not None:
            await asyncio.shield(self._posting)

    def refuse_if_gone(self) -> None:
        if self.frozen is not None:
            raise SandboxFrozen(self.frozen)
        if self.lost is not None:
            raise SandboxLost(self.lost)

    def lose(self, reason: str) -> None:
        """The first reason counts; whoever waits for an answer learns it."""
        if self.lost is None:
            self.lost = reason
        if not self._gone.done():
            self._gone.set_result(None)

    def end_beating(self) -> None:
        self._beating.cancel()

    async def _post_after(self, before: "asyncio.Task[None] | None", method: str, verb: str, body: BaseModel) -> None:
        if before is not None:
            await before
        with suppress(SandboxLost, SandboxFrozen):  # kept: the next call will say so
            await self.asked(method, verb, body, again=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                answer = await self.connection.ask("GET", self.path, again=True, timeout_s=BEAT_WITHIN_S)
            except (SandboxLost, SandboxUnavailable) as error:
                self.lose(str(error))
                return
            view = SandboxView.model_validate_json(answer.content)
            if view.state == "frozen":
                self.frozen = self.frozen or view.reason
            if view.state in ("lost", "closed"):
                self.lose(view.reason or view.state)
                return
