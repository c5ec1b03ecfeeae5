"""Live viewers: every event once, whatever happens between; nothing for strangers; bounded for the slow."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client

from engine.spec.event import Batch, Heartbeat
from tests.browser.story import Story
from webapp.accounts.models import Membership, User
from webapp.ingest.endpoint import accept
from webapp.live import consumer, hub, runs
from webapp.live.pool import close_pool
from webapp.runs.models import Run
from webapp.trajectories.models import Trajectory

pytestmark = pytest.mark.django_db(transaction=True)
ORIGIN = b"http://127.0.0.1:8700"
PATIENCE_S = 20.0
"""How long a test waits for what must come.  No test asserts how soon it came."""


@pytest.fixture(autouse=True)
async def _connections_are_given_back() -> AsyncIterator[None]:
    yield
    await close_pool()
    await sync_to_async(lambda: connection.close())()  # the one of the thread that async code shares


class Engine:
    """Tells a story to the ingest, some events at a time."""

    def __init__(self, run: Run) -> None:
        story = Story(steps=6, groups=1, group_size=4, begin_at=time.time())
        self.events = [event for batch in story.whole() for event in batch]
        self.run = run
        self.reported = 0

    async def emit(self, count: int, *, heartbeat: Heartbeat | None = None) -> None:
        events = self.events[self.reported : self.reported + count]
        batch = Batch(attempt=1, first_seq=self.reported + 1, events=events, heartbeat=heartbeat)
        await sync_to_async(accept)(self.run.id, batch)
        self.reported += len(events)

    @property
    def unfinished(self) -> int:
        """All events but the last one, which ends the run."""
        return len(self.events) - 1


@pytest.fixture
def engine(launching_run: Run) -> Engine:
    return Engine(launching_run)


def cookie_of(user: User) -> bytes:
    client = Client()
    client.force_login(user)
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}".encode()


class Viewer:
    """A browser tab."""

    path = "/live/runs/{run}/"

    def __init__(self, run: Run | None, user: User | None, after: Any = 0, origin: bytes = ORIGIN) -> None:
        self.run, self.user, self.after, self.origin = run, user, after, origin
        self.seqs: list[int] = []
        self.frames: list[dict[str, Any]] = []

    async def __aenter__(self) -> "Viewer":
        from webapp.asgi import application

        headers = [(b"origin", self.origin)]
        if self.user:
            headers.append((b"cookie", await sync_to_async(cookie_of)(self.user)))
        path = self.path.format(run=self.run and self.run.id)
        scope = {"type": "websocket", "path": path, "headers": headers, "subprotocols": [],
                 "query_string": f"after={self.after}".encode()}  # fmt: skip
        self.socket = ApplicationCommunicator(application, scope)
        await self.socket.send_input({"type": "websocket.connect"})
        answer = await self.socket.receive_output(PATIENCE_S)
        self.is_in, self.code = answer["type"] == "websocket.accept", answer.get("code")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1005})
        await self.socket.wait(PATIENCE_S)

    async def see(self, until_seq: int) -> None:
        """Read frames until the event with this number has come."""
        while not self.seqs or self.seqs[-1] < until_seq:
            await self.frame()

    async def raw_frame(self) -> dict[str, Any]:
        message = await self.socket.receive_output(PATIENCE_S)
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def frame(self) -> dict[str, Any]:
        frame = await self.raw_frame()
        self.frames.append(frame)
        self.seqs += [event["seq"] for event in frame["events"]]
        return frame

    async def closing_code(self) -> int:
        while True:
            message = await self.socket.receive_output(PATIENCE_S)
            if message["type"] == "websocket.close":
                return message["code"]


@pytest.mark.parametrize("after", [0, 1, 17, 99])
async def test_a_viewer_gets_what_lies_beyond_its_cursor_and_nothing_else(
    engine: Engine, bob: User, after: int
) -> None:
    await engine.emit(100)
    async with Viewer(engine.run, bob, after) as viewer:
        await viewer.see(100)
    assert viewer.seqs == list(range(after + 1, 101))


async def test_reconnecting_anywhere_leaves_no_gap_and_no_double(engine: Engine, bob: User) -> None:
    seen: list[int] = []
    while engine.reported < engine.unfinished:
        async with Viewer(engine.run, bob, seen[-1] if seen else 0) as viewer:
            await engine.emit(min(23, engine.unfinished - engine.reported))
            await viewer.see(max(1, engine.reported - 9))  # leave before everything is seen
        seen += viewer.seqs
    async with Viewer(engine.run, bob, seen[-1]) as viewer:
        if seen[-1] < engine.reported:
            await viewer.see(engine.reported)
    assert seen + viewer.seqs == list(range(1, engine.unfinished + 1))


async def test_events_of_a_live_run_arrive_without_any_notification(engine: Engine, bob: User) -> None:
    """The ingest's notification is cut off here, and no channel layer is running."""
    async with Viewer(engine.run, bob) as viewer:
        await viewer.frame()
        await engine.emit(5)
        await viewer.see(5)
    assert viewer.seqs == [1, 2, 3, 4, 5]


async def test_a_notification_wakes_the_hub_without_its_poll(
    valkey_server: str, engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "POLL_S", 3600.0)
    async with Viewer(engine.run, bob) as viewer:
        await viewer.frame()
        await engine.emit(5)
        await viewer.see(5)
    assert viewer.seqs == [1, 2, 3, 4, 5]


async def test_a_slow_viewer_costs_no_memory_and_misses_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RING_FRAMES", 2)
    monkeypatch.setattr(hub, "POLL_S", 0.02)
    monkeypatch.setattr(hub, "INTERVAL_S", 0.0)
    await engine.emit(1)
    async with runs.run_hub(engine.run.id) as joined:
        slow, seqs = joined.frames(0), []
        seqs += _seqs(await anext(slow))
        while engine.reported < engine.unfinished:
            await engine.emit(min(10, engine.unfinished - engine.reported))
            await _until(lambda: joined.cursor == engine.reported)
            assert len(joined._ring) <= 2
        while seqs[-1] < engine.reported:
            seqs += _seqs(await anext(slow))
        await slow.aclose()
    assert seqs == list(range(1, engine.unfinished + 1))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the hub has no event for tests
            await asyncio.sleep(0.01)


def _seqs(frame: str) -> list[int]:
    return [event["seq"] for event in json.loads(frame)["events"]]


async def test_many_viewers_are_one_reader(engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    async def counted(run_id: Any, after: int, *rest: Any) -> Any:
        reads.append(after)
        return await original(run_id, after, *rest)

    original = runs.read_frame
    monkeypatch.setattr(runs, "read_frame", counted)
    viewers = [Viewer(engine.run, bob) for _ in range(12)]
    for viewer in viewers:
        await viewer.__aenter__()
        await viewer.frame()
    await engine.emit(30)
    for viewer in viewers:
        await viewer.see(30)
    assert reads == [0]
    for viewer in viewers:
        await viewer.__aexit__()
    assert hub._HUBS[asyncio.get_running_loop()] == {}


async def test_a_change_of_the_header_is_reported_without_events(engine: Engine, bob: User) -> None:
    await engine.emit(3)
    async with Viewer(engine.run, bob, 3) as viewer:
        assert (await viewer.frame())["run"]["state"] == "running"
        heartbeat = Heartbeat(step=0, total_steps=6, phase="paused", phase_since=time.time(), eta_s=12.5)
        await engine.emit(0, heartbeat=heartbeat)
        while viewer.frames[-1]["run"]["state"] != "paused":
            await viewer.frame()
    assert viewer.frames[-1]["run"]["eta_s"] == 12.5
    assert viewer.seqs == []


async def test_a_quiet_run_is_heard_of_all_the_same(engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "KEEPALIVE_S", 0.05)
    await engine.emit(3)
    async with Viewer(engine.run, bob, 3) as viewer:
        for _ in range(4):
            assert (await viewer.frame())["events"] == []


async def test_an_ended_run_is_sent_to_its_end_and_closed(engine: Engine, bob: User) -> None:
    while engine.reported < len(engine.events):
        await engine.emit(200)
    async with Viewer(engine.run, bob, 10) as viewer:
        await viewer.see(len(engine.events))
        assert viewer.frames[-1]["run"]["state"] == "succeeded"
        assert await viewer.closing_code() == consumer.ENDED


async def test_trajectories_come_as_summaries(engine: Engine, bob: User) -> None:
    await engine.emit(engine.unfinished)
    async with Viewer(engine.run, bob) as viewer:
        await viewer.see(engine.unfinished)
    reported = [
        event["trajectory"] for frame in viewer.frames for event in frame["events"] if event["kind"] == "trajectory"
    ]
    assert reported
    assert all("turns" in entry and not isinstance(entry["turns"], list) for entry in reported)
    stored = await Trajectory.objects.afirst()
    assert stored is not None
    # The event has the number itself, and how a quarantine stands is no column.
    assert set(reported[0]) == {*stored.summary, "quarantine"} - {"seq"}


@pytest.mark.parametrize(("who", "code"), [("nobody", consumer.SIGNED_OUT), ("charlie", consumer.REFUSED)])
async def test_strangers_are_told_to_stay_away_and_nothing_else(run: Run, charlie: User, who: str, code: int) -> None:
    """A browser learns the code only of a socket that was accepted."""
    for run_ in (run, SimpleNamespace(id=uuid4())):
        async with Viewer(run_, charlie if who == "charlie" else None) as viewer:
            assert (await viewer.socket.receive_output(PATIENCE_S)) == {"type": "websocket.close", "code": code}


async def test_pages_of_other_sites_are_refused(valkey_server: str, run: Run, bob: User) -> None:
    async with Viewer(run, bob, origin=b"https://evil.example") as viewer:
        assert not viewer.is_in


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30, "²"])
async def test_a_cursor_that_is_no_number_is_refused(run: Run, bob: User, after: str) -> None:
    async with Viewer(run, bob, after) as viewer:
        assert await viewer.closing_code() == consumer.REFUSED


async def test_a_removed_member_stops_seeing_the_run(
    engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RECHECK_S", 0.0)
    monkeypatch.setattr(hub, "KEEPALIVE_S", 0.05)
    await engine.emit(3)
    async with Viewer(engine.run, bob) as viewer:
        await viewer.see(3)
        await Membership.objects.filter(user=bob).adelete()
        assert await viewer.closing_code() == consumer.REFUSED


async def test_who_signs_out_stops_seeing_the_run(engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "RECHECK_S", 0.0)
    monkeypatch.setattr(hub, "KEEPALIVE_S", 0.05)
    await engine.emit(3)
    async with Viewer(engine.run, bob) as viewer:
        await viewer.see(3)
        await Session.objects.all().adelete()
        assert await viewer.closing_code() == consumer.SIGNED_OUT


async def test_a_cursor_beyond_the_log_is_refused(engine: Engine, bob: User) -> None:
    await engine.emit(3)
    async with Viewer(engine.run, bob, 4) as viewer:
        assert await viewer.closing_code() == consumer.REFUSED


@pytest.mark.parametrize("path", ["/", "/nowhere", "/live/runs/x/"])
async def test_a_path_that_leads_nowhere_is_refused(bob: User, path: str) -> None:
    viewer = Viewer(None, bob)
    viewer.path = path
    async with viewer:
        assert (viewer.is_in, viewer.code) == (False, consumer.REFUSED)
