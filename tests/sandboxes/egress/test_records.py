"""Every attempt is recorded, numbered without gaps, in bounded memory, and nothing waits."""

import asyncio
import threading
import time

import pytest

from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.decision import decide
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.log import RecordLog, Traffic
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import OPENING_BYTES, RECORD_BYTES, EgressRecord

POLICY = EgressPolicy()


def attempt(n=1, port=443, address="203.0.113.7", **more):
    return ConnectionAttempt(sandbox="b", sequence=n, at=float(n), protocol="tcp", address=address, port=port, **more)


def add(log, tried, label=None):
    log.add(tried, decide(POLICY, tried, {}), label=label)


def drained(log, after=0):
    found = []
    while batch := log.batch(after):
        found += batch
        after = batch[-1].seq
        log.acknowledge(after)
    return found


def test_records_are_numbered_from_one_without_gaps_and_come_in_batches():
    log = RecordLog()
    for n in range(1, 26):
        add(log, attempt(n))
    assert [record.seq for record in log.batch(0, 10)] == list(range(1, 11))
    assert [record.seq for record in log.batch(20, 10)] == list(range(21, 26))
    assert log.batch(25) == []


def test_a_batch_is_repeatable_until_it_is_acknowledged():
    log = RecordLog()
    for n in range(1, 6):
        add(log, attempt(n))
    assert log.batch(0) == log.batch(0)
    log.acknowledge(3)
    log.acknowledge(3)
    assert [record.seq for record in log.batch(3)] == [4, 5]
    with pytest.raises(ValueError, match="before 4"):
        log.batch(1)
    with pytest.raises(ValueError, match="last number is 5"):
        log.acknowledge(6)


def test_a_log_goes_on_where_another_ended():
    log = RecordLog(next_seq=41)
    add(log, attempt())
    assert [record.seq for record in log.batch(40)] == [41]


@pytest.mark.parametrize("kind", ["equal", "ports", "addresses", "labels", "everything"])
def test_no_attempt_goes_unrecorded_behind_a_reader_that_never_reads(kind):
    log, number = RecordLog(limit=64), 100_000 if kind in {"equal", "everything"} else 5_000
    for n in range(1, number + 1):
        port = n % 60_000 + 1 if kind in {"ports", "everything"} else 443
        address = f"203.0.113.{n % 250}" if kind in {"addresses", "everything"} else "203.0.113.7"
        add(log, attempt(n, port, address), label=f"turn-{n % 3000}" if kind in {"labels", "everything"} else "turn-1")
        assert log.held <= log.bound
    records = drained(log)
    assert sum(record.count for record in records) == number == log.attempts
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert len(records) <= log.bound


def test_equal_attempts_are_summed_up_as_equal_and_different_ones_say_how_many():
    log = RecordLog(limit=4)
    for n in range(1, 5):
        add(log, attempt(n))
    for n in range(5, 105):
        add(log, attempt(n), label="turn-7")
    for n in range(105, 155):
        add(log, attempt(n, port=n), label="turn-7")
    equal, different = [record for record in drained(log) if record.count > 1]
    assert (equal.count, equal.spread, equal.label, equal.last_at) == (100, None, "turn-7", 104.0)
    assert (different.count, different.label) == (50, "turn-7")
    assert (different.spread.ports, different.spread.addresses) == (50, 1)


def test_a_reader_that_catches_up_gets_details_again():
    log, after = RecordLog(limit=4), 0
    for _ in range(5):
        for n in range(1, 30):
            add(log, attempt(n, port=n))
        after = drained(log, after)[-1].seq
    for n in range(1, 5):
        add(log, attempt(n))
    for n in range(5, 9):
        add(log, attempt(n, port=80))
    last = drained(log, after)[-1]
    assert (last.count, last.spread) == (4, None)


def test_what_was_handed_out_never_changes():
    log = RecordLog(limit=4)
    for n in range(1, 50):
        add(log, attempt(n))
    first = log.batch(0)
    for n in range(50, 100):
        add(log, attempt(n))
    assert log.batch(0) == first


def test_bytes_of_summed_up_traffic_add_up():
    log, tried = RecordLog(limit=4), attempt()
    decision = decide(POLICY, tried, {})
    for n in range(200):
        log.add_traffic(tried, decision, Traffic(10, 20, 1, b"up", b"down"), at=float(n))
    records = drained(log)
    assert sum(record.bytes_up for record in records) == 2000
    assert sum(record.bytes_down for record in records) == 4000
    assert sum(record.packets_up for record in records) == 200
    assert records[-1].opening_up == b"up"
    assert log.attempts == 0


def test_ports_of_the_sandboxs_own_hide_no_attempt_at_anybody_else():
    log = RecordLog(limit=4)
    for n in range(1, 60):
        add(log, attempt(n, port=n, address="127.0.0.1"), label=f"turn-{n}")
    add(log, attempt(60, 80, "169.254.169.254"), label="turn-59")
    for n in range(61, 90):
        add(log, attempt(n, port=n, address="127.0.0.1"), label=f"turn-{n}")
    [other] = [record for record in drained(log) if record.attempt.address != "127.0.0.1"]
    assert (other.attempt.address, other.count) == ("169.254.169.254", 1)


def test_what_is_added_comes_back_alone_with_the_number_of_its_record():
    log, alone, records = RecordLog(limit=8), {}, []
    for n in range(1, 300):
        tried = attempt(n, port=n % 40 + 1)
        alone[n] = log.add(tried, decide(POLICY, tried, {}), label=f"turn-{n % 3}")
        assert (alone[n].attempt, alone[n].count, alone[n].label) == (tried, 1, f"turn-{n % 3}")
        if n % 50 == 0:
            records += drained(log, len(records))
    records += drained(log, len(records))
    for record in records:
        parts = [statement for statement in alone.values() if statement.seq == record.seq]
        assert (len(parts), parts[0].attempt) == (record.count, record.attempt)


def test_whoever_judges_gets_every_attempt_once_and_at_once_while_nobody_takes_the_records():
    async def statements() -> list[EgressRecord]:
        found: list[EgressRecord] = []
        ledger = Ledger("b", POLICY, lambda record: False, found.append)
        ledger.records = RecordLog(limit=4)
        for port in range(1, 100):
            tried = ledger.attempt("tcp", "ipv4", "203.0.113.7", port)
            ledger.add(tried, decide(POLICY, tried, {}), label=None)
        ledger.add_counted("udp", "203.0.113.7", 53, 1000, excess=True, label=None)
        return found

    *tried, counted = asyncio.run(statements())
    assert [(statement.attempt.port, statement.count) for statement in tried] == [(port, 1) for port in range(1, 100)]
    assert (counted.attempt.protocol, counted.count) == ("udp", 1000)


def test_attempts_that_were_only_counted_are_counted():
    log, tried = RecordLog(limit=4), attempt()
    for _ in range(6):
        log.add(tried, decide(POLICY, tried, {}), count=1000)
    assert sum(record.count for record in drained(log)) == 6000


def test_writers_in_several_threads_and_a_reader_lose_and_double_nothing():
    log, seen = RecordLog(limit=32), []

    def write(first):
        for n in range(first, first + 2000):
            add(log, attempt(n, port=n % 7 + 1))

    writers = [threading.Thread(target=write, args=(1 + 2000 * n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    after = 0
    while any(writer.is_alive() for writer in writers) or log.batch(after):
        for record in log.batch(after, 10):
            seen.append(record)
            after = record.seq
        if after:
            log.acknowledge(after)
        time.sleep(0)
    assert sum(record.count for record in seen) == 8000
    assert [record.seq for record in seen] == list(range(1, len(seen) + 1))


def test_the_longest_record_is_bounded_and_survives_json():
    hostile = "\u2603\x00\"'\\" * 10_000
    tried = ConnectionAttempt(
        sandbox=hostile,
        sequence=10**18,
        at=1e12,
        protocol="tcp",
        address="2001:db8:1111:2222:3333:4444:5555:6666",
        port=65535,
        stage="opening",
        name=hostile,
        query_type=hostile,
        sni=hostile,
        host=hostile,
        method=hostile,
    )
    log = RecordLog()
    opening = Traffic(10**15, 10**15, 10**12, b"\xff" * 10_000, b"\x00" * 10_000, "cut")
    log.add(tried, decide(POLICY, tried, {}), label=hostile, traffic=opening)
    (record,) = log.batch(0)
    text = record.model_dump_json()
    assert len(text.encode()) <= RECORD_BYTES
    assert EgressRecord.model_validate_json(text) == record
    assert len(record.opening_up) == OPENING_BYTES
