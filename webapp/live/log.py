"""Reads a run's log and header for live viewers, as JSON text that PostgreSQL makes.

Nothing is parsed here: an event goes from the row to the socket as it stands.  A trajectory's
event carries only the summary that a list shows; one that a later attempt made void carries null.
An ``egress`` event carries sums over its records; what was reported before counts nothing.
"""

import json
from dataclasses import dataclass
from uuid import UUID

from webapp.live.pool import pool
from webapp.runs.header import header_of
from webapp.runs.models import ENDED
from webapp.runs.now import COLD_START_COLUMN_COUNT, COLD_START_COLUMNS, COLD_START_JOIN, cold_start_from

FRAME_EVENTS = 500
"""Most events in one frame: about 100 KiB, a tenth of a second of the busiest run."""

_EVENTS = """
SELECT event.seq, CASE WHEN event.kind = 'trajectory' THEN jsonb_build_object(
        'seq', event.seq, 'attempt', event.attempt, 'kind', event.kind, 'step', event.step,
        'at', extract(epoch FROM event.at),
        'trajectory', CASE WHEN it.trajectory_id IS NULL THEN NULL ELSE jsonb_build_object(
            'id', it.trajectory_id, 'purpose', it.purpose, 'prompt', it.prompt, 'member', it.member,
            'sampled_at_version', it.sampled_at_version, 'trained_at_step', it.trained_at_step,
            'level', it.level, 'part', it.part, 'success', it.success, 'reward', it.reward, 'tool_calls', it.tool_calls,
            'tool_errors', it.tool_errors, 'turns', it.turns, 'segments', it.segments, 'tokens', it.tokens,
            'stop_reason', it.stop_reason,
            'changes', it.changes, 'repaired', it.repaired, 'prefilled', it.prefilled, 'masked', it.masked,
            'alerts', it.alerts, 'quarantine', held.state) END
    )::text WHEN event.kind = 'egress' THEN jsonb_build_object(
        'seq', event.seq, 'attempt', event.attempt, 'kind', event.kind, 'at', extract(epoch FROM event.at),
        'sandbox', event.body->'sandbox', 'origin', event.body->'origin', 'records', told.records,
        'allowed', told.allowed, 'denied', told.denied, 'bytes_up', told.bytes_up, 'bytes_down', told.bytes_down
    )::text ELSE event.body::text END
FROM runs_event event
LEFT JOIN trajectories_trajectory it
    ON event.kind = 'trajectory' AND it.run_id = event.run_id AND it.seq = event.seq
LEFT JOIN security_quarantine held
    ON held.run_id = it.run_id AND held.trajectory_id = it.trajectory_id
LEFT JOIN LATERAL (
    SELECT count(*) AS records, coalesce(sum(count) FILTER (WHERE phase = 'attempt' AND allowed), 0) AS allowed,
           coalesce(sum(count) FILTER (WHERE phase = 'attempt' AND NOT allowed), 0) AS denied,
           coalesce(sum(bytes_up), 0) AS bytes_up, coalesce(sum(bytes_down), 0) AS bytes_down
    FROM security_egressrecord record WHERE record.run_id = event.run_id AND record.event_seq = event.seq
) told ON event.kind = 'egress'
WHERE event.run_id = %s AND event.seq > %s AND event.seq <= %s
ORDER BY event.seq LIMIT %s
"""

_HEADER = f"""
SELECT last_seq, state, state_since, desired, attempt, phase, step, total_steps, heartbeat - 'usage', heartbeat_at,
       started_at, ended_at, failure_reason, {COLD_START_COLUMNS}
FROM runs_run run {COLD_START_JOIN} WHERE run.id = %s
"""


@dataclass(frozen=True, slots=True)
class Header:
    """What a page shows above the curves, and how far the log reached when it was read."""

    last_seq: int
    text: str
    """The ``run`` of a frame, as JSON."""
    has_ended: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """Events ``first_seq`` to ``last_seq``, all of them, encoded once for every viewer."""

    first_seq: int
    last_seq: int
    text: str


class RunVanished(LookupError):
    """The run's row is gone; there is nothing more to follow."""


async def read_header(run_id: UUID) -> Header:
    async with (await pool()).connection() as connection:
        row = await (await connection.execute(_HEADER, (run_id,))).fetchone()
    if row is None:
        raise RunVanished(run_id)
    text = json.dumps(
        header_of(*row[1:-COLD_START_COLUMN_COUNT], cold_start=cold_start_from(*row[-COLD_START_COLUMN_COUNT:]))
    )
    return Header(last_seq=row[0], text=text, has_ended=row[1] in ENDED)


async def read_frame(run_id: UUID, after: int, until: int, header: Header) -> Frame:
    """The next events beyond ``after``, none beyond ``until``.  The log has no holes, so there is at least one."""
    async with (await pool()).connection() as connection:
        rows = await (await connection.execute(_EVENTS, (run_id, after, until, FRAME_EVENTS))).fetchall()
    return Frame(
        first_seq=rows[0][0], last_seq=rows[-1][0], text=encode([text for _, text in rows], rows[-1][0], header)
    )


def encode(events: list[str], seq: int, header: Header) -> str:
    return f'{{"events":[{",".join(events)}],"seq":{seq},"run":{header.text}}}'
