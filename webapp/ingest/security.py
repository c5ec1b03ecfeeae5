"""What ``egress`` and ``alert`` events mean for the tables that reviewers read.

Inside the ingest's transaction, under the run's row lock, in a fixed number of statements per batch.
An attempt at a run may report the same again: ``(run, sandbox, seq)`` names a record and ``id`` an alert, and
what is there already changes nothing.  ``started`` voids nothing here: this is an audit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from engine.spec.event import AlertedTurn, AlertRaised, EgressRecorded, Event, QuarantineSettled, Started
from engine.spec.security import Origin
from sandboxes.egress.record import EgressRecord

_RECORD_COLUMNS = {
    "sandbox": "text", "seq": "bigint", "event_seq": "bigint", "trajectory_id": "text", "turn": "int", "at": "float8",
    "last_at": "float8", "phase": "text", "attempt": "bigint", "stage": "text", "protocol": "text", "family": "text",
    "address": "text", "port": "int", "name": "text", "query_type": "text", "sni": "text", "host": "text",
    "method": "text", "allowed": "bool", "policy": "text", "rule": "text", "reason": "text", "label": "text",
    "count": "bigint", "spread": "jsonb", "bytes_up": "bigint", "bytes_down": "bigint", "packets_up": "bigint",
    "ended": "text", "opening_up": "bytea", "opening_down": "bytea",
}  # fmt: skip
_MOMENTS = ("at", "last_at")


def _selected(columns: dict[str, str]) -> str:
    return ", ".join(f"to_timestamp({name})" if name in _MOMENTS else name for name in columns)


def _unnested(columns: dict[str, str]) -> str:
    arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
    return f"unnest({arrays}) AS given ({', '.join(columns)})"


_ADD_RECORDS = f"""
WITH added AS (
    INSERT INTO security_egressrecord (run_id, {", ".join(_RECORD_COLUMNS)})
    SELECT %s, {_selected(_RECORD_COLUMNS)} FROM {_unnested(_RECORD_COLUMNS)}
    ON CONFLICT (run_id, sandbox, seq) DO NOTHING
    RETURNING run_id, phase, allowed, count, bytes_up, bytes_down
)
INSERT INTO security_egresstotals AS total (run_id, records, allowed, denied, bytes_up, bytes_down)
SELECT run_id, count(*), coalesce(sum(count) FILTER (WHERE phase = 'attempt' AND allowed), 0),
       coalesce(sum(count) FILTER (WHERE phase = 'attempt' AND NOT allowed), 0), sum(bytes_up), sum(bytes_down)
FROM added GROUP BY run_id
ON CONFLICT (run_id) DO UPDATE SET
    records = total.records + excluded.records, allowed = total.allowed + excluded.allowed,
    denied = total.denied + excluded.denied, bytes_up = total.bytes_up + excluded.bytes_up,
    bytes_down = total.bytes_down + excluded.bytes_down
"""


def add_records(run_id: UUID, events: Sequence[Event]) -> None:
    rows = [
        _record_row(event, record) for event in events if isinstance(event, EgressRecorded) for record in event.records
    ]
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(_ADD_RECORDS, [run_id, *(list(column) for column in zip(*rows, strict=True))])


def _record_row(event: EgressRecorded, record: EgressRecord) -> tuple[object, ...]:
    """Return a row in the order of ``_RECORD_COLUMNS``."""
    tried, decision = record.attempt, record.decision
    return (
        event.sandbox, record.seq, event.seq, *_columns_of(event.origin), tried.at, record.last_at,
        record.phase, tried.sequence, tried.stage, tried.protocol, tried.family,
        tried.address or "", tried.port, tried.name or "", tried.query_type or "", tried.sni or "", tried.host or "",
        tried.method or "", decision.allowed, decision.policy, decision.rule or "", decision.reason, record.label or "",
        record.count, record.spread.model_dump_json() if record.spread else None,
        record.bytes_up, record.bytes_down, record.packets_up,
        record.ended or "", record.opening_up, record.opening_down,
    )  # fmt: skip


def _columns_of(origin: Origin | None) -> tuple[str, int | None]:
    return (origin.trajectory, origin.turn) if origin else ("", None)


# --- alerts -------------------------------------------------------------------------------------
_ALERT_COLUMNS = {
    "alert_id": "text", "event_seq": "bigint", "trajectory_id": "text", "turn": "int", "rule": "text",
    "severity": "text", "category": "text", "attack": "text", "title": "text", "subject": "text", "evidence": "jsonb",
    "sandbox": "text", "label": "text", "record_seq": "bigint", "at": "float8", "quarantined": "bool",
}  # fmt: skip

_IN_ORDER_OF_COMMITS = "SELECT pg_advisory_xact_lock(hashtext('security_alert'))"
"""Until our commit nobody else gives out an alert's id: a reader that has seen one has seen all below it."""

_ADD_ALERTS = f"""
WITH added AS (
    INSERT INTO security_alert (team_id, run_id, stored_at, state, {", ".join(_ALERT_COLUMNS)})
    SELECT %s, %s, now(), %s, {_selected(_ALERT_COLUMNS)} FROM {_unnested(_ALERT_COLUMNS)}
    ORDER BY event_seq
    ON CONFLICT (run_id, alert_id) DO NOTHING
    RETURNING id, run_id, alert_id, trajectory_id, quarantined, rule, severity
), held AS (
    INSERT INTO security_quarantine AS quarantine (run_id, trajectory_id, state, since, note)
    SELECT DISTINCT run_id, trajectory_id, 'pending', now(), ''
    FROM added WHERE quarantined AND trajectory_id <> ''
    ON CONFLICT (run_id, trajectory_id) DO UPDATE SET
        since = CASE WHEN quarantine.state = 'pending' THEN quarantine.since ELSE excluded.since END,
        state = 'pending', number = NULL, decided_by_id = NULL, decided_at = NULL, note = ''
)
SELECT alert_id, trajectory_id, quarantined, rule, severity FROM added ORDER BY id
"""


@dataclass(frozen=True)
class NewAlert:
    """An alert that was not there before this batch."""

    alert_id: str
    trajectory_id: str
    quarantined: bool
    rule: str
    severity: str

    @property
    def in_words(self) -> str:
        where = f" in {self.trajectory_id}" if self.trajectory_id else ""
        return f"{self.severity} alert {self.rule}{where} ({self.alert_id})"


def add_alerts(team_id: int, run_id: UUID, events: Sequence[Event], *, state: str = "open") -> list[NewAlert]:
    """Store what is new, and put the trajectories that it quarantines under quarantine (again).

    Call it late in the transaction: it makes other runs' alerts wait for the commit.
    """
    rows = [_alert_row(event) for event in events if isinstance(event, AlertRaised)]
    if not rows:
        return []
    with connection.cursor() as cursor:
        cursor.execute(_IN_ORDER_OF_COMMITS)
        cursor.execute(_ADD_ALERTS, [team_id, run_id, state, *(list(column) for column in zip(*rows, strict=True))])
        return [NewAlert(*row) for row in cursor.fetchall()]


def _alert_row(event: AlertRaised) -> tuple[object, ...]:
    """Return a row in the order of ``_ALERT_COLUMNS``."""
    found = event.finding
    return (
        event.id, event.seq, *_columns_of(event.origin), found.rule, found.severity, found.category, found.attack,
        found.title, found.subject, json.dumps(found.evidence), found.sandbox, found.label or "", found.seq,
        found.at, event.quarantined,
    )  # fmt: skip


# --- turns of alerts ----------------------------------------------------------------------------
_ADD_TURNS = """
INSERT INTO security_alertedturn AS turn_ (run_id, trajectory_id, turn, wrote, call, output, error_class, at)
SELECT %s, trajectory_id, turn, wrote, call, output, error_class, to_timestamp(at)
FROM unnest(%s::text[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[], %s::float8[])
     AS given (trajectory_id, turn, wrote, call, output, error_class, at)
ON CONFLICT (run_id, trajectory_id, turn) DO UPDATE SET
    wrote = excluded.wrote, call = excluded.call, output = excluded.output, error_class = excluded.error_class,
    at = excluded.at
"""


def add_turns(run_id: UUID, events: Sequence[Event]) -> None:
    """The last word about each turn."""
    last = {(event.origin.trajectory, event.origin.turn): event for event in events if isinstance(event, AlertedTurn)}
    rows = [
        (*origin, event.text.wrote, event.text.call, event.text.output, event.text.error_class or "", event.at)
        for origin, event in last.items()
    ]
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(_ADD_TURNS, [run_id, *(list(column) for column in zip(*rows, strict=True))])


# --- what became of quarantined trajectories ----------------------------------------------------
_VOID_OUTCOMES = """
UPDATE security_quarantine SET outcome = '', settled_step = NULL, settled = NULL
WHERE run_id = %s AND settled_step > %s
"""
_SETTLE = """
UPDATE security_quarantine AS held SET outcome = given.outcome, settled_step = given.step, settled = given.settled
FROM unnest(%s::text[], %s::text[], %s::int[], %s::jsonb[]) AS given (trajectory_id, outcome, step, settled)
WHERE held.run_id = %s AND held.trajectory_id = given.trajectory_id
"""
_DETAILS = {"updates_since", "advantage", "reward", "group_mean", "group_size", "rewards_differ", "because"}


def settle(run_id: UUID, events: Sequence[Event]) -> None:
    """Call it after ``add_alerts``.  ``started`` voids what earlier attempts settled beyond its step."""
    settled: dict[str, QuarantineSettled] = {}
    with connection.cursor() as cursor:
        for event in events:
            if isinstance(event, Started):
                settled = {name: known for name, known in settled.items() if known.step <= event.from_step}
                cursor.execute(_VOID_OUTCOMES, [run_id, event.from_step])
            elif isinstance(event, QuarantineSettled):
                settled[event.trajectory] = event
        if settled:
            rows = [
                (name, event.outcome, event.step, event.model_dump_json(include=_DETAILS, exclude_none=True))
                for name, event in settled.items()
            ]
            cursor.execute(_SETTLE, [*(list(column) for column in zip(*rows, strict=True)), run_id])
