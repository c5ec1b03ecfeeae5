"""The hub of a conversation: its log beyond a cursor, and its state."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from webapp.conversations.log import group_of
from webapp.live import hub
from webapp.live.log import RunVanished
from webapp.live.notifications import happens
from webapp.live.pool import pool

FRAME_ENTRIES = 500

_HEADER = "SELECT last_seq, state, reason FROM conversations_conversation WHERE id = %s"
_ENTRIES = """
SELECT seq, jsonb_build_object('seq', seq, 'kind', kind, 'at', extract(epoch FROM at), 'body', body)::text
FROM conversations_entry WHERE conversation_id = %s AND seq > %s ORDER BY seq LIMIT %s
"""


class ConversationHub(hub.Hub):
    """Followed by few: each viewer reads the entries that it lacks."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.conversation_id = UUID(group.removeprefix(group_of("")))
        self.header: tuple[int, str] | None = None
        """The last number, and the state as JSON."""

    async def advance(self) -> bool:
        """Raises RunVanished when the conversation was deleted."""
        async with (await pool()).connection() as connection:
            row = await (await connection.execute(_HEADER, (self.conversation_id,))).fetchone()
        if row is None:
            raise RunVanished(self.conversation_id)
        header = row[0], json.dumps({"state": row[1], "reason": row[2]})
        if header != self.header:
            self.header = header
            self.announce()
        return False

    async def frames(self, after: int) -> AsyncIterator[str]:
        """What a viewer with this cursor lacks, as it comes, without an end.  Raises whatever ended the reader."""
        cursor, seen = after, ""
        while True:
            changed = self.next_change()
            header = self.header
            while header is not None and cursor < header[0]:
                entries = await self._entries(cursor)
                cursor, seen = entries[-1][0], header[1]
                yield _encoded([text for _, text in entries], cursor, seen)
            if header is not None and header[1] != seen:
                seen = header[1]
                yield _encoded([], cursor, seen)
            if self.header is header and not await happens(changed, hub.KEEPALIVE_S) and header is not None:
                yield _encoded([], cursor, header[1])

    async def _entries(self, after: int) -> list[tuple[int, str]]:
        async with (await pool()).connection() as connection:
            found = await connection.execute(_ENTRIES, (self.conversation_id, after, FRAME_ENTRIES))
            rows: list[tuple[int, str]] = await found.fetchall()
        return rows


def _encoded(entries: list[str], seq: int, state: str) -> str:
    return f'{{"events":[{",".join(entries)}],"seq":{seq},"run":{state}}}'


@asynccontextmanager
async def conversation_hub(conversation_id: UUID) -> AsyncIterator[ConversationHub]:
    async with hub.joined(ConversationHub, group_of(conversation_id)) as joined:
        yield joined
