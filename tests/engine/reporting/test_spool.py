"""The numbers of a run survive whatever ends the process that wrote them."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.durable_log import Segment
from engine.reporting.event_writer import EventWriter
from engine.reporting.spool import Spool, SpoolError


def lines(first_seq: int, count: int, size: int = 20) -> list[bytes]:
    return [json.dumps({"seq": seq, "text": "x" * size}).encode() for seq in range(first_seq, first_seq + count)]


def numbers(spool: Spool, first_seq: int = 1) -> list[int]:
    found: list[int] = []
    while batch := spool.read(first_seq + len(found), max_events=7, max_bytes=10_000):
        found += [json.loads(line)["seq"] for line in batch]
    return found


def test_events_are_read_in_order_across_segments(spool: Spool) -> None:
    for first in range(1, 201, 10):
        spool.append(lines(first, 10), first_seq=first)
    assert numbers(spool) == list(range(1, 201))
    assert numbers(spool, 150) == list(range(150, 201))


def test_a_batch_keeps_within_events_and_bytes_but_never_is_empty(spool: Spool) -> None:
    spool.append(lines(1, 10), first_seq=1)
    assert len(spool.read(1, max_events=3, max_bytes=10_000)) == 3
    assert sum(map(len, spool.read(1, max_events=10, max_bytes=100))) <= 100
    assert len(spool.read(1, max_events=10, max_bytes=1)) == 1


@pytest.mark.parametrize("tail", [b'{"seq": 4, "te', b"\0\0\0\0\n", b'{"seq": 9}\n', b"[4]\n"])
def test_a_torn_tail_is_cut_and_its_number_given_again(tmp_path: Path, tail: bytes) -> None:
    spool = Spool(tmp_path)
    spool.append(lines(1, 3), first_seq=1)
    spool.close()
    with next(tmp_path.glob("*.jsonl")).open("ab") as file:
        file.write(tail)
    again = Spool(tmp_path)
    assert again.last_seq == 3
    again.append(lines(4, 1), first_seq=4)
    assert numbers(again) == [1, 2, 3, 4]


def test_numbering_goes_on_although_everything_was_acknowledged_and_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=500)
    spool.append(lines(1, 50), first_seq=1)
    spool.append(lines(51, 50), first_seq=51)
    spool.acknowledge(100)
    spool.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) == 0
    again = Spool(tmp_path)
    assert (again.last_seq, again.acked) == (100, 100)


def test_a_segment_with_one_unacknowledged_event_stays(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=10)
    spool.append(lines(1, 5), first_seq=1)
    spool.append(lines(6, 5), first_seq=6)
    spool.acknowledge(9)
    assert spool.oldest_seq == 6
    assert numbers(spool, 6) == [6, 7, 8, 9, 10]


def test_an_empty_spool_on_another_disk_goes_on_where_the_service_is(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.continue_at(42)
    spool.append(lines(42, 2), first_seq=42)
    spool.close()
    again = Spool(tmp_path)
    assert (again.last_seq, again.oldest_seq) == (43, 42)
    with pytest.raises(SpoolError, match="already holds event 43"):
        again.continue_at(7)


@pytest.mark.parametrize(("owner", "step"), [(Path, "unlink"), (Segment, "begun")])
@pytest.mark.parametrize("done", [False, True])
def test_a_spool_that_is_killed_while_it_moves_to_a_number_can_be_moved_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, done: bool
) -> None:
    """Before or behind each step that changes the folder."""
    spool, whole = Spool(tmp_path), getattr(owner, step)

    def killed(*given: Any, **more: Any) -> None:
        if done:
            whole(*given, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, step, killed)
    with pytest.raises(KeyboardInterrupt):
        spool.continue_at(42)
    monkeypatch.undo()
    spool.close()
    again = Spool(tmp_path)
    again.continue_at(42)
    again.append(lines(42, 2), first_seq=42)
    assert numbers(again, 42) == [42, 43]


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    with pytest.raises(SpoolError, match="another process is still writing"):
        Spool(tmp_path, lock_timeout_s=0.0)
    first.close()
    Spool(tmp_path, lock_timeout_s=0.0).close()


def test_missing_segments_are_reported_not_skipped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=10)
    for first in (1, 2, 3):
        spool.append(lines(first, 1), first_seq=first)
    spool.close()
    (tmp_path / "000000000002.jsonl").unlink()
    with pytest.raises(SpoolError, match="events 2 to 2 are missing"):
        Spool(tmp_path)


def damaged(folder: Path, change: Callable[[bytearray], None]) -> Spool:
    """Ten events, of which the service has eight, in one segment that the disk has changed."""
    spool = Spool(folder)
    spool.append(lines(1, 10), first_seq=1)
    spool.acknowledge(8)
    spool.close()
    [segment] = folder.glob("*.jsonl")
    content = bytearray(segment.read_bytes())
    change(content)
    segment.write_bytes(content)
    return Spool(folder)


def test_damage_to_what_the_service_has_costs_nothing(tmp_path: Path) -> None:
    def spoil(content: bytearray) -> None:
        content[5] ^= 0xFF

    spool = damaged(tmp_path, spoil)
    assert (spool.last_seq, spool.cut_lines) == (10, 0)
    assert numbers(spool, 9) == [9, 10]


def test_a_spool_cut_below_what_the_service_has_goes_on_above_it(tmp_path: Path) -> None:
    def cut(content: bytearray) -> None:
        del content[len(content) // 2 :]

    spool = damaged(tmp_path, cut)
    assert (spool.last_seq, spool.oldest_seq) == (8, 9)
    spool.append(lines(9, 1), first_seq=9)
    spool.close()
    assert numbers(Spool(tmp_path), 9) == [9]


def test_events_that_nobody_has_any_more_are_reported_as_lost(tmp_path: Path) -> None:
    def spoil(content: bytearray) -> None:
        content[-len(lines(9, 1)[0]) - len(lines(10, 1)[0]) + 3] ^= 0xFF

    spool = damaged(tmp_path, spoil)
    assert spool.last_seq == 8
    EventWriter(spool, attempt=2).admit_losses()
    [reported] = [json.loads(line) for line in spool.read(9, max_events=9, max_bytes=10_000)]
    assert (reported["seq"], reported["level"]) == (9, "warning")
    assert reported["message"].startswith("2 events of earlier attempts are lost")


def test_a_segment_that_cannot_be_begun_loses_nothing_of_the_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, segment_bytes=10)

    def refuse(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("engine.durable_log.fsync", refuse)
    spool.append(lines(1, 2), first_seq=1)
    spool.append(lines(3, 1), first_seq=3)
    monkeypatch.undo()
    spool.append(lines(4, 1), first_seq=4)
    spool.close()
    again = Spool(tmp_path)
    assert numbers(again) == [1, 2, 3, 4]
    assert again.last_seq == 4


FULL_DISK = """
import json, resource, signal, sys
from pathlib import Path
from engine.reporting.spool import Spool, SpoolError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path(sys.argv[1]))
spool.append([json.dumps({"seq": 1}).encode()], first_seq=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    spool.append([json.dumps({"seq": seq, "text": "x" * 300}).encode() for seq in range(2, 9)], first_seq=2)
except SpoolError as error:
    print(error)
spool.append([json.dumps({"seq": 2}).encode()], first_seq=2)
print(spool.last_seq)
"""


def test_a_full_disk_is_a_clear_failure_and_leaves_no_half_batch(tmp_path: Path) -> None:
    out = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "events cannot be written to" in out.stdout
    assert "File too large" in out.stdout
    assert numbers(Spool(tmp_path)) == [1, 2]


KILLED = """
import json, sys
from pathlib import Path
from engine.reporting.spool import Spool
spool = Spool(Path(sys.argv[1]), segment_bytes=3000)
seq = spool.last_seq + 1
while True:
    spool.append([json.dumps({"seq": seq + n, "text": "x" * 50}).encode() for n in range(5)], first_seq=seq)
    seq += 5
    print(seq - 1, flush=True)
"""


def test_what_was_appended_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    reported = 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            for _ in range(30):
                reported = int(process.stdout.readline())
            process.kill()
        spool = Spool(tmp_path)
        assert spool.last_seq >= reported
        assert numbers(spool) == list(range(1, spool.last_seq + 1))
        spool.close()


def test_a_spool_of_0_2_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """Written as 0.2 wrote it: a plain number in ``acked``, segments by their first number, a torn last line."""
    (tmp_path / "lock").touch()
    (tmp_path / "acked").write_text("2")
    for first in (1, 4):
        content = b"".join(line + b"\n" for line in lines(first, 3))
        (tmp_path / f"{first:012d}.jsonl").write_bytes(content)
    with (tmp_path / "000000000004.jsonl").open("ab") as file:
        file.write(b'{"seq": 7, "te')
    spool = Spool(tmp_path)
    assert (spool.acked, spool.last_seq, spool.cut_lines) == (2, 6, 0)
    spool.append(lines(7, 1), first_seq=7)
    assert numbers(spool, 3) == [3, 4, 5, 6, 7]
    spool.acknowledge(6)
    assert (tmp_path / "acked").read_text() == "6"
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["000000000004.jsonl"]


@pytest.mark.parametrize("content", ["", "seven", "-1", '{"a": 1}'])
def test_an_acknowledgement_that_the_disk_has_spoilt_is_refused_with_a_remedy(tmp_path: Path, content: str) -> None:
    spool = Spool(tmp_path)
    spool.append(lines(1, 2), first_seq=1)
    spool.close()
    (tmp_path / "acked").write_text(content)
    with pytest.raises(SpoolError, match="acked does not say how far.*remove it, and what the service has is sent"):
        Spool(tmp_path)
