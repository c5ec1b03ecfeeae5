"""Records and alerts are stored once, whatever is told again; a quarantine opens with news and never without."""

import random
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.webapp.runs.conftest import Engine, egress_record, finding
from webapp.runs.models import Desired, Run, RunStatus
from webapp.security.models import Alert, EgressRecord, EgressTotals, Quarantine
from webapp.security.services import review

pytestmark = pytest.mark.django_db


def test_a_record_row_says_what_the_record_says(engine: Engine, launching_run: Run) -> None:
    record = egress_record(
        7, count=3, spread={"addresses": 3, "ports": 1, "names": 0}, bytes_up=10, bytes_down=20, packets_up=2,
        opening_up="_wBTU0g=", ended="denied", last_at=1_790_000_060.5,
        attempt={"stage": "opening", "sni": "pool.example", "host": "pool.example:80", "method": "GET"},
        decision={"rule": "packages", "reason": "name-mismatch"},
    )  # fmt: skip
    assert engine.post(engine.egress(record)).status_code == 200
    row = EgressRecord.objects.get(run=launching_run)
    assert (row.sandbox, row.seq, row.event_seq, row.trajectory_id, row.turn) == ("sandbox-1", 7, 1, "train-1-0", 1)
    assert (row.protocol, row.family, row.address, row.port) == ("tcp", "ipv4", "203.0.113.7", 4444)
    assert (row.sni, row.host, row.method, row.stage) == ("pool.example", "pool.example:80", "GET", "opening")
    assert (row.allowed, row.policy, row.rule, row.reason) == (False, "python-work", "packages", "name-mismatch")
    assert (row.count, row.spread["addresses"], row.bytes_up, row.bytes_down, row.packets_up) == (3, 3, 10, 20, 2)
    assert (row.phase, row.ended, row.label, row.attempt) == ("attempt", "denied", "python", 7)
    assert bytes(row.opening_up) == b"\xff\x00SSH"
    assert row.opening_text == r"\xff\x00SSH"
    assert row.last_at.timestamp() == 1_790_000_060.5


def test_an_alert_row_says_what_the_finding_says(engine: Engine, launching_run: Run, team: Any) -> None:
    engine.post(engine.alert(finding=finding(seq=None, label=None)))
    alert = Alert.objects.get()
    assert (alert.team, alert.run, alert.alert_id, alert.event_seq) == (team, launching_run, "sandbox-1/1", 1)
    assert (alert.rule, alert.severity, alert.category) == ("mining-stratum", "critical", "Safety & Security")
    assert (alert.attack, alert.title, alert.subject) == ("T1496", "Mining protocol", "203.0.113.7:4444")
    assert alert.evidence == ["mining.subscribe to 203.0.113.7:4444"]
    assert (alert.trajectory_id, alert.turn, alert.record_seq, alert.label) == ("train-1-0", 1, None, "")
    assert (alert.quarantined, alert.state) == (True, "open")


def test_what_nobody_called_for_has_no_place_and_quarantines_nothing(engine: Engine) -> None:
    engine.post(engine.egress(egress_record(), origin=None), engine.alert(origin=None))
    assert EgressRecord.objects.get().trajectory_id == Alert.objects.get().trajectory_id == ""
    assert EgressRecord.objects.get().turn is None
    assert not Quarantine.objects.exists()


def test_an_alert_without_quarantine_holds_nothing(engine: Engine) -> None:
    engine.post(engine.alert(quarantined=False))
    assert Alert.objects.count() == 1
    assert not Quarantine.objects.exists()


def test_a_new_attempt_voids_no_record_and_no_alert(alarming_run: Run, engine: Engine) -> None:
    engine.post(engine.started(from_step=0))
    assert (EgressRecord.objects.count(), Alert.objects.count(), Quarantine.objects.count()) == (2, 1, 1)
    assert alarming_run.trajectories.count() == 0  # while the work of the old one is void


def test_two_runs_may_have_the_same_sandbox_and_alert(alarming_run: Run, team: Any, alice: Any, spec: Any) -> None:
    from webapp.runs.services import submit_run

    other = submit_run(team, spec, acting_user=alice)
    other.move_to(RunStatus.LAUNCHING, by="worker", attempt=1)
    engine = Engine(other)
    engine.post(engine.egress(egress_record()), engine.alert())
    assert sorted(Alert.objects.values_list("run__number", flat=True)) == [1, 2]
    assert EgressRecord.objects.filter(run=other).count() == 1


# --- told again ---------------------------------------------------------------------------------
def _events() -> list[dict[str, Any]]:
    """Without numbers: 3 sandboxes with 4 records and 2 alerts each; each event stands for one telling."""
    events: list[dict[str, Any]] = []
    for sandbox in ("a", "b", "c"):
        origin = {"trajectory": f"train-1-{sandbox}", "turn": 0}
        for first in (1, 3):
            records = [
                egress_record(
                    seq, sandbox, count=seq, bytes_up=5 * seq, phase="attempt" if seq < 4 else "traffic",
                    decision={"allowed": seq % 2 == 0},
                )
                for seq in (first, first + 1)
            ]  # fmt: skip
            events.append({"kind": "egress", "sandbox": sandbox, "origin": origin, "records": records})
        for number in (1, 2):
            events.append({"kind": "alert", "id": f"{sandbox}/{number}", "origin": origin, "finding": finding(sandbox),
                           "quarantined": number == 1})  # fmt: skip
    return events


EVENTS = _events()


def stored(run: Run) -> tuple[Any, ...]:
    """Everything that must not depend on how often and in which batches it was told."""
    records = EgressRecord.objects.filter(run=run).order_by("sandbox", "seq")
    totals = EgressTotals.objects.filter(run=run).values_list("records", "allowed", "denied", "bytes_up", "bytes_down")
    alerts = Alert.objects.filter(run=run).order_by("alert_id").values_list("alert_id", "rule", "quarantined", "state")
    held = Quarantine.objects.filter(run=run).order_by("trajectory_id").values_list("trajectory_id", "state")
    return (
        list(records.values_list("sandbox", "seq", "count", "bytes_up", "allowed")),
        *totals,
        list(alerts),
        list(held),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tellings=st.lists(st.integers(0, len(EVENTS) - 1), max_size=40),
    cuts=st.sets(st.integers(1, 60)),
    seed=st.integers(0, 9),
)
def test_any_repetition_in_any_batches_gives_the_same_rows(
    launching_run: Run, tellings: list[int], cuts: set[int], seed: int
) -> None:
    Run.objects.filter(id=launching_run.id).update(last_seq=0)
    launching_run.events.all().delete()
    for model in (EgressRecord, EgressTotals, Alert, Quarantine):
        model.objects.all().delete()
    order = [*range(len(EVENTS)), *tellings]
    random.Random(seed).shuffle(order)
    engine, batch = Engine(launching_run), []
    for count, index in enumerate(order, start=1):
        batch.append(engine.event(**EVENTS[index]))
        if count in cuts or count == len(order):
            assert engine.post(*batch).status_code == 200
            batch = []
    records, totals, alerts, held = stored(launching_run)
    assert [row[:2] for row in records] == [(sandbox, seq) for sandbox in "abc" for seq in (1, 2, 3, 4)]
    assert totals == (12, 3 * 2, 3 * (1 + 3), 3 * 5 * 10, 0)
    assert alerts == [(f"{sandbox}/{n}", "mining-stratum", n == 1, "open") for sandbox in "abc" for n in (1, 2)]
    assert held == [(f"train-1-{sandbox}", "pending") for sandbox in "abc"]


def test_the_totals_are_the_sums_of_the_rows(engine: Engine, launching_run: Run) -> None:
    for first in range(1, 40, 10):
        engine.post(engine.egress(*(egress_record(seq, count=seq, bytes_down=seq) for seq in range(first, first + 10))))
    totals = EgressTotals.objects.get(run=launching_run)
    rows = EgressRecord.objects.aggregate(count=Sum("count"), down=Sum("bytes_down"))
    assert (totals.attempts, totals.bytes_down) == (rows["count"], rows["down"]) == (820, 820)


def test_a_thousand_events_take_as_many_statements_as_ten(engine: Engine) -> None:
    engine.post(engine.started(), heartbeat=engine.heartbeat())

    def queries(count: int) -> int:
        base = engine.next_seq * 10
        events = [
            engine.egress(*(egress_record(base + 3 * i + k, "x") for k in range(3)), sandbox="x")
            for i in range(count // 2)
        ]
        events += [engine.alert(f"x/{base + i}", quarantined=i % 2 == 0) for i in range(count // 2)]
        with CaptureQueriesContext(connection) as captured:
            assert engine.post(*events, heartbeat=engine.heartbeat()).status_code == 200
        return len(captured)

    few, many = queries(10), queries(1000)
    assert many == few <= 12


def test_a_batch_without_news_of_sandboxes_costs_no_statement_more(engine: Engine) -> None:
    engine.post(engine.started(), heartbeat=engine.heartbeat())
    with CaptureQueriesContext(connection) as captured:
        engine.post(engine.log("x"), heartbeat=engine.heartbeat(decided_through=0))
    assert not [query for query in captured if "security_" in query["sql"]]


# --- quarantine ---------------------------------------------------------------------------------
def test_only_an_alert_that_was_not_known_opens_a_quarantine_again(
    alarming_run: Run, engine: Engine, rita: Any
) -> None:
    review(alarming_run, "train-1-0", "benign", "a tutorial", acting_user=rita)
    engine.post(engine.alert("sandbox-1/1"))
    held = Quarantine.objects.get()
    assert (held.state, held.note, held.number) == ("benign", "a tutorial", 1)
    engine.post(engine.alert("sandbox-2/1"))
    held = Quarantine.objects.get()
    assert (held.state, held.note, held.number, held.decided_by) == ("pending", "", None, None)


def test_a_second_alert_does_not_move_the_beginning_of_a_pending_quarantine(alarming_run: Run, engine: Engine) -> None:
    Quarantine.objects.update(since="2026-01-01T00:00:00Z")
    engine.post(engine.alert("sandbox-1/2"))
    assert Quarantine.objects.get().since.year == 2026


# --- review decisions in the answer ----------------------------------------------------------------------
def heard(engine: Engine, decided_through: int | None) -> list[tuple[int, str, str]]:
    answer = engine.post(heartbeat=engine.heartbeat(decided_through=decided_through))
    return [
        (document["number"], document["trajectory"], document["verdict"])
        for document in answer.json()["review_decisions"]
    ]


def test_the_answer_carries_the_newest_review_decision_of_each_trajectory_beyond_what_the_engine_has(
    alarming_run: Run, engine: Engine, rita: Any
) -> None:
    engine.post(engine.alert("b/1", origin={"trajectory": "train-1-1", "turn": 0}))
    assert heard(engine, 0) == []
    review(alarming_run, "train-1-0", "benign", acting_user=rita)
    review(alarming_run, "train-1-1", "malicious", acting_user=rita)
    review(alarming_run, "train-1-0", "malicious", "on second thought", acting_user=rita)
    assert heard(engine, 0) == [(2, "train-1-1", "malicious"), (3, "train-1-0", "malicious")]
    assert heard(engine, 2) == [(3, "train-1-0", "malicious")]
    assert heard(engine, 3) == []
    assert heard(engine, None) == []


def test_what_an_alert_opened_again_is_not_decided_on(alarming_run: Run, engine: Engine, rita: Any) -> None:
    review(alarming_run, "train-1-0", "benign", acting_user=rita)
    engine.post(engine.alert("sandbox-2/1"))
    assert heard(engine, 0) == []
    review(alarming_run, "train-1-0", "malicious", acting_user=rita)
    assert heard(engine, 0) == [(2, "train-1-0", "malicious")]


def test_many_review_decisions_come_in_several_answers_in_order(engine: Engine, launching_run: Run, rita: Any) -> None:
    names = [f"train-1-{index}" for index in range(130)]
    engine.post(*(engine.alert(f"b/{i}", origin={"trajectory": name, "turn": 0}) for i, name in enumerate(names)))
    for name in names:
        review(launching_run, name, "benign", acting_user=rita)
    first = heard(engine, 0)
    assert [number for number, _, _ in first] == list(range(1, 101))
    assert [number for number, _, _ in heard(engine, 100)] == list(range(101, 131))


def test_an_answer_takes_one_statement_for_review_decisions_and_none_without_any(
    alarming_run: Run, engine: Engine, rita: Any
) -> None:
    review(alarming_run, "train-1-0", "benign", acting_user=rita)

    def asked(decided_through: int) -> int:
        with CaptureQueriesContext(connection) as captured:
            heard(engine, decided_through)
        return len([query for query in captured if "security_" in query["sql"]])

    assert (asked(0), asked(1)) == (1, 0)


# --- pause --------------------------------------------------------------------------------------
@pytest.fixture
def cautious_run(launching_run: Run) -> Run:
    """Its environment pauses the run when something is quarantined."""
    launching_run.spec["environment"]["response"]["pause"] = True
    launching_run.save(update_fields=["spec"])
    return launching_run


def test_a_quarantine_pauses_a_run_whose_environment_wants_that(cautious_run: Run, engine: Engine, team: Any) -> None:
    answer = engine.post(engine.started(), engine.alert(), heartbeat=engine.heartbeat())
    assert answer.json()["desired"] == "pause"
    cautious_run.refresh_from_db()
    assert cautious_run.desired == Desired.PAUSE
    assert cautious_run.desired_because == "paused by critical alert mining-stratum in train-1-0 (sandbox-1/1)"
    entry = team.audit_entries.get(verb="run.pause")
    assert (entry.user, entry.who, entry.details["rule"]) == (None, "alert sandbox-1/1", "mining-stratum")
    engine.post(heartbeat=engine.heartbeat("paused"))
    assert cautious_run.transitions.last().reason == cautious_run.desired_because


def test_an_alert_that_comes_again_does_not_pause_what_a_person_resumed(
    cautious_run: Run, engine: Engine, alice: Any
) -> None:
    from webapp.runs.services import resume_run

    engine.post(engine.started(), engine.alert())
    resume_run(cautious_run, acting_user=alice)
    assert engine.post(engine.alert()).json()["desired"] == "run"
    cautious_run.refresh_from_db()
    assert cautious_run.desired_because == ""
    assert engine.post(engine.alert("sandbox-9/1")).json()["desired"] == "pause"


@pytest.mark.parametrize("changes", [{"quarantined": False}])
def test_an_alert_that_quarantines_nothing_pauses_nothing(
    cautious_run: Run, engine: Engine, changes: dict[str, Any]
) -> None:
    assert engine.post(engine.alert(**changes)).json()["desired"] == "run"


def test_a_run_that_is_being_cancelled_stays_so(cautious_run: Run, engine: Engine) -> None:
    Run.objects.update(desired=Desired.CANCEL)
    assert engine.post(engine.alert()).json()["desired"] == "cancel"


def test_a_run_without_that_policy_goes_on(engine: Engine) -> None:
    assert engine.post(engine.alert()).json()["desired"] == "run"


def test_a_run_from_before_there_were_responses_goes_on(engine: Engine, launching_run: Run) -> None:
    del launching_run.spec["environment"]["response"]
    launching_run.save(update_fields=["spec"])
    assert engine.post(engine.alert()).json()["desired"] == "run"


def test_the_run_that_ends_in_the_same_batch_is_not_paused(cautious_run: Run, engine: Engine) -> None:
    engine.post(engine.started(), engine.alert(), engine.finished())
    cautious_run.refresh_from_db()
    assert (cautious_run.state, cautious_run.desired) == (RunStatus.SUCCEEDED, Desired.RUN)


# --- hostile values -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [
        {"origin": {"trajectory": "t" * 101, "turn": 0}},
        {"origin": {"trajectory": "t", "turn": 2**40}},
        {"sandbox": "b" * 201},
    ],
)
def test_what_the_tables_cannot_hold_is_refused_and_not_a_crash(engine: Engine, changes: dict[str, Any]) -> None:
    assert engine.post(engine.egress(egress_record(), **changes)).status_code == 422
    assert not EgressRecord.objects.exists()
