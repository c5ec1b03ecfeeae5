"""News about alerts: every one once, only of one's own teams, whatever happens between."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import Client

from tests.webapp.live.test_hub import Viewer
from tests.webapp.runs.conftest import Engine, egress_record
from webapp.accounts.models import Membership, User
from webapp.live import alerts, consumer, hub
from webapp.live.notifications import listen
from webapp.live.pool import close_pool
from webapp.runs.models import Run
from webapp.runs.services import submit_run
from webapp.security.models import Alert
from webapp.security.services import acknowledge_alert, review

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def _connections_are_given_back() -> AsyncIterator[None]:
    yield
    await close_pool()
    await sync_to_async(lambda: connection.close())()


@pytest.fixture
def engine(launching_run: Run) -> Engine:
    return Engine(launching_run)


class Bell(Viewer):
    """A page of the console with its connection for alerts."""

    path = "/ws/alerts"

    def __init__(self, user: User | None, after: Any = 0, **options: Any) -> None:
        super().__init__(None, user, after, **options)
        self.ids: list[int] = []

    async def frame(self) -> dict[str, Any]:
        frame = await self.raw_frame()
        self.ids += [alert["id"] for alert in frame["alerts"]]
        return frame

    async def hear(self, **wanted: int) -> dict[str, Any]:
        while True:
            frame = await self.frame()
            if {name: frame[name] for name in wanted} == wanted:
                return frame


async def emit(engine: Engine, *names: str) -> list[int]:
    """Raise alerts; their numbers."""
    events = [engine.alert(name, origin={"trajectory": f"t-{name}", "turn": 0}) for name in names]
    assert (await sync_to_async(engine.post)(*events)).status_code == 200
    found = Alert.objects.filter(run_id=engine.run_id, alert_id__in=names).order_by("id")
    return [item async for item in found.values_list("id", flat=True)]


async def test_a_follower_hears_of_every_alert_beyond_its_cursor_once(engine: Engine, bob: User) -> None:
    known = await emit(engine, "a/1", "a/2", "a/3")
    async with Bell(bob, known[0]) as bell:
        await bell.hear(open=3, pending=3)
        later = await emit(engine, "b/1", "b/2")
        assert (await bell.hear(open=5))["now"] == pytest.approx(time.time(), abs=600)
    assert bell.ids == known[1:] + later


async def test_coming_back_with_the_cursor_misses_and_doubles_nothing(engine: Engine, bob: User) -> None:
    everything, seen, cursor = [], [], 0
    for round_ in range(4):
        everything += await emit(engine, *(f"{round_}/{n}" for n in range(1, 60)))
        async with Bell(bob, cursor) as bell:
            frame = await bell.hear(after=everything[-1])
            cursor = frame["after"]
        seen += bell.ids
    assert seen == everything
    assert len(seen) == 236


async def test_an_alert_that_comes_again_is_no_news(engine: Engine, bob: User) -> None:
    await emit(engine, "a/1")
    async with Bell(bob) as bell:
        await bell.hear(open=1)
        await emit(engine, "a/1")
        await emit(engine, "a/2")
        await bell.hear(open=2)
    assert len(bell.ids) == 2


async def test_what_people_do_about_alerts_is_heard(engine: Engine, bob: User, rita: User) -> None:
    one, _ = await emit(engine, "a/1", "a/2")
    async with Bell(bob) as bell:
        await bell.hear(open=2, pending=2)
        await sync_to_async(acknowledge_alert)(await Alert.objects.aget(id=one), acting_user=rita)
        await bell.hear(open=1, pending=2)
        run = await Run.objects.aget(id=engine.run_id)
        await sync_to_async(review)(run, "t-a/2", "benign", acting_user=rita)
        await bell.hear(open=0, pending=1)


async def test_a_notification_wakes_the_reader_without_its_poll(
    valkey_server: str, engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "POLL_S", 3600.0)
    async with Bell(bob) as bell:
        await bell.hear(open=0)
        await emit(engine, "a/1")
        await bell.hear(open=1)


async def test_who_has_just_joined_looks_once_for_what_was_reported_before(valkey_server: str) -> None:
    notified = asyncio.Event()
    listening = asyncio.create_task(listen("nobody-notifies", notified, retry_s=1.0))
    async with asyncio.timeout(60):
        await notified.wait()
    listening.cancel()


async def test_a_follower_hears_nothing_of_another_team(engine: Engine, charlie: User, spec: Any) -> None:
    team = (await Membership.objects.select_related("team").aget(user=charlie)).team
    run = await sync_to_async(submit_run)(team, spec, acting_user=charlie)
    await sync_to_async(run.move_to)("launching", by="worker", attempt=1)
    await emit(engine, "a/1", "a/2")
    async with Bell(charlie) as bell:
        frame = await bell.frame()
        assert (frame["alerts"], frame["open"], frame["pending"]) == ([], 0, 0)
        await emit(engine, "a/3")
        own = await emit(Engine(run), "c/1")
        await bell.hear(open=1)
    assert bell.ids == own


async def test_someone_in_two_teams_hears_of_both(engine: Engine, charlie: User, team: Any, spec: Any) -> None:
    own = (await Membership.objects.select_related("team").aget(user=charlie)).team
    await Membership.objects.acreate(team=team, user=charlie, role="viewer")
    run = await sync_to_async(submit_run)(own, spec, acting_user=charlie)
    await sync_to_async(run.move_to)("launching", by="worker", attempt=1)
    ids = [*await emit(engine, "a/1"), *await emit(Engine(run), "c/1"), *await emit(engine, "a/2")]
    async with Bell(charlie) as bell:
        await bell.hear(open=3)
    assert bell.ids == ids


async def test_many_followers_are_one_reader(engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    async def counted(*asked: Any) -> Any:
        reads.append(asked)
        return await original(*asked)

    original = alerts.read_alerts
    monkeypatch.setattr(alerts, "read_alerts", counted)
    bells = [Bell(bob) for _ in range(8)]
    for bell in bells:
        await bell.__aenter__()
        await bell.hear(open=0)
    await emit(engine, "a/1")
    for bell in bells:
        await bell.hear(open=1)
        await bell.__aexit__()
    assert len(reads) == 1
    assert hub._HUBS[asyncio.get_running_loop()] == {}


@pytest.mark.parametrize(("who", "code"), [("nobody", consumer.SIGNED_OUT), ("loner", consumer.REFUSED)])
async def test_nobody_and_people_without_a_team_are_refused(who: str, code: int, db: None) -> None:
    user = (
        await sync_to_async(User.objects.create_user)("loner@example.org", "correct horse") if who == "loner" else None
    )
    async with Bell(user) as bell:
        assert await bell.closing_code() == code


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30, "1; DROP TABLE security_alert"])
async def test_a_cursor_that_is_no_number_is_refused(bob: User, after: str) -> None:
    async with Bell(bob, after) as bell:
        assert await bell.closing_code() == consumer.REFUSED


async def test_pages_of_other_sites_are_refused(valkey_server: str, bob: User) -> None:
    async with Bell(bob, origin=b"https://evil.example") as bell:
        assert not bell.is_in


async def test_a_removed_member_hears_no_more(engine: Engine, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "RECHECK_S", 0.0)
    async with Bell(bob) as bell:
        await bell.hear(open=0)
        await Membership.objects.filter(user=bob).adelete()
        await emit(engine, "a/1")
        assert await bell.closing_code() == consumer.REFUSED
    assert bell.ids == []


async def test_the_stream_of_a_run_carries_alerts_whole_and_egress_in_sums(engine: Engine, bob: User) -> None:
    run = await Run.objects.aget(id=engine.run_id)
    records = [egress_record(seq, count=2, bytes_up=10, opening_up="QUJD") for seq in (1, 2, 3)]
    records.append(egress_record(4, decision={"allowed": True}))
    for events in ([engine.started(), engine.egress(*records)], [engine.alert()], [engine.egress(*records)]):
        assert (await sync_to_async(engine.post)(*events)).status_code == 200
    async with Viewer(run, bob) as viewer:
        await viewer.see(4)
    _, reported, alert, again = (event for frame in viewer.frames for event in frame["events"])
    assert {name: reported[name] for name in ("records", "allowed", "denied", "bytes_up")} == {
        "records": 4, "allowed": 1, "denied": 6, "bytes_up": 30,
    }  # fmt: skip
    assert reported["origin"] == {"trajectory": "train-1-0", "turn": 1}
    assert again["records"] == again["denied"] == 0
    assert (alert["id"], alert["finding"]["rule"], alert["quarantined"]) == ("sandbox-1/1", "mining-stratum", True)


async def test_a_told_trajectory_says_how_its_quarantine_stands(engine: Engine, bob: User) -> None:
    run = await Run.objects.aget(id=engine.run_id)
    events = [engine.started(), engine.alert(), engine.trajectory(alerts=["sandbox-1/1"])]
    await sync_to_async(engine.post)(*events)
    async with Viewer(run, bob) as viewer:
        await viewer.see(3)
    reported = viewer.frames[-1]["events"][-1]["trajectory"]
    assert (reported["alerts"], reported["quarantine"]) == (1, "pending")


def test_ids_follow_the_order_of_commits(engine: Engine, team: Any, alice: User, spec: Any) -> None:
    """A second run's alerts wait for the first one's commit, so nobody sees a higher id before a lower one."""
    import threading

    from django.db import connections, transaction

    from engine.spec.event import Batch
    from webapp.ingest.endpoint import accept

    other = submit_run(team, spec, acting_user=alice)
    other.move_to("launching", by="worker", attempt=1)
    second, done = Engine(other), threading.Event()

    def post() -> None:
        second.client = Client()
        second.post(second.alert("second/1"))
        done.set()
        connections.close_all()

    with transaction.atomic():
        accept(engine.run_id, Batch(attempt=1, first_seq=1, events=[engine.alert("first/1")]))
        thread = threading.Thread(target=post)
        thread.start()
        assert not done.wait(0.5)
        assert [item.alert_id for item in Alert.objects.all()] == ["first/1"]
    thread.join()
    assert list(Alert.objects.order_by("id").values_list("alert_id", flat=True)) == ["first/1", "second/1"]
