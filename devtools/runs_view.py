"""What the terminal says about runs, read from their tables.

Reading the database costs a millisecond and works while the web restarts; nothing is ever written.
"""

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from psycopg.rows import class_row

ENDED = ("succeeded", "failed", "cancelled")
_METRIC = """(SELECT p.value FROM runs_metricpoint p JOIN runs_metrickey k ON k.id = p.key_id
              WHERE p.run_id = r.id AND k.name = '{name}' ORDER BY p.step DESC LIMIT 1)"""
_RUNS = f"""
SELECT r.id::text AS id, r.number, r.name, r.state, r.desired, r.attempt, r.phase, r.step, r.total_steps,
       (r.heartbeat ->> 'eta_s')::float AS eta_s, r.failure_reason, r.summary,
       CASE WHEN r.phase = 'cold-start' THEN (
           SELECT sum((stage->>'steps')::int)::int FROM jsonb_array_elements(r.spec #> '{{recipe,stages}}') stage
           WHERE (stage->>'epochs')::int = 0) END AS cold_start_steps,
       CASE WHEN r.phase = 'cold-start' THEN (
           SELECT max(p.step) FROM runs_metricpoint p JOIN runs_metrickey k ON k.id = p.key_id
           WHERE p.run_id = r.id AND k.name = 'sft/loss') END AS cold_start_done,
       {_METRIC.format(name="train/reward")} AS reward, {_METRIC.format(name="train/success")} AS success
FROM runs_run r
"""


@dataclass(frozen=True)
class RunRow:
    id: str
    number: int
    name: str
    state: str
    desired: str
    attempt: int
    phase: str
    step: int
    total_steps: int
    eta_s: float | None
    failure_reason: str
    summary: dict[str, Any] | None
    reward: float | None
    success: float | None
    cold_start_steps: int | None = None
    """While the run is in its supervised cold start; None at all other times."""
    cold_start_done: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"run {self.number} {self.name}: {self.state}"]
        if not self.has_ended and self.phase:
            parts.append(self._where())
        if self.reward is not None:
            parts.append(f"reward {self.reward:.3f}")
        if self.success is not None:
            parts.append(f"success {self.success:.3f}")
        if self.eta_s and not self.has_ended:  # within the last step, and after it, there is no estimate
            parts.append(f"{duration(self.eta_s)} left")
        if self.failure_reason:
            parts.append(self.failure_reason)
        return " · ".join(parts)

    def _where(self) -> str:
        if self.cold_start_steps:
            return f"supervised cold start {self.cold_start_done or 0}/{self.cold_start_steps}"
        return f"{self.phase} · step {self.step}/{self.total_steps}"


class RunsView:
    """A connection that comes back by itself; while the database is away there is simply no news."""

    def __init__(self, database_url: str) -> None:
        self._arguments = connection_arguments(database_url)
        self._connection: psycopg.Connection[Any] | None = None

    def newest(self, count: int = 3) -> list[RunRow] | None:
        """Unfinished runs first, then the newest; None while the database is away."""
        return self._query(_RUNS + " ORDER BY r.state = ANY(%s), r.created_at DESC LIMIT %s", [list(ENDED), count])

    def run(self, run_id: str) -> RunRow | None:
        """Return the run, None while the database is away."""
        rows = self._query(_RUNS + " WHERE r.id = %s", [run_id])
        return rows[0] if rows else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> "RunsView":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _query(self, query: str, parameters: list[Any]) -> list[RunRow] | None:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(**self._arguments, autocommit=True)
            with self._connection.cursor(row_factory=class_row(RunRow)) as cursor:
                return cursor.execute(query, parameters).fetchall()
        except psycopg.OperationalError:
            self.close()
            return None


def connection_arguments(database_url: str) -> dict[str, Any]:
    """``DATABASE_URL`` as Django reads it: user, password, host and port, options in the query."""
    parts = urlsplit(database_url)
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    given = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    named = {name: unquote(str(value)) for name, value in given.items() if value is not None}
    return {"dbname": parts.path.lstrip("/"), "connect_timeout": 2, **named, **options}


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
