"""The websockets: ``/live/runs/<uuid>/?after=<seq>``, ``/live/conversations/<uuid>/?after=<seq>`` and
``/ws/alerts?after=<id>``.

They only speak; what a viewer says is ignored.  The frames are the hubs'; the door is the pages'.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import psycopg
import structlog
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.http import Http404
from psycopg_pool import PoolTimeout

from webapp.accounts.access import caller_of
from webapp.accounts.models import Membership
from webapp.accounts.sessions import SessionStore
from webapp.conversations.access import conversation_for
from webapp.live.alerts import Teams, alert_hub
from webapp.live.conversations import conversation_hub
from webapp.live.log import RunVanished
from webapp.live.runs import run_hub
from webapp.runs.access import run_for

ENDED = 4000
"""The run is over and everything was sent: do not come back."""
TRY_AGAIN = 4001
SIGNED_OUT = 4401
"""The session has ended: sign in again."""
REFUSED = 4404
"""What is not there and what is not for the viewer is closed alike."""
RECHECK_S = 30.0
"""Whoever was removed from the team or has signed out stops seeing the run after at most this long."""

log = structlog.get_logger(__name__)


class _Speaker(AsyncWebsocketConsumer):
    channel_layer_alias = "none"
    """The hub listens to the channel layer; a viewer without it does not fail when the layer is down."""

    pump: asyncio.Task[None] | None = None
    end = sys.maxsize
    """No cursor of ours lies beyond; whoever comes with one would wait in silence until the log has got there."""

    async def connect(self) -> None:
        """A browser is told the code of a socket that was open; a refused handshake looks to it like a dead server."""
        after = _cursor_in(self.scope["query_string"])
        refusal = await self.refusal()
        await self.accept()
        if refusal or after is None or after > self.end:
            await self.close(refusal or REFUSED)
            return
        self.pump = asyncio.create_task(self.speak(after))

    async def disconnect(self, code: int) -> None:
        if self.pump:
            self.pump.cancel()
            await asyncio.gather(self.pump, return_exceptions=True)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        """Viewers have nothing to say."""

    async def refusal(self) -> int | None:
        """Return the code to close with; None while the door is open."""
        raise NotImplementedError

    async def user(self) -> Any:
        """Whoever the session belongs to now: it may have ended since the socket was opened."""
        return await get_user({"session": SessionStore(self.scope["session"].session_key)})

    def frames(self, after: int) -> AsyncGenerator[str, None]:
        raise NotImplementedError

    async def speak(self, after: int) -> None:
        code = TRY_AGAIN
        try:
            code = await self.send_frames(after)
        except (psycopg.OperationalError, PoolTimeout) as error:
            log.warning("live.viewer_lost", path=self.scope["path"], error=str(error))
        except RunVanished:
            code = REFUSED
        finally:
            await self.close(code)

    async def send_frames(self, after: int) -> int:
        """Send until there is no more to come or the viewer may not look any more; return why."""
        checked_at = time.monotonic()
        async with aclosing(self.frames(after)) as frames:
            async for text in frames:
                if time.monotonic() - checked_at > RECHECK_S:
                    if refusal := await self.refusal():
                        return refusal
                    checked_at = time.monotonic()
                await self.send(text_data=text)
        return ENDED


class Nowhere(AsyncWebsocketConsumer):
    """The consumer of every other path."""

    channel_layer_alias = "none"

    async def connect(self) -> None:
        await self.close(REFUSED)


class RunConsumer(_Speaker):
    async def refusal(self) -> int | None:
        self.run_id: UUID = self.scope["url_route"]["kwargs"]["run_id"]
        user = await self.user()
        if not user.is_authenticated:
            return SIGNED_OUT
        try:
            self.end = (await database_sync_to_async(run_for)(user, self.run_id)).last_seq
        except Http404:
            return REFUSED
        return None

    async def frames(self, after: int) -> AsyncGenerator[str, None]:
        async with run_hub(self.run_id) as hub:
            async for text in hub.frames(after):
                yield text


class ConversationConsumer(_Speaker):
    async def refusal(self) -> int | None:
        self.conversation_id: UUID = self.scope["url_route"]["kwargs"]["conversation_id"]
        user = await self.user()
        if not user.is_authenticated:
            return SIGNED_OUT
        try:
            self.end = (await database_sync_to_async(conversation_for)(user, self.conversation_id)).last_seq
        except Http404:
            return REFUSED
        return None

    async def frames(self, after: int) -> AsyncGenerator[str, None]:
        async with conversation_hub(self.conversation_id) as hub:
            async for text in hub.frames(after):
                yield text


class AlertConsumer(_Speaker):
    """The alerts of all teams that the viewer is in when it connects; one who joins or leaves a team comes again."""

    teams: Teams | None = None

    async def refusal(self) -> int | None:
        user = await self.user()
        if not user.is_authenticated:
            return SIGNED_OUT
        teams = await database_sync_to_async(_teams_of)(user)
        if self.teams is None:
            self.teams = teams
        if not teams:
            return REFUSED
        return None if teams == self.teams else TRY_AGAIN

    async def frames(self, after: int) -> AsyncGenerator[str, None]:
        assert self.teams is not None
        async with alert_hub(self.teams) as hub:
            async for text in hub.frames(self.teams, after):
                yield text


def _teams_of(user: Any) -> Teams:
    """Sorted; none for those who may not sign in any more."""
    try:
        user = caller_of(user).user
    except Http404:
        return ()
    found = Membership.objects.filter(user=user, user__is_active=True).order_by("team_id")
    return tuple(found.values_list("team_id", flat=True))


def _cursor_in(query: bytes) -> int | None:
    """``after``; 0 if it is not given, None if it is no number of an event."""
    text = parse_qs(query.decode("latin-1")).get("after", ["0"])[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
