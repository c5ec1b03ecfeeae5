"""Live viewers of a conversation: every entry once, in two tabs alike; nothing for strangers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.db import connection
from django.test import Client
from django.utils import timezone

from webapp.accounts.models import User
from webapp.conversations import services
from webapp.conversations.log import append
from webapp.conversations.models import Conversation, State
from webapp.live.consumer import REFUSED, SIGNED_OUT
from webapp.live.pool import close_pool
from webapp.runs.models import Checkpoint, Run

pytestmark = pytest.mark.django_db(transaction=True)
ORIGIN = b"http://127.0.0.1:8700"
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
async def _connections_are_given_back() -> AsyncIterator[None]:
    yield
    await close_pool()
    await sync_to_async(lambda: connection.close())()


@pytest.fixture
def conversation(run: Run, bob: User) -> Conversation:
    Checkpoint.objects.create(run=run, step=1, path="x", size_bytes=1, seconds=0.1, at=timezone.now())
    return services.begin_conversation(run, 1, with_tools=False, acting_user=bob)


class Tab:
    def __init__(self, on: Conversation, user: User | None, *, after: Any = 0, origin: bytes = ORIGIN) -> None:
        self.path, self.user, self.after, self.origin = f"/live/conversations/{on.id}/", user, after, origin

    async def __aenter__(self) -> "Tab":
        from webapp.asgi import application

        headers = [(b"origin", self.origin)]
        if self.user is not None:
            client = Client()
            await sync_to_async(client.force_login)(self.user)
            value = client.cookies[settings.SESSION_COOKIE_NAME].value
            headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={value}".encode()))
        scope = {"type": "websocket", "path": self.path, "headers": headers, "subprotocols": [],
                 "query_string": f"after={self.after}".encode()}  # fmt: skip
        self.socket = ApplicationCommunicator(application, scope)
        await self.socket.send_input({"type": "websocket.connect"})
        self.answer = await self.socket.receive_output(PATIENCE_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1005})
        await self.socket.wait(PATIENCE_S)

    async def sees(self, until: int) -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []
        while not seen or seen[-1][0] < until:
            frame = await self.frame()
            seen += [(event["seq"], event["kind"]) for event in frame["events"]]
        return seen

    async def frame(self) -> dict[str, Any]:
        message = await self.socket.receive_output(PATIENCE_S)
        assert message["type"] == "websocket.send", message
        return dict(json.loads(message["text"]))

    async def closing_code(self) -> int:
        while (message := await self.socket.receive_output(PATIENCE_S))["type"] != "websocket.close":
            pass
        return int(message["code"])


async def test_two_tabs_see_every_entry_once_and_one_that_comes_back_only_what_it_lacks(
    conversation: Conversation, bob: User, victor: User
) -> None:
    say = sync_to_async(append)
    await say(conversation.id, [("send", {"messages": []}), ("ready", {})])
    async with Tab(conversation, bob) as first, Tab(conversation, victor) as second:
        assert await first.sees(2) == await second.sees(2) == [(1, "send"), (2, "ready")]
        await say(conversation.id, [("said", {"message": "<script>\u2028"})], state=State.READY)
        assert await first.sees(3) == await second.sees(3) == [(3, "said")]
    async with Tab(conversation, bob, after=2) as again:
        assert await again.sees(3) == [(3, "said")]


async def test_a_change_of_state_alone_is_told(conversation: Conversation, bob: User) -> None:
    async with Tab(conversation, bob) as tab:
        assert (await tab.frame())["run"] == {"state": "resting", "reason": ""}
        await sync_to_async(append)(conversation.id, [], state=State.LOADING)
        assert (await tab.frame())["run"]["state"] == "loading"


async def test_strangers_the_signed_out_and_other_origins_see_nothing(
    valkey_server: str, conversation: Conversation, charlie: User, bob: User
) -> None:
    async with Tab(conversation, charlie) as stranger:
        assert await stranger.closing_code() == REFUSED
    async with Tab(conversation, None) as nobody:
        assert await nobody.closing_code() == SIGNED_OUT
    async with Tab(conversation, bob, after=99) as ahead:
        assert await ahead.closing_code() == REFUSED
    async with Tab(conversation, bob, origin=b"https://evil.example") as elsewhere:
        assert elsewhere.answer["type"] == "websocket.close"


async def test_a_conversation_that_is_deleted_closes_its_tabs(conversation: Conversation, bob: User) -> None:
    async with Tab(conversation, bob) as tab:
        await tab.frame()
        await sync_to_async(conversation.delete)()
        assert await tab.closing_code() == REFUSED
