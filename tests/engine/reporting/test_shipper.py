"""Every event arrives once, in order, whatever the service and the network do."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.reporting import shipper as shipper_module
from engine.reporting.event_writer import EventWriter
from engine.reporting.shipper import ServiceDown, Shipper
from engine.reporting.spool import Spool
from engine.spec.event import Heartbeat, Log, PhaseChanged
from engine.spec.usage import MOST, GpuUse, ProcessUse, Usage

HEARTBEAT = Heartbeat(step=3, total_steps=9, phase="collect", phase_since=1.0, waiting_for="rollout-0")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper_module, "BACKOFF_S", (0.01, 0.05))


@contextmanager
def shipping(spool: Spool, service: Any, **options: Any) -> Iterator[Shipper]:
    shipper = Shipper(spool, service.ingest, **{"heartbeat": lambda: HEARTBEAT, "heartbeat_s": 0.05} | options)
    shipper.start()
    yield shipper
    shipper.stop()


def emit(events: EventWriter, count: int) -> None:
    for number in range(count):
        events.metrics(number, {"train/reward": number / 10})


def test_events_arrive_in_order_and_the_spool_is_emptied(spool: Spool, service: Any) -> None:
    events = EventWriter(spool, attempt=1)
    emit(events, 100)
    with shipping(spool, service) as shipper:
        assert shipper.flush(10)
    assert service.numbers == list(range(1, 101))
    assert service.events[7]["values"] == {"train/reward": 0.7}
    assert spool.acked == 100
    assert spool.oldest_seq > 50


def test_silence_is_broken_by_heartbeats_that_carry_the_heartbeat(spool: Spool, service: Any) -> None:
    with shipping(spool, service):
        service.wait_for(lambda service: len(service.heartbeats) >= 3)
    assert service.heartbeats[-1] == HEARTBEAT
    assert service.events == []


FAULTS: list[str | int] = ["drop-before", "drop-after", "garbage", 500, 503, 408, 429]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), badness=st.floats(0.0, 0.7))
def test_stored_equals_emitted_whatever_fails(
    tmp_path_factory: pytest.TempPathFactory, service: Any, seed: int, badness: float
) -> None:
    draw = random.Random(seed)
    service.events.clear()
    service.attempt = 1
    service.fault = lambda: draw.choice(FAULTS) if draw.random() < badness else None
    folder = tmp_path_factory.mktemp("spool")
    while service.attempt <= 3:
        spool = Spool(folder, segment_bytes=draw.choice([50, 700, 10_000]))
        events = EventWriter(spool, attempt=service.attempt)
        with shipping(spool, service) as shipper:
            for _ in range(draw.randrange(12)):
                emit(events, draw.randrange(8))
                if draw.random() < 0.15:
                    service.stop()
                    service.start()
            if service.attempt == 3:
                assert shipper.flush(60)
        emitted = spool.last_seq
        spool.close()
        service.attempt += 1
    assert service.numbers == list(range(1, emitted + 1))
    service.fault = lambda: None


def test_a_new_attempt_resends_what_the_service_lost_track_of(spool: Spool, service: Any) -> None:
    emit(EventWriter(spool, attempt=1), 5)
    with shipping(spool, service) as shipper:
        assert shipper.flush(10)
    del service.events[3:]  # the service says 409 and is sent 4 and 5 again
    emit(EventWriter(spool, attempt=1), 1)
    with shipping(spool, service) as shipper:
        assert shipper.flush(10)
    assert service.numbers == [1, 2, 3, 4, 5, 6]


def test_a_service_that_has_more_than_the_spool_ends_the_engine(spool: Spool, service: Any) -> None:
    emit(EventWriter(spool, attempt=1), 2)
    service.events = [{"seq": number} for number in range(1, 9)]
    with shipping(spool, service) as shipper:
        assert not shipper.flush(10)
    assert shipper.ended
    assert "restored from elsewhere" in str(shipper.ended)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda service: setattr(service, "attempt", 2), 410, "replaced by another"),
        (lambda service: setattr(service, "token", "other"), 401, "token"),
        (lambda service: setattr(service, "fault", lambda: 422), 422, "not what the spec says"),
    ],
)
def test_an_answer_that_ends_the_engine_is_named(
    spool: Spool, service: Any, change: Callable[[Any], None], status: int, words: str
) -> None:
    ingest = service.ingest
    change(service)
    reported: list[str] = []
    shipper = Shipper(spool, ingest, heartbeat=lambda: HEARTBEAT, on_change=lambda: reported.append(str(shipper.ended)))
    shipper.start()
    emit(EventWriter(spool, attempt=1), 1)
    assert not shipper.flush(10)
    assert shipper.ended
    assert shipper.ended.status == status
    assert words in str(shipper.ended)
    assert reported == [str(shipper.ended)]
    assert service.events == []
    assert spool.last_seq == 1


def test_what_the_service_wants_reaches_the_engine_without_events(spool: Spool, service: Any) -> None:
    seen: list[str] = []
    with shipping(spool, service, on_change=lambda: seen.append("changed")) as shipper:
        service.wait_for(lambda service: service.batches >= 1)
        assert shipper.desired == "run"
        assert seen == []
        service.desired = "cancel"
        service.wait_for(lambda _: bool(seen))
        assert shipper.desired == "cancel"


def test_emitting_never_waits_for_a_service_that_is_down(spool: Spool, service: Any) -> None:
    events = EventWriter(spool, attempt=1)
    service.stop()
    with shipping(spool, service) as shipper:
        emit(events, 50)
        assert spool.last_seq == 50
        assert not shipper.flush(0.2)
        service.start()
        assert shipper.flush(10)
    assert service.numbers == list(range(1, 51))


@pytest.fixture
def sizes(service: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those of all batches that come to the service, in bytes."""
    sizes: list[int] = []
    take = service._take
    monkeypatch.setattr(service, "_take", lambda request, body: sizes.append(len(body)) or take(request, body))
    return sizes


def test_a_large_backlog_goes_in_batches_of_at_most_a_thousand(spool: Spool, service: Any, sizes: list[int]) -> None:
    roomy = Spool(spool._folder / "roomy")
    EventWriter(roomy, attempt=1).emit_all([(PhaseChanged, {"step": 1, "phase": "collect"})] * 2500)
    with shipping(roomy, service) as shipper:
        assert shipper.flush(10)
    assert service.numbers == list(range(1, 2501))
    assert max(sizes) < 4 * 2**20
    assert sum(size > 1000 for size in sizes) == 3


def test_a_full_batch_leaves_room_for_a_large_heartbeat(spool: Spool, service: Any, sizes: list[int]) -> None:
    gpu = GpuUse(name="0 NVIDIA H100 80GB HBM3", busy=0.98, memory_bytes=72_345_678_848, total_bytes=85_520_809_984)
    ranks = [
        ProcessUse(name=f"rank-{number}", role="rank", pid=number, cores=1.0, memory_bytes=2**33, gpus=[gpu] * 8)
        for number in range(MOST)
    ]
    large = HEARTBEAT.model_copy(update={"usage": Usage(at=1.0, step=3, processes=ranks)})
    roomy = Spool(spool._folder / "roomy")
    message = {"level": "info", "source": "s", "message": "x" * 8000}
    EventWriter(roomy, attempt=1).emit_all([(Log, message)] * 600)
    with shipping(roomy, service, heartbeat=lambda: large) as shipper:
        assert shipper.flush(20)
    assert service.numbers == list(range(1, 601))
    assert 3.9 * 2**20 < max(sizes) <= 4 * 2**20


def test_a_failure_without_words_is_named_by_its_kind(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("http.client.HTTPConnection.request", silent)
    with pytest.raises(ServiceDown, match="batches: TimeoutError$"):
        service.ingest.next_seq()


def test_values_that_are_no_numbers_are_named_instead_of_sent(spool: Spool, service: Any) -> None:
    EventWriter(spool, attempt=1).metrics(4, {"train/loss": float("nan"), "train/reward": 1.0})
    with shipping(spool, service) as shipper:
        assert shipper.flush(10)
    assert service.of_kind("metric")[0]["values"] == {"train/reward": 1.0}
    assert "train/loss" in service.of_kind("log")[0]["message"]


def test_the_finished_event_is_the_last_and_counts_itself(spool: Spool, service: Any) -> None:
    events = EventWriter(spool, attempt=1)
    emit(events, 3)
    events.finish("succeeded", None, {"steps": 3})
    events.log("info", "late", "nobody hears this")
    with shipping(spool, service) as shipper:
        assert shipper.flush(10)
    assert service.events[-1]["kind"] == "finished"
    assert service.events[-1]["summary"] == {"steps": 3, "events_emitted": 4}
    assert time.time() - service.events[-1]["at"] < 3600
