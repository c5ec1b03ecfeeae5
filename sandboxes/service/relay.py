"""The records of a sandbox whose user wants them as they come: kept, numbered and waited for.

A sandbox hands its records over at once, ``reset`` included; here they stay until they are acknowledged, bounded
like any (``egress.log``).  After a reset those of the former user can still be had, and no older ones.
"""

import asyncio

from sandboxes.egress.log import RecordLog, Traffic
from sandboxes.egress.record import EgressRecord
from sandboxes.service.refusals import NotThere

USERS = 2
"""The users of one sandbox, whose records are kept: the present and the former one."""


class Relay:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._logs: dict[str, RecordLog] = {}
        self._more = asyncio.Event()
        self._ended = False

    def add(self, record: EgressRecord) -> None:
        """Take a record; a sandbox has this as its ``on_record``."""
        log = self._logs.setdefault(record.attempt.sandbox, RecordLog())
        traffic = Traffic(
            record.bytes_up, record.bytes_down, record.packets_up, record.opening_up, record.opening_down, record.ended
        )
        if record.phase == "attempt":
            log.add(record.attempt, record.decision, label=record.label, traffic=traffic, count=record.count)
        else:
            log.add_traffic(record.attempt, record.decision, traffic, at=record.last_at, label=record.label)
        for forgotten in list(self._logs)[:-USERS]:
            del self._logs[forgotten]
        self._more.set()

    def end(self) -> None:
        """Nothing will come any more: who waits gets what there is."""
        self._ended = True
        self._more.set()

    async def records(self, user: str, after: int, limit: int, wait_s: float) -> list[EgressRecord]:
        """Those beyond ``after``; if there is none, wait for one."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            self._more.clear()
            found = self._logs[user].batch(after, limit) if user in self._logs else []
            if found or self._ended:
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await self._more.wait()
            except TimeoutError:
                return []

    def acknowledge(self, user: str, through: int) -> None:
        if user not in self._logs:
            raise NotThere(f"name = '{user}': there are no records of this user of the sandbox")
        self._logs[user].acknowledge(through)
