"""What workers saw becomes the run's events, all of it, whoever is killed in between."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.reporting.event_writer import EventWriter
from engine.reporting.security_events import SecurityEvents, log_folder
from engine.reporting.spool import Spool, SpoolError
from engine.rollout.security_log import AlertEntry, RecordEntry, SecurityLog, TurnEntry
from engine.spec.event import MOST_RECORDS
from engine.spec.security import Origin, TurnText
from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.decision import EgressDecision
from sandboxes.egress.record import EgressRecord
from tests.engine.loop.test_quarantine import alert


def record(seq: int, *, sandbox: str = "sandbox", turn: int | None = 0) -> RecordEntry:
    attempt = ConnectionAttempt(sandbox=sandbox, sequence=seq, at=1.0, protocol="tcp", address="203.0.113.7", port=443)
    decision = EgressDecision(allowed=False, policy="none", reason="no-rule")
    origin = None if turn is None else Origin(trajectory="train-0-0", turn=turn)
    return RecordEntry(
        sandbox=sandbox, origin=origin, record=EgressRecord(seq=seq, attempt=attempt, decision=decision, last_at=1.0)
    )


class Run:
    """A run's folder, and an attempt at it that reads what its workers wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = SecurityLog(folder / "security-log")
        self.alerts: list[AlertEntry] = []
        self.begin_attempt()

    def begin_attempt(self) -> None:
        self.spool = Spool(self.folder / "spool")
        events = EventWriter(self.spool, attempt=1)
        self.reader = SecurityEvents(self.folder / "security-log", events, self.alerts.append)

    def events(self) -> list[dict[str, Any]]:
        lines = [line for path in sorted((self.folder / "spool").glob("*.jsonl")) for line in path.open("rb")]
        return [json.loads(line) for line in lines]

    def numbers(self) -> list[tuple[str, int]]:
        return [
            (event["sandbox"], egress["seq"])
            for event in self.events()
            if event["kind"] == "egress"
            for egress in event["records"]
        ]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_records_of_one_sandbox_and_turn_share_an_event_and_keep_their_order(run: Run) -> None:
    for entry in (record(1), record(2), alert(), record(3), record(4, turn=1), record(1, sandbox="other", turn=None)):
        run.log.write(entry)
    run.reader.drain()
    reported = [
        (event["kind"], event.get("sandbox"), event["origin"] and event["origin"]["turn"]) for event in run.events()
    ]
    assert reported == [
        ("egress", "sandbox", 0), ("alert", None, 2), ("egress", "sandbox", 0), ("egress", "sandbox", 1),
        ("egress", "other", None),
    ]  # fmt: skip
    assert [alarm.id for alarm in run.alerts] == ["sandbox/1"]


def test_the_turn_of_an_alert_is_reported_before_it(run: Run) -> None:
    text = TurnText.cut(wrote="<tool>relay()", call="relay()" * 2000)
    run.log.write(TurnEntry(origin=Origin(trajectory="train-0-1", turn=2), text=text))
    run.log.write(alert())
    run.reader.drain()
    first, second = run.events()
    assert (first["kind"], second["kind"], first["origin"]) == ("turn", "alert", second["origin"])
    assert first["text"]["wrote"] == "<tool>relay()"
    assert first["text"]["output"] is None
    assert first["text"]["call"].endswith("[cut: 14000 characters]")
    assert len(first["text"]["call"]) == 4000


def test_no_event_holds_too_many(run: Run) -> None:
    for seq in range(1, 2 * MOST_RECORDS + 2):
        run.log.write(record(seq))
    run.reader.drain()
    assert [len(event["records"]) for event in run.events()] == [MOST_RECORDS, MOST_RECORDS, 1]


def test_each_is_reported_once_also_by_the_next_attempt(run: Run) -> None:
    run.log.write(record(1))
    run.reader.close()
    run.spool.close()
    run.log.write(record(2))
    run.begin_attempt()
    run.reader.close()
    run.reader.close()
    assert run.numbers() == [("sandbox", 1), ("sandbox", 2)]


def test_killed_between_journal_and_progress_it_tells_again_and_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log.write(record(1))
    with monkeypatch.context() as killed:
        killed.setattr(run.reader._reader, "passed", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.reader.drain()
    run.spool.close()
    run.log.write(record(2))
    run.begin_attempt()
    run.reader.drain()
    assert run.numbers() == [("sandbox", 1), ("sandbox", 1), ("sandbox", 2)]


def test_a_torn_line_is_not_read_and_a_torn_progress_costs_repetition_only(run: Run) -> None:
    run.log.write(record(1))
    [path] = run.folder.glob("security-log/*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"kind":"record","sandbox":"bo')
    run.reader.drain()
    assert run.numbers() == [("sandbox", 1)]
    run.spool.close()
    (run.folder / "security-log" / "read.json").write_text('{"a')
    run.begin_attempt()
    run.reader.drain()
    assert run.numbers() == [("sandbox", 1)] * 2


def test_what_the_journal_cannot_take_is_reported_later(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.log.write(record(1))
    with monkeypatch.context() as full:
        full.setattr(run.spool, "append", lambda *_, **__: (_ for _ in ()).throw(SpoolError("the disk is full")))
        with pytest.raises(SpoolError):
            run.reader.drain()
    run.reader.drain()
    assert run.numbers() == [("sandbox", 1)]


def test_a_run_whose_sandboxes_try_nothing_has_no_folder(run: Run) -> None:
    run.reader.start()
    run.reader.close()
    assert run.events() == []
    assert not (run.folder / "security-log").exists()


def test_a_damaged_line_is_reported_and_costs_nothing_but_itself(run: Run) -> None:
    for seq in (1, 2, 3):
        run.log.write(record(seq))
    run.log.close()
    [file] = (run.folder / "security-log").glob("*.jsonl")
    first, second, third = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + b"\0" * (len(second) - 1) + b"\n" + third)
    run.reader.close()
    run.reader.drain()
    assert run.numbers() == [("sandbox", 1), ("sandbox", 3)]
    [warning] = [event["message"] for event in run.events() if event["kind"] == "log"]
    assert warning.startswith(f"{file} has a damaged line of {len(second) - 1} bytes")


def test_a_worker_that_writes_much_leaves_only_what_is_not_read_yet(run: Run) -> None:
    run.log = SecurityLog(run.folder / "security-log", segment_bytes=500)
    for seq in range(1, 21):
        run.log.write(record(seq))
    assert len(list(run.folder.glob("security-log/*.jsonl"))) > 5
    run.reader.drain()
    assert run.numbers() == [("sandbox", seq) for seq in range(1, 21)]
    run.log.write(record(21))
    run.reader.drain()
    assert run.numbers()[-1] == ("sandbox", 21)
    assert len(list(run.folder.glob("security-log/*.jsonl"))) <= 2


def test_what_the_spool_cannot_take_is_not_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.log = SecurityLog(run.folder / "security-log", segment_bytes=500)
    for seq in range(1, 11):
        run.log.write(record(seq))
    before = sorted(run.folder.glob("security-log/*.jsonl"))
    with monkeypatch.context() as full:
        full.setattr(run.spool, "append", lambda *_, **__: (_ for _ in ()).throw(SpoolError("the disk is full")))
        with pytest.raises(SpoolError):
            run.reader.drain()
    assert sorted(run.folder.glob("security-log/*.jsonl")) == before
    run.reader.drain()
    assert run.numbers() == [("sandbox", seq) for seq in range(1, 11)]


def of_0_2(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as version 0.2 wrote it."""
    old = {"sandbox": "box", "origin": "place", "decision": "verdict"}
    return {
        old.get(name, name): of_0_2(value) if isinstance(value, dict) and name != "origin" else value
        for name, value in entry.items()
    }


def test_what_workers_of_0_2_wrote_becomes_events_of_today_and_is_read_once(tmp_path: Path) -> None:
    text = TurnText.cut(wrote="<tool>relay()", call="relay()")
    entries = [record(1), TurnEntry(origin=Origin(trajectory="train-0-0", turn=0), text=text), alert()]
    lines = [json.dumps(of_0_2(entry.model_dump(mode="json"))) for entry in (record(9), *entries)]
    assert not any('sandbox":' in line or "origin" in line for line in lines)
    folder = tmp_path / "sightings"
    folder.mkdir()
    (folder / "w.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "read.json").write_text(json.dumps({"w.jsonl": len(lines[0]) + 1}))
    assert log_folder(tmp_path) == tmp_path / "security-log"
    assert not folder.exists()
    run = Run(tmp_path)
    run.reader.close()
    egress, turn, raised = run.events()
    assert (egress["sandbox"], [record["seq"] for record in egress["records"]]) == ("sandbox", [1])
    assert egress["records"][0] == record(1).record.model_dump(mode="json")
    assert turn["origin"] == {"trajectory": "train-0-0", "turn": 0}
    assert (raised["finding"]["sandbox"], raised["origin"]) == ("sandbox", alert().model_dump(mode="json")["origin"])
    assert [raised.id for raised in run.alerts] == ["sandbox/1"]


def test_a_log_of_today_is_not_replaced_by_one_of_0_2(tmp_path: Path) -> None:
    for name in ("sightings", "security-log"):
        (tmp_path / name).mkdir()
    assert log_folder(tmp_path) == tmp_path / "security-log"
    assert (tmp_path / "sightings").is_dir()
