"""Where engines deliver their events.  docs/events.md is the protocol; this is its server side.

One batch is one transaction under the run's row lock, so batches of a run come one after another
and a batch that was answered is there, whole, exactly once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import RequestDataTooBig
from django.db import DataError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from prometheus_client import Counter
from pydantic import ValidationError

from engine.spec.event import Batch, BatchResponse, Event, Finished, PhaseChanged, Started, TrajectoryStored
from engine.spec.problems import problems_in
from engine.spec.security import ReviewDecision
from webapp.api.problems import problem
from webapp.ingest.responses import pause_if_wanted, review_decisions_beyond
from webapp.ingest.runs import key_ids, project
from webapp.ingest.security import add_alerts, add_turns, settle
from webapp.runs.models import LIVE, Run, RunStatus
from webapp.runs.notify import notify_alert_viewers, notify_run_viewers
from webapp.runs.tokens import attempt_in
from webapp.security.models import AlertState

MOST_BYTES = 4 * 2**20
MOST_EVENTS = 1000
LEASE = timedelta(seconds=30)
"""Every batch, also an empty one, renews the lease for this long."""

BATCHES = Counter("palestra_ingest_batches", "Batches of engines that this process answered, by status", ["status"])
EVENTS = Counter("palestra_ingest_events", "Events that this process has stored")
BYTES = Counter("palestra_ingest_bytes", "Bytes of batches that this process has read")


class Gone(Exception):
    """The attempt was replaced, or the run has ended."""


@dataclass(frozen=True)
class Gap(Exception):
    """Events between what we have and what came are missing."""

    next_seq: int


class NotABatch(Exception):
    """The body breaks the published language or the protocol's limits; ``problems`` says where."""

    def __init__(self, message: str, problems: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.problems = problems or []


@csrf_exempt
@require_POST
def receive_batch(request: HttpRequest, run_id: UUID) -> HttpResponse:
    answer = _answer_to(request, run_id)
    BATCHES.labels(status=str(answer.status_code)).inc()
    return answer


def _answer_to(request: HttpRequest, run_id: UUID) -> HttpResponse:
    attempt = attempt_in(request.headers.get("Authorization", "").removeprefix("Bearer "), run_id)
    if attempt is None:
        return problem(401, "this is no token of an attempt of this run")
    try:
        batch = _batch_in(_body_of(request))
        if batch.attempt != attempt:
            return problem(401, f"the token is of attempt {attempt}, the batch of attempt {batch.attempt}")
        answer = accept(run_id, batch)
    except NotABatch as error:
        return problem(422, str(error), problems=error.problems)
    except DataError as error:
        return problem(422, f"the database cannot hold this batch: {error}")
    except Gone as error:
        return problem(410, str(error))
    except Gap as gap:
        return HttpResponse(json.dumps({"next_seq": gap.next_seq}), status=409, content_type="application/json")
    return HttpResponse(answer.model_dump_json(), content_type="application/json")


def _body_of(request: HttpRequest) -> bytes:
    """Whether or not its length was announced.  Raises NotABatch."""
    too_long = f"a batch may have {MOST_BYTES} bytes; send fewer events"
    try:
        body = request.body
    except RequestDataTooBig:
        raise NotABatch(too_long) from None
    if len(body) > MOST_BYTES:
        raise NotABatch(too_long)
    BYTES.inc(len(body))
    return body


def _batch_in(body: bytes) -> Batch:
    # PostgreSQL's text has no NUL.  What a tool printed is shown with the replacement character instead.
    try:
        if b"\\u0000" in body:
            body = json.dumps(_without_nul(json.loads(body))).encode()
        batch = Batch.model_validate_json(body)
    except ValidationError as error:
        raise NotABatch(
            "the batch is not what the spec says", [problem.as_dict() for problem in problems_in(error, Batch)]
        ) from None
    except (ValueError, RecursionError) as error:
        raise NotABatch(f"the body is not JSON that can be read: {error}") from None
    if len(batch.events) > MOST_EVENTS:
        raise NotABatch(f"a batch may have {MOST_EVENTS} events; this one has {len(batch.events)}")
    for expected, event in enumerate(batch.events, start=batch.first_seq):
        if event.seq != expected:
            raise NotABatch(f"events must be consecutive: {expected} expected, {event.seq} found")
        if event.attempt > batch.attempt:
            raise NotABatch(f"event {event.seq} is of attempt {event.attempt}, which has not begun")
    return batch


def _without_nul(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
        case list():
            return [_without_nul(item) for item in value]
        case dict():
            return {_without_nul(key): _without_nul(item) for key, item in value.items()}
        case _:
            return value


def accept(run_id: UUID, batch: Batch) -> BatchResponse:
    """Store what is new in the batch.  Raises Gone, Gap, DataError; then nothing of it is stored."""
    # Outside the transaction, so that two runs which meet the same new names cannot wait for each other.
    key_ids({name for event in batch.events if event.kind == "metric" for name in event.values})
    with transaction.atomic():
        run = Run.objects.select_for_update().defer("spec", "summary").filter(id=run_id).first()
        if run is None:
            raise Gone("there is no such run any more")
        next_seq = run.last_seq + 1
        if run.has_ended and batch.attempt == run.attempt and batch.events and batch.events[-1].seq < next_seq:
            return _answer(run, next_seq)  # the answer to the last batch was lost
        _refuse_replaced(run, batch)
        if batch.first_seq > next_seq:
            raise Gap(next_seq)
        fresh = batch.events[next_seq - batch.first_seq :]
        _append(run_id, fresh)
        project(run_id, fresh)
        _advance(run, batch, fresh)
        add_turns(run_id, fresh)
        if alerts := add_alerts(run.team_id, run_id, fresh, state=_state_of_alerts(run)):
            pause_if_wanted(run, alerts)
            transaction.on_commit(lambda: notify_alert_viewers())
        settle(run_id, fresh)
        transaction.on_commit(lambda: notify_run_viewers(run_id))
        transaction.on_commit(lambda: EVENTS.inc(len(fresh)))
        review_decisions = review_decisions_beyond(run, batch.heartbeat.decided_through if batch.heartbeat else None)
        return _answer(run, run.last_seq + 1, review_decisions)


def _answer(run: Run, next_seq: int, review_decisions: Sequence[ReviewDecision] = ()) -> BatchResponse:
    return BatchResponse.model_validate(
        {"next_seq": next_seq, "desired": run.desired, "review_decisions": review_decisions}
    )


def _state_of_alerts(run: Run) -> str:
    """The batch that ends a run may bring its last alerts."""
    return AlertState.RUN_ENDED if run.has_ended else AlertState.OPEN


def _refuse_replaced(run: Run, batch: Batch) -> None:
    if batch.attempt != run.attempt:
        raise Gone(f"attempt {batch.attempt} was replaced by attempt {run.attempt}")
    if run.state not in LIVE:
        raise Gone(f"attempt {batch.attempt} was given up; the run is {run.state}")


_APPEND = """
INSERT INTO runs_event (run_id, seq, attempt, kind, step, at, body)
SELECT %s, seq, attempt, kind, step, to_timestamp(at), body
FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::int[], %s::float8[], %s::jsonb[])
     AS given (seq, attempt, kind, step, at, body)
"""


def _append(run_id: UUID, events: Sequence[Event]) -> None:
    if not events:
        return
    rows = [
        (event.seq, event.attempt, event.kind, _step_of(event), event.at, event.model_dump_json()) for event in events
    ]
    with connection.cursor() as cursor:
        cursor.execute(_APPEND, [run_id, *(list(column) for column in zip(*rows, strict=True))])


def _step_of(event: Event) -> int | None:
    match event:
        case TrajectoryStored():
            return event.trajectory.sampled_for_step
        case Started():
            return event.from_step
        case _:
            return getattr(event, "step", None)


def _advance(run: Run, batch: Batch, fresh: Sequence[Event]) -> None:
    """Bring the run's row to the end of the batch."""
    now = timezone.now()
    fields: dict[str, Any] = {
        "last_seq": run.last_seq + len(fresh),
        "heartbeat_at": now,
        "lease_until": now + LEASE,
        "missed_heartbeats": 0,
    }
    for event in fresh:
        if isinstance(event, Started):
            fields |= {"step": event.from_step, "total_steps": event.total_steps}
        elif isinstance(event, PhaseChanged) and event.seconds is None:
            fields |= {"step": event.step, "phase": event.phase}
    if batch.heartbeat is not None:
        heartbeat = batch.heartbeat
        fields |= {
            "heartbeat": heartbeat.model_dump(),
            "step": heartbeat.step,
            "phase": heartbeat.phase,
            "total_steps": heartbeat.total_steps,
        }
    if fresh and isinstance(fresh[-1], Finished) and fresh[-1].outcome == "succeeded":
        # The heartbeat may be that of a later attempt, which only delivered an earlier one's last words.
        fields |= {"step": fields.get("total_steps", run.total_steps), "phase": "finish"}
    Run.objects.filter(id=run.id).update(**fields)
    run.last_seq = fields["last_seq"]
    _follow_engine(run, batch, fresh)


def _follow_engine(run: Run, batch: Batch, fresh: Sequence[Event]) -> None:
    """Make the moves that the batch tells of.  We hold the row's lock, so each of them wins."""
    if run.state == RunStatus.LAUNCHING:
        run.move_to(RunStatus.RUNNING, by="engine", started_at=run.started_at or timezone.now())
    finished = fresh[-1] if fresh else None
    # It may be an older attempt's, killed before it could say so.  If ``started`` follows, the work is done again.
    if isinstance(finished, Finished):
        failed = finished.outcome == "failed"
        reason = finished.reason or ("the engine gave no reason" if failed else "")
        failure_reason = reason if failed else run.failure_reason
        summary = finished.model_dump(mode="json")["summary"]
        run.move_to(finished.outcome, by="engine", reason=reason, summary=summary, failure_reason=failure_reason)
    elif batch.heartbeat is not None:
        state = RunStatus.PAUSED if batch.heartbeat.phase == "paused" else RunStatus.RUNNING
        if state != run.state:
            reason = run.desired_because if state == RunStatus.PAUSED else ""
            run.move_to(state, by="engine", reason=reason)
