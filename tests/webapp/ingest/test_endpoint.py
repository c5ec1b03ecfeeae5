"""docs/events.md, the service's side, row by row."""

import asyncio
import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.webapp.at_once import at_once
from webapp.asgi import application
from webapp.ingest import endpoint
from webapp.runs.models import Desired, Event, Run, RunStatus
from webapp.runs.tokens import attempt_token

pytestmark = pytest.mark.django_db


def seqs(run: Run) -> list[int]:
    return list(run.events.order_by("seq").values_list("seq", flat=True))


def test_a_batch_is_stored_and_answered_with_the_next_number_and_what_is_wanted(
    engine: Any, launching_run: Run
) -> None:
    answer = engine.post(engine.started(), engine.metric(1, train__reward=0.5), heartbeat=engine.heartbeat(eta_s=9.0))
    assert (answer.status_code, answer.json()) == (200, {"next_seq": 3, "desired": "run", "review_decisions": []})
    launching_run.refresh_from_db()
    assert launching_run.state == RunStatus.RUNNING
    assert launching_run.last_seq == 2
    assert (launching_run.phase, launching_run.step, launching_run.eta_s) == ("collect", 1, 9.0)
    assert launching_run.started_at is not None
    assert launching_run.lease_until > launching_run.heartbeat_at


def test_the_log_keeps_each_event_as_it_was_sent(engine: Any, launching_run: Run) -> None:
    sent = [engine.started(), engine.trajectory(), engine.log("naïve \U0001f40d \\u0041")]
    engine.post(*sent)
    stored = list(launching_run.events.order_by("seq").values_list("body", flat=True))
    for event, body in zip(sent, stored, strict=True):
        assert {key: body[key] for key in event if key != "trajectory"} == {
            k: v for k, v in event.items() if k != "trajectory"
        }
    assert stored[1]["trajectory"]["segments"][0]["turns"][0]["tool_calls"][0]["error_class"] == "zero-division"


def test_what_is_there_already_is_skipped_and_the_rest_stored(engine: Any, launching_run: Run) -> None:
    first, second, third = engine.started(), engine.log("a"), engine.log("b")
    engine.post(first, second)
    answer = engine.post(first, second, third)
    assert answer.json()["next_seq"] == 4
    assert engine.post(first, second, third).json()["next_seq"] == 4
    assert seqs(launching_run) == [1, 2, 3]


def test_a_gap_is_answered_with_the_number_to_go_on_from(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started())
    answer = engine.post(engine.log("late"), first_seq=5, events=[engine.log("x") | {"seq": 5}])
    assert (answer.status_code, answer.json()) == (409, {"next_seq": 2})
    assert seqs(launching_run) == [1]


def test_an_empty_batch_is_a_heartbeat(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started())
    Run.objects.update(lease_until=None, heartbeat_at=None)
    assert engine.post(heartbeat=engine.heartbeat()).json() == {"next_seq": 2, "desired": "run", "review_decisions": []}
    launching_run.refresh_from_db()
    assert launching_run.lease_until is not None


def test_an_empty_batch_far_ahead_is_a_gap_too(engine: Any) -> None:
    engine.next_seq = 9
    assert engine.post().json() == {"next_seq": 1}


@pytest.mark.parametrize("desired", Desired.values)
def test_the_answer_says_what_is_wanted(engine: Any, launching_run: Run, desired: str) -> None:
    Run.objects.update(desired=desired)
    assert engine.post(engine.started()).json()["desired"] == desired


def test_a_replaced_attempt_can_write_nothing(engine: Any, launching_run: Run, engine_of: Any) -> None:
    engine.post(engine.started())
    Run.objects.update(attempt=2, state=RunStatus.LAUNCHING)
    assert engine.post(engine.log("zombie")).status_code == 410
    assert engine.post().status_code == 410
    assert seqs(launching_run) == [1]
    successor = engine_of(launching_run, attempt=2, next_seq=2)
    assert successor.post(successor.started()).status_code == 200


def test_an_attempt_that_was_given_up_is_fenced_before_the_next_begins(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started())
    Run.objects.update(state=RunStatus.QUEUED)
    assert engine.post(engine.log("zombie")).status_code == 410


def test_the_next_attempt_delivers_what_the_last_one_left_in_the_spool(
    engine: Any, launching_run: Run, engine_of: Any
) -> None:
    left = [engine.started(), engine.log("never shipped"), engine.finished()]
    Run.objects.update(attempt=2)
    successor = engine_of(launching_run, attempt=2, next_seq=4)
    assert successor.post(*left, successor.started()).json()["next_seq"] == 5
    launching_run.refresh_from_db()
    assert launching_run.state == RunStatus.RUNNING  # the old attempt's end is history: this one does the work again


def test_an_end_that_the_last_attempt_could_not_deliver_ends_the_run(
    engine: Any, launching_run: Run, engine_of: Any
) -> None:
    left = [engine.started(), engine.finished()]
    Run.objects.update(attempt=2)
    engine_of(launching_run, attempt=2).post(*left)
    launching_run.refresh_from_db()
    assert launching_run.state == RunStatus.SUCCEEDED


def test_a_token_of_nobody_another_run_or_another_attempt_is_401(
    engine: Any, launching_run: Run, engine_of: Any
) -> None:
    body = json.dumps({"attempt": 1, "first_seq": 1, "events": []})
    other_run = Run(id="00000000-0000-0000-0000-000000000001", attempt=1)
    for token in (
        "",
        "nonsense",
        engine.token[:-1] + "x",
        engine_of(other_run).token,
        engine_of(launching_run, attempt=2).token,
    ):
        assert engine.post_raw(body, token=token or "-").status_code == 401
    assert engine.post_raw(body).status_code == 200


def test_a_success_stands_at_its_last_step_whatever_the_heartbeat_of_its_bringer_says(
    engine: Any, launching_run: Run
) -> None:
    engine.post(engine.started(), heartbeat=engine.heartbeat("update", step=60))
    engine.post(engine.finished(), heartbeat=engine.heartbeat("start", step=0))
    launching_run.refresh_from_db()
    assert (launching_run.state, launching_run.step, launching_run.phase) == ("succeeded", 60, "finish")


def test_finished_ends_the_run_with_its_summary(engine: Any, launching_run: Run) -> None:
    engine.post(
        engine.started(), engine.finished(summary={"steps": 60, "success_greedy": {"before_rl": 0.1, "after": 0.9}})
    )
    launching_run.refresh_from_db()
    assert launching_run.state == RunStatus.SUCCEEDED
    assert launching_run.summary["success_greedy"]["after"] == 0.9
    assert launching_run.ended_at is not None
    moves = list(launching_run.transitions.values_list("from_state", "to_state", "by"))
    assert moves[1:] == [("launching", "running", "engine"), ("running", "succeeded", "engine")]


def test_a_failed_run_says_why(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started(), engine.finished("failed", reason="the disk is full"))
    launching_run.refresh_from_db()
    assert (launching_run.state, launching_run.failure_reason) == (RunStatus.FAILED, "the disk is full")


def test_the_last_batch_may_be_sent_again_but_nothing_new_after_the_end(engine: Any) -> None:
    last = [engine.started(), engine.finished()]
    engine.post(*last)
    assert engine.post(*last).json()["next_seq"] == 3
    assert engine.post(engine.log("ghost")).status_code == 410
    assert engine.post().status_code == 410


def test_pausing_and_going_on_show_in_the_state(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started(), heartbeat=engine.heartbeat("collect"))
    engine.post(heartbeat=engine.heartbeat("paused"))
    launching_run.refresh_from_db()
    assert launching_run.state == RunStatus.PAUSED
    engine.post(heartbeat=engine.heartbeat("collect"))
    launching_run.refresh_from_db()
    assert launching_run.state == RunStatus.RUNNING


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"values": {"train/reward": "high"}}, "events.0.values.train/reward"),
        ({"surprise": 1}, "events.0.surprise"),
        ({"kind": "rumour"}, "events.0.kind"),
    ],
)
def test_what_is_no_event_is_refused_whole_and_named(
    engine: Any, launching_run: Run, change: dict[str, Any], field: str
) -> None:
    answer = engine.post(engine.metric(1, a=1.0) | change)
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["field"] == field
    assert answer["Content-Type"] == "application/problem+json"
    assert seqs(launching_run) == []


def test_numbers_that_are_not_consecutive_are_refused(engine: Any) -> None:
    assert engine.post(engine.started(), engine.log("x") | {"seq": 7}).status_code == 422


@pytest.mark.parametrize("body", [
    "", "[]", "{", '{"attempt": 1, "x": "\\u0000"', '{"x": "\\u0000", "y": ' + "9" * 5000 + "}",
    '{"x": "\\u0000", "y": ' + "[" * 9000 + "]" * 9000 + "}", "[" * 9000,
])  # fmt: skip
def test_a_body_that_is_no_batch_is_422(engine: Any, body: str) -> None:
    assert engine.post_raw(body).status_code == 422


@pytest.mark.parametrize("change", [{"step": 2**40}, {"at": 1e300}, {"step": 2**70}])
def test_what_the_database_cannot_hold_is_refused_and_not_a_crash(
    engine: Any, launching_run: Run, change: dict[str, Any]
) -> None:
    assert engine.post(engine.metric(1, a=1.0) | change).status_code == 422
    assert seqs(launching_run) == []


def test_too_many_events_or_bytes_are_refused(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.post(*(engine.log("x") for _ in range(1001))).status_code == 422
    monkeypatch.setattr(endpoint, "MOST_BYTES", 100)
    engine.next_seq = 1
    assert engine.post(engine.log("x" * 100)).status_code == 422


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("length", [endpoint.MOST_BYTES + 1, 6 * 2**20])
def test_a_body_that_is_too_long_is_a_problem_whether_or_not_its_length_is_announced(
    launching_run: Run, length: int, is_announced: bool
) -> None:
    document = json.dumps({"attempt": 1, "first_seq": 1, "events": []}).encode()
    status, headers, body = posted_in_parts(launching_run, document.ljust(length), is_announced=is_announced)
    assert (status, headers[b"content-type"]) == (422, b"application/problem+json")
    assert f"a batch may have {endpoint.MOST_BYTES} bytes" in json.loads(body)["detail"]


@pytest.mark.django_db(transaction=True)
def test_a_body_of_the_most_bytes_is_taken_without_an_announced_length(launching_run: Run) -> None:
    document = json.dumps({"attempt": 1, "first_seq": 1, "events": []}).encode()
    status, _, _ = posted_in_parts(launching_run, document.ljust(endpoint.MOST_BYTES), is_announced=False)
    assert status == 200


def posted_in_parts(run: Run, body: bytes, *, is_announced: bool) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of the answer to a batch that comes by ASGI in parts of 256 KiB."""
    length = {"content-length": str(len(body))} if is_announced else {}
    headers = {"host": "127.0.0.1", "authorization": f"Bearer {attempt_token(run.id, 1)}"} | length
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": f"/ingest/v1/runs/{run.id}/batches", "raw_path": b"", "query_string": b"", "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    parts = [body[begin : begin + 2**18] for begin in range(0, len(body), 2**18)]
    sent: list[Any] = []

    async def receive() -> Any:
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    start, *rest = sent
    headers_sent = {name.lower(): value for name, value in start["headers"]}
    return start["status"], headers_sent, b"".join(message.get("body", b"") for message in rest)


def test_nul_characters_that_a_tool_printed_do_not_stop_the_stream(engine: Any, launching_run: Run) -> None:
    assert engine.post(engine.log("a\0b"), engine.trajectory(answer="\0")).status_code == 200
    assert launching_run.events.get(seq=1).body["message"] == "a\N{REPLACEMENT CHARACTER}b"


def test_a_thousand_events_are_one_batch_with_a_bounded_number_of_queries(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started(), engine.metric(0, train__reward=0.0, train__loss=0.0), heartbeat=engine.heartbeat())

    def queries(count: int) -> int:
        events = [
            engine.metric(step, train__reward=1.0, train__loss=2.0)
            for step in range(engine.next_seq, engine.next_seq + count // 2)
        ]
        events += [engine.trajectory(step=engine.next_seq, index=index) for index in range(count // 2)]
        with CaptureQueriesContext(connection) as captured:
            assert engine.post(*events, heartbeat=engine.heartbeat()).status_code == 200
        return len(captured)

    few, many = queries(10), queries(1000)
    assert many == few <= 12
    assert launching_run.events.count() == 1012


@pytest.mark.django_db(transaction=True)
def test_two_senders_of_the_same_events_store_each_once(engine: Any, launching_run: Run, engine_of: Any) -> None:
    batches = [[engine.log(f"{batch} {item}") for item in range(5)] for batch in range(20)]

    def send() -> set[int]:
        sender = engine_of(launching_run)
        return {sender.post(*batch).status_code for batch in batches}

    assert at_once(*[send] * 3) == [{200}] * 3
    assert seqs(launching_run) == list(range(1, 101))


@pytest.mark.django_db(transaction=True)
def test_live_viewers_are_notified_after_the_commit_and_a_dead_valkey_fails_nothing(
    engine: Any, launching_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        endpoint, "notify_run_viewers", lambda run_id: seen.append(Event.objects.filter(run_id=run_id).count())
    )
    engine.post(engine.started())
    assert seen == [1]
