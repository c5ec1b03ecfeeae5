"""News about alerts for everybody who has a page open: one reader per process, whatever the number of teams.

    ingest, rulings ── commit ──► poke ──┐
    every POLL_S ────────────────────────┤
                                         ▼
              hub: asks where each followed team stands, in one query
                                         │ a change to wait for
                          ┌──────────────┼──────────────┐
                       viewer         viewer         viewer     each is a cursor over ``Alert.id``

A viewer whose teams have newer alerts than its cursor reads them from the database; viewers at the same
place share one read.  Ids follow the order of commits (``webapp/ingest/security.py``), so a cursor
skips nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from webapp.live.pokes import happens, listen
from webapp.live.pool import pool
from webapp.runs.poke import ALERTS

POLL_S = 2.0
INTERVAL_S = 0.1
KEEPALIVE_S = 20.0
FRAME_ALERTS = 100
TITLE_CHARACTERS = 200

log = structlog.get_logger(__name__)

_STANDINGS = """
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
class Standing:
    """Of one team, or of several together."""

    last_id: int = 0
    open: int = 0
    pending: int = 0
    """Trajectories of runs that go on, which wait for a ruling."""
    audited: int = 0
    """The last audit row: people change alerts and rulings, and each time leave one."""


class AlertHub:
    def __init__(self) -> None:
        self._followers: Counter[int] = Counter()
        self._standings: dict[int, Standing] = {}
        self._reads: dict[tuple[Teams, int, int], asyncio.Task[tuple[int, str]]] = {}
        self._poked = asyncio.Event()
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._listener = asyncio.create_task(listen(ALERTS, self._poked, retry_s=POLL_S))
        self._follower = asyncio.create_task(self._follow())
        self._follower.add_done_callback(lambda _: self._changed.set())

    async def stop(self) -> None:
        tasks = (self._listener, self._follower)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_followed(self) -> bool:
        return self._followers.total() > 0

    def follow(self, teams: Teams) -> None:
        self._followers.update(teams)
        self._poked.set()

    def leave(self, teams: Teams) -> None:
        self._followers.subtract(teams)
        for team in teams:
            if not self._followers[team]:
                del self._followers[team]
                self._standings.pop(team, None)

    async def frames(self, teams: Teams, after: int) -> AsyncIterator[str]:
        """Everything that a follower of these teams has to get, as it comes; never ends by itself.

        Raises whatever ended the reader.
        """
        cursor, seen, told_at = after, None, time.monotonic()
        while True:
            if self._follower.done():
                self._follower.result()
            changed, now = self._changed, self._standing_of(teams)
            while now and cursor < now.last_id:
                cursor, alerts = await self._read(teams, cursor, now.last_id)
                seen, told_at = now, time.monotonic()
                yield encode(alerts, cursor, now)
            # Other teams' changes wake this one too, so silence is measured and not counted in wake-ups.
            if now and (now != seen or time.monotonic() - told_at >= KEEPALIVE_S):
                seen, told_at = now, time.monotonic()
                yield encode("", cursor, now)
            await happens(changed, KEEPALIVE_S)

    def _standing_of(self, teams: Teams) -> Standing | None:
        """None until all of them were asked for."""
        found = [self._standings[team] for team in teams if team in self._standings]
        if len(found) < len(teams):
            return None
        return Standing(
            last_id=max((one.last_id for one in found), default=0),
            open=sum(one.open for one in found),
            pending=sum(one.pending for one in found),
            audited=max((one.audited for one in found), default=0),
        )

    async def _read(self, teams: Teams, after: int, until: int) -> tuple[int, str]:
        """The next alerts as JSON text, and where they end; viewers at the same place wait for one read."""
        key = (teams, after, until)
        if key not in self._reads:
            self._reads[key] = asyncio.create_task(read_alerts(*key))
            self._reads[key].add_done_callback(lambda _: self._reads.pop(key, None))
        return await asyncio.shield(self._reads[key])

    async def _follow(self) -> None:
        while True:
            self._poked.clear()
            try:
                found = await read_standings(sorted(self._followers))
            except (psycopg.OperationalError, PoolTimeout) as error:
                log.warning("live.alerts_read_failed", error=str(error))
                found = self._standings
            found = {team: standing for team, standing in found.items() if team in self._followers}
            if found != self._standings:
                self._standings = found
                self._changed.set()
                self._changed = asyncio.Event()
            await asyncio.sleep(INTERVAL_S)
            await happens(self._poked, POLL_S)


async def read_standings(teams: list[int]) -> dict[int, Standing]:
    async with (await pool()).connection() as connection:
        rows = await (await connection.execute(_STANDINGS, (teams,))).fetchall()
    return {row[0]: Standing(*row[1:]) for row in rows}


async def read_alerts(teams: Teams, after: int, until: int) -> tuple[int, str]:
    async with (await pool()).connection() as connection:
        rows = await (await connection.execute(_ALERTS, (list(teams), after, until))).fetchall()
    return (rows[-1][0] if len(rows) == FRAME_ALERTS else until), ",".join(text for _, text in rows)


def encode(alerts: str, cursor: int, now: Standing) -> str:
    """``now`` is the clock by which pages say how long ago something happened."""
    standing = f'"open":{now.open},"pending":{now.pending},"change":{now.audited}'
    return f'{{"alerts":[{alerts}],"after":{cursor},{standing},"now":{time.time():.3f}}}'


_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, AlertHub] = WeakKeyDictionary()


@asynccontextmanager
async def alert_hub(teams: Teams) -> AsyncIterator[AlertHub]:
    """This process's hub, following these teams; it lives as long as somebody looks."""
    loop = asyncio.get_running_loop()
    if loop not in _HUBS:
        _HUBS[loop] = AlertHub()
        _HUBS[loop].start()
    hub = _HUBS[loop]
    hub.follow(teams)
    try:
        yield hub
    finally:
        hub.leave(teams)
        if not hub.is_followed:
            _HUBS.pop(loop, None)
            await hub.stop()
