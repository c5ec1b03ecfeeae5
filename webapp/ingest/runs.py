"""What the log's events mean for the tables that pages read: metrics, roll-ups, trajectories, checkpoints.

Egress records and alerts are projected by ``webapp/ingest/security.py``.

Everything runs inside the ingest's transaction, under the run's row lock, in a fixed number of
statements per batch.  The rules:

* a roll-up row is always exactly the sum of the points under it;
* a later event about the same (key, step) or trajectory wins: the engine repeats what it does again;
* ``started`` voids what earlier attempts said beyond its step.  ``sft/`` metrics count the steps of
  the cold start and are voided by its own number.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.db import connection

from engine.spec.event import Checkpoint, Event, Metric, Started, TrajectoryStored
from webapp.ingest.security import add_records
from webapp.runs.models import LEVELS, MetricKey

_KEEP_ALL = 2**31 - 1


def project(run_id: UUID, events: Sequence[Event]) -> None:
    """Bring the projections to the end of ``events``, which directly follow what they hold."""
    since_started: list[Event] = []
    for event in events:
        if isinstance(event, Started):
            _add(run_id, since_started)
            _rewind(run_id, event)
            since_started = []
        else:
            since_started.append(event)
    _add(run_id, since_started)
    add_records(run_id, events)


def _add(run_id: UUID, events: Sequence[Event]) -> None:
    _add_metrics(run_id, [event for event in events if isinstance(event, Metric)])
    _add_trajectories(run_id, [event for event in events if isinstance(event, TrajectoryStored)])
    _add_checkpoints(run_id, [event for event in events if isinstance(event, Checkpoint)])


# --- metrics ------------------------------------------------------------------------------------
# The total is clamped because float8 addition raises on overflow, and no metric may stop the ingest.
_AGGREGATES = """min(value), max(value), sum(greatest(least(value, 1e290), -1e290)), count(*),
                 (array_agg(value ORDER BY step DESC))[1], max(step)"""

_ADD_POINTS = f"""
WITH written AS (
    INSERT INTO runs_metricpoint (run_id, key_id, step, value)
    SELECT %(run)s, key_id, step, value
    FROM unnest(%(keys)s::bigint[], %(steps)s::int[], %(values)s::float8[]) AS given (key_id, step, value)
    ON CONFLICT (run_id, key_id, step) DO UPDATE SET value = excluded.value
    RETURNING key_id, step, value, xmax <> 0 AS replaced
), rolled_up AS (
    INSERT INTO runs_metricrollup AS rollup
        (run_id, key_id, level, bucket, minimum, maximum, total, count, last, last_step)
    SELECT %(run)s, key_id, level, step / level, {_AGGREGATES}
    FROM written CROSS JOIN unnest(%(levels)s::int[]) AS level
    WHERE NOT replaced
    GROUP BY key_id, level, step / level
    ON CONFLICT (run_id, key_id, level, bucket) DO UPDATE SET
        minimum = least(rollup.minimum, excluded.minimum),
        maximum = greatest(rollup.maximum, excluded.maximum),
        total = rollup.total + excluded.total,
        count = rollup.count + excluded.count,
        last = CASE WHEN excluded.last_step > rollup.last_step THEN excluded.last ELSE rollup.last END,
        last_step = greatest(rollup.last_step, excluded.last_step)
)
SELECT key_id, step FROM written WHERE replaced
"""

_REBUILD_BUCKETS = f"""
WITH touched AS (
    SELECT DISTINCT key_id, level, step / level AS bucket
    FROM unnest(%(keys)s::bigint[], %(steps)s::int[]) AS given (key_id, step)
         CROSS JOIN unnest(%(levels)s::int[]) AS level
)
INSERT INTO runs_metricrollup (run_id, key_id, level, bucket, minimum, maximum, total, count, last, last_step)
SELECT %(run)s, key_id, level, bucket, {_AGGREGATES}
FROM touched JOIN runs_metricpoint point USING (key_id)
WHERE point.run_id = %(run)s AND point.step / level = bucket
      AND point.step BETWEEN bucket * level AND bucket * level + level - 1
GROUP BY key_id, level, bucket
ON CONFLICT (run_id, key_id, level, bucket) DO UPDATE SET
    minimum = excluded.minimum, maximum = excluded.maximum, total = excluded.total,
    count = excluded.count, last = excluded.last, last_step = excluded.last_step
"""


def _add_metrics(run_id: UUID, events: Sequence[Metric]) -> None:
    points = {(key, event.step): value for event in events for key, value in event.values.items()}
    if not points:
        return
    ids = key_ids({key for key, _ in points})
    given: dict[str, UUID | list[int] | list[float]] = {
        "run": run_id,
        "keys": [ids[key] for key, _ in points],
        "steps": [step for _, step in points],
        "values": list(points.values()),
        "levels": list(LEVELS),
    }
    with connection.cursor() as cursor:
        cursor.execute(_ADD_POINTS, given)
        if replaced := cursor.fetchall():
            keys, steps = zip(*replaced, strict=True)
            cursor.execute(_REBUILD_BUCKETS, given | {"keys": list(keys), "steps": list(steps)})


_KEY_IDS: dict[str, int] = {}
_MOST_CACHED_KEYS = 10_000


def key_ids(names: Iterable[str]) -> dict[str, int]:
    """The numbers of metric names, made on first sight.  Rows are never deleted, so a number stays right."""
    names = set(names)
    if unknown := names - _KEY_IDS.keys():
        MetricKey.objects.bulk_create([MetricKey(name=name) for name in sorted(unknown)], ignore_conflicts=True)
        found = dict(MetricKey.objects.filter(name__in=unknown).values_list("name", "id"))
        if connection.in_atomic_block:  # ours may still be rolled back
            return found | {name: _KEY_IDS[name] for name in names - unknown}
        if len(_KEY_IDS) + len(found) <= _MOST_CACHED_KEYS:
            _KEY_IDS.update(found)
        return found | {name: _KEY_IDS[name] for name in names - unknown}
    return {name: _KEY_IDS[name] for name in names}


# --- started ------------------------------------------------------------------------------------
_KEPT = """
WITH kept AS (
    SELECT id AS key_id, CASE WHEN starts_with(name, 'sft/') THEN %(sft_step)s ELSE %(step)s END::bigint AS last
    FROM runs_metrickey
)
"""
_DROP_POINTS = f"""{_KEPT}
DELETE FROM runs_metricpoint point USING kept
WHERE point.run_id = %(run)s AND point.key_id = kept.key_id AND point.step > kept.last
"""
_DROP_ROLLUPS = f"""{_KEPT}
DELETE FROM runs_metricrollup rollup USING kept
WHERE rollup.run_id = %(run)s AND rollup.key_id = kept.key_id AND (rollup.bucket + 1)::bigint * level - 1 > kept.last
"""
_REBUILD_LAST_BUCKETS = f"""{_KEPT}
INSERT INTO runs_metricrollup (run_id, key_id, level, bucket, minimum, maximum, total, count, last, last_step)
SELECT %(run)s, key_id, level, step / level, {_AGGREGATES}
FROM kept JOIN runs_metricpoint point USING (key_id) CROSS JOIN unnest(%(levels)s::int[]) AS level
WHERE point.run_id = %(run)s AND point.step >= kept.last / level * level
GROUP BY key_id, level, step / level
ON CONFLICT (run_id, key_id, level, bucket) DO NOTHING
"""


_DROP_TRAJECTORIES = """
DELETE FROM trajectories_trajectory
WHERE run_id = %(run)s AND sampled_at_version >= %(step)s AND (purpose = 'train' OR sampled_at_version > %(step)s)
"""
_VOID_TRAINING = """
UPDATE trajectories_trajectory SET trained_at_step = NULL WHERE run_id = %(run)s AND trained_at_step > %(step)s
"""
_DROP_CHECKPOINTS = "DELETE FROM runs_checkpoint WHERE run_id = %(run)s AND step > %(step)s"


def _rewind(run_id: UUID, started: Started) -> None:
    """Void what earlier attempts said beyond the step from which this one goes on."""
    sft_step = started.from_cold_start_step
    if sft_step is None:
        sft_step = _KEEP_ALL if started.from_step > 0 else -1
    given: dict[str, UUID | int | list[int]] = {
        "run": run_id,
        "step": started.from_step,
        "sft_step": sft_step,
        "levels": list(LEVELS),
    }
    with connection.cursor() as cursor:
        for statement in (_DROP_POINTS, _DROP_ROLLUPS, _REBUILD_LAST_BUCKETS):
            cursor.execute(statement, given)
        for statement in (_DROP_TRAJECTORIES, _VOID_TRAINING, _DROP_CHECKPOINTS):
            cursor.execute(statement, given)


# --- trajectories and checkpoints ---------------------------------------------------------------
_COLUMNS = {
    "trajectory_id": "text", "seq": "bigint", "purpose": "text", "prompt": "bigint", "member": "int",
    "sampled_at_version": "int", "trained_at_step": "int", "level": "int", "part": "text", "success": "bool",
    "reward": "float8", "tool_calls": "int", "tool_errors": "int", "turns": "int", "segments": "int", "tokens": "int",
    "stop_reason": "text", "changes": "int", "repaired": "int", "prefilled": "int", "masked": "int", "alerts": "int",
}  # fmt: skip
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "trajectory_id")
_ADD_TRAJECTORIES = f"""
INSERT INTO trajectories_trajectory (run_id, {", ".join(_COLUMNS)})
SELECT %s, * FROM unnest({", ".join(f"%s::{kind}[]" for kind in _COLUMNS.values())})
ON CONFLICT (run_id, trajectory_id) DO UPDATE SET {_REPLACED}
"""


def _add_trajectories(run_id: UUID, events: Sequence[TrajectoryStored]) -> None:
    last_of_each = {event.trajectory.id: event for event in events}.values()
    if last_of_each:
        columns = zip(*(_trajectory_row(event) for event in last_of_each), strict=True)
        with connection.cursor() as cursor:
            cursor.execute(_ADD_TRAJECTORIES, [run_id, *(list(column) for column in columns)])


def _trajectory_row(event: TrajectoryStored) -> tuple[object, ...]:
    """Return a row in the order of ``_COLUMNS``."""
    it = event.trajectory
    masked = len(it.turns) if it.masked_because else sum(turn.masked_because is not None for turn in it.turns)
    return (
        it.id, event.seq, it.purpose, it.prompt, it.member,
        it.sampled_at_version, it.trained_at_step, it.task.level, it.task.part or "", it.success, it.reward,
        len(it.tool_calls), it.tool_errors, len(it.turns), len(it.segments), it.sampled_tokens, it.stop_reason,
        len(it.changes), sum(change.kind == "purified" for change in it.changes),
        sum(turn.prefilled for turn in it.turns), masked, len(it.alerts),
    )  # fmt: skip


_ADD_CHECKPOINTS = """
INSERT INTO runs_checkpoint (run_id, step, path, size_bytes, seconds, at)
SELECT %s, step, path, size_bytes, seconds, to_timestamp(at)
FROM unnest(%s::int[], %s::text[], %s::bigint[], %s::float8[], %s::float8[])
     AS given (step, path, size_bytes, seconds, at)
ON CONFLICT (run_id, step) DO UPDATE SET
    path = excluded.path, size_bytes = excluded.size_bytes, seconds = excluded.seconds, at = excluded.at, on_disk = true
"""
_REMOVE_OLD_CHECKPOINTS = """
UPDATE runs_checkpoint SET on_disk = false WHERE run_id = %(run)s AND on_disk AND step NOT IN (
    SELECT step FROM runs_checkpoint WHERE run_id = %(run)s ORDER BY step DESC
    LIMIT (SELECT (spec #>> '{schedule,keep_checkpoints}')::int FROM runs_run WHERE id = %(run)s)
)
"""


def _add_checkpoints(run_id: UUID, events: Sequence[Checkpoint]) -> None:
    last_of_each = {event.step: event for event in events}.values()
    if last_of_each:
        rows = [
            (checkpoint.step, checkpoint.path, checkpoint.size_bytes, checkpoint.seconds, checkpoint.at)
            for checkpoint in last_of_each
        ]
        with connection.cursor() as cursor:
            cursor.execute(_ADD_CHECKPOINTS, [run_id, *(list(column) for column in zip(*rows, strict=True))])
            cursor.execute(_REMOVE_OLD_CHECKPOINTS, {"run": run_id})
