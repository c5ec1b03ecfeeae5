"""The hub of alerts, for everybody who has a page open: one per process, whatever the number of teams.

It asks in one query where each team stands that somebody follows.  A viewer is a cursor over ``Alert.id``: one
whose teams have newer alerts than its cursor reads them from the database; viewers at the same cursor share
one read.  Ids follow the order of commits (``webapp/ingest/security.py``), so a cursor skips nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from webapp.live import hub
from webapp.live.notifications import happens
from webapp.live.pool import pool
from webapp.runs.notify import ALERTS

FRAME_ALERTS = 100
TITLE_CHARACTERS = 200

_COUNTS = """
SELECT team, coalesce((SELECT max(id) FROM security_alert WHERE team_id = team), 0),
       (SELECT count(*) FROM security_alert WHERE team_id = team AND state = 'open'),
       (SELECT count(*) FROM security_quarantine held JOIN runs_run run ON run.id = held.run_id
        WHERE held.state = 'pending' AND run.team_id = team
          AND run.state NOT IN ('succeeded', 'failed', 'cancelled')),
       coalesce((SELECT max(id) FROM accounts_auditentry WHERE team_id = team), 0)
FROM unnest(%s::bigint[]) AS team
"""
_ALERTS = f"""
SELECT alert.id, jsonb_build_object(
    'id', alert.id, 'run', alert.run_id, 'rule', alert.rule, 'severity', alert.severity,
    'title', left(alert.title, {TITLE_CHARACTERS}), 'subject', alert.subject, 'trajectory', alert.trajectory_id,
    'turn', alert.turn, 'quarantined', alert.quarantined, 'at', extract(epoch FROM alert.at))::text
FROM security_alert alert
WHERE alert.team_id = ANY(%s::bigint[]) AND alert.id > %s AND alert.id <= %s
ORDER BY alert.id LIMIT {FRAME_ALERTS}
"""

Teams = tuple[int, ...]


@dataclass(frozen=True)
class AlertCounts:
    """The counts of one team, or of several together."""

    last_id: int = 0
    open: int = 0
    pending: int = 0
    """Trajectories of runs that go on, which wait for a review decision."""
    audited: int = 0
    """The last audit row: people change alerts and review decisions, and each time leave one."""


class AlertHub(hub.Hub):
    def __init__(self, group: str) -> None:
        super().__init__(group)
        self._followers: Counter[int] = Counter()
        self._counts: dict[int, AlertCounts] = {}
        self._reads: dict[tuple[Teams, int, int], asyncio.Task[tuple[int, str]]] = {}

    def follow(self, teams: Teams) -> None:
        self._followers.update(teams)
        self._notified.set()

    def leave(self, teams: Teams) -> None:
        self._followers.subtract(teams)
        for team in teams:
            if not self._followers[team]:
                del self._followers[team]
                self._counts.pop(team, None)

    async def frames(self, teams: Teams, after: int) -> AsyncIterator[str]:
        """Everything that a follower of these teams has to get, as it comes; never ends by itself.

        Raises whatever ended the reader.
        """
        cursor, seen, reported_at = after, None, time.monotonic()
        while True:
            changed, now = self.next_change(), self._counts_of(teams)
            while now and cursor < now.last_id:
                cursor, alerts = await self._read(teams, cursor, now.last_id)
                seen, reported_at = now, time.monotonic()
                yield encode(alerts, cursor, now)
            # Other teams' changes wake this one too, so silence is measured and not counted in wake-ups.
            if now and (now != seen or time.monotonic() - reported_at >= hub.KEEPALIVE_S):
                seen, reported_at = now, time.monotonic()
                yield encode("", cursor, now)
            await happens(changed, hub.KEEPALIVE_S)

    def _counts_of(self, teams: Teams) -> AlertCounts | None:
        """Return the counts, None until all of them were asked for."""
        found = [self._counts[team] for team in teams if team in self._counts]
        if len(found) < len(teams):
            return None
        return AlertCounts(
            last_id=max((counts.last_id for counts in found), default=0),
            open=sum(counts.open for counts in found),
            pending=sum(counts.pending for counts in found),
            audited=max((counts.audited for counts in found), default=0),
        )

    async def _read(self, teams: Teams, after: int, until: int) -> tuple[int, str]:
        """The next alerts as JSON text, and where they end; viewers at the same place wait for one read."""
        key = (teams, after, until)
        if key not in self._reads:
            self._reads[key] = asyncio.create_task(read_alerts(*key))
            self._reads[key].add_done_callback(lambda _: self._reads.pop(key, None))
        return await asyncio.shield(self._reads[key])

    async def advance(self) -> bool:
        found = await read_counts(sorted(self._followers))
        found = {team: counts for team, counts in found.items() if team in self._followers}
        if found != self._counts:
            self._counts = found
            self.announce()
        return False


async def read_counts(teams: list[int]) -> dict[int, AlertCounts]:
    async with (await pool()).connection() as connection:
        rows = await (await connection.execute(_COUNTS, (teams,))).fetchall()
    return {row[0]: AlertCounts(*row[1:]) for row in rows}


async def read_alerts(teams: Teams, after: int, until: int) -> tuple[int, str]:
    async with (await pool()).connection() as connection:
        rows = await (await connection.execute(_ALERTS, (list(teams), after, until))).fetchall()
    return (rows[-1][0] if len(rows) == FRAME_ALERTS else until), ",".join(text for _, text in rows)


def encode(alerts: str, cursor: int, now: AlertCounts) -> str:
    """``now`` is the clock by which pages say how long ago something happened."""
    counts = f'"open":{now.open},"pending":{now.pending},"change":{now.audited}'
    return f'{{"alerts":[{alerts}],"after":{cursor},{counts},"now":{time.time():.3f}}}'


@asynccontextmanager
async def alert_hub(teams: Teams) -> AsyncIterator[AlertHub]:
    """This process's hub, following these teams."""
    async with hub.joined(AlertHub, ALERTS) as joined:
        joined.follow(teams)
        try:
            yield joined
        finally:
            joined.leave(teams)
