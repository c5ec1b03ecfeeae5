"""Records of a remote sandbox for its ``on_record``: asked for all the time, delivered in order, then acknowledged.

What the service has summed up comes as sums: each record is a statement, for ``on_statement``.
"""

import asyncio
import logging

from pydantic import TypeAdapter

from sandboxes.backends.remote.connection import Connection
from sandboxes.backends.remote.wire import MOST_RECORDS, Acknowledge
from sandboxes.egress.gateway.ledger import FLUSH_S, OnRecord, OnStatement
from sandboxes.egress.record import EgressRecord
from sandboxes.interface import SandboxLost

log = logging.getLogger(__name__)
RECORDS = TypeAdapter(list[EgressRecord])
WAIT_S = 20.0
"""How long one question waits at the service for the next record, which then comes at once."""
AGAIN_S = 0.5
"""So long is waited after a record that was not taken."""


async def fetched(
    connection: Connection, path: str, name: str | None, after: int, *, limit: int = MOST_RECORDS, wait_s: float = 0
) -> list[EgressRecord]:
    params: dict[str, str | int | float] = {"after": after, "limit": limit, "wait_s": wait_s}
    if name is not None:
        params["name"] = name
    response = await connection.ask("GET", f"{path}/egress", params=params, again=True)
    return RECORDS.validate_json(response.content)


class Stream:
    """The records of one user of the sandbox."""

    def __init__(
        self, connection: Connection, path: str, name: str, on_record: OnRecord, on_statement: OnStatement | None
    ) -> None:
        self._connection = connection
        self._path = path
        self._name = name
        self._on_record = on_record
        self._on_statement = on_statement
        self._delivered = self._stated = 0
        self._task = asyncio.ensure_future(self._run())

    async def finish(self) -> None:
        """Deliver what there is by now: nothing of this user comes any more.  What is not taken for long is lost."""
        self._task.cancel()
        await asyncio.wait([self._task])
        give_up_at = asyncio.get_running_loop().time() + FLUSH_S
        while (delivered := await self._round(0)) != 0:
            if delivered is None and asyncio.get_running_loop().time() > give_up_at:
                log.error("sandbox %s: records beyond %d were not taken for %g s", self._name, self._delivered, FLUSH_S)
                return
            if delivered is None:
                await asyncio.sleep(AGAIN_S)

    async def _run(self) -> None:
        try:
            while True:
                if await self._round(WAIT_S) is None:
                    await asyncio.sleep(AGAIN_S)
        except SandboxLost as error:
            # Whoever asks something of the sandbox will learn it; ``finish`` tries once more.
            log.warning("records of sandbox %s beyond %d do not come: %s", self._name, self._delivered, error)

    async def _round(self, wait_s: float) -> int | None:
        """Return how many records were delivered; None if one was not taken, which is tried again."""
        records = await fetched(self._connection, self._path, self._name, self._delivered, wait_s=wait_s)
        before = self._delivered
        try:
            for record in records:
                self._state(record)
                if self._on_record(record) is False:
                    return None
                self._delivered = record.seq
        except Exception:
            log.exception("a record of sandbox %s could not be delivered", self._name)
            return None
        finally:
            if self._delivered > before:
                await self._acknowledge()
        return len(records)

    def _state(self, record: EgressRecord) -> None:
        """Once, however often the record is delivered."""
        if self._on_statement is not None and record.seq > self._stated:
            self._stated = record.seq
            self._on_statement(record)

    async def _acknowledge(self) -> None:
        params: dict[str, str | int | float] = {"name": self._name}
        through = Acknowledge(through=self._delivered)
        await self._connection.ask("POST", f"{self._path}/egress/acknowledge", through, params=params, again=True)
