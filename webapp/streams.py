"""Answers that are made and sent piece by piece, to receivers that may be slow.

The pool has few database connections (``webapp/settings.py``), and Django keeps a request's until its last byte is
sent.  A stream has none in hand while a piece is sent.
"""

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.db import connection


async def streamed(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Each piece is made in the request's own thread; under ASGI a list would be made of a plain iterator.

    What makes a piece may query, but leaves neither a cursor nor a transaction open behind it.
    """
    while (piece := await sync_to_async(_made)(pieces)) is not None:
        yield piece


def _made(pieces: Iterator[bytes]) -> bytes | None:
    """The connection, opened for the view or for this piece, goes back to the pool."""
    piece = next(pieces, None)
    if not connection.in_atomic_block:  # a test's is around the whole request
        connection.close()
    return piece
