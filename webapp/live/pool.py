"""Asynchronous connections of the live readers, apart from Django's.

``database_sync_to_async`` shares one thread, so a slow page would hold up every live viewer.
"""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from django.db import connection
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from psycopg_pool import AsyncConnectionPool

_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnectionPool[Any]] = WeakKeyDictionary()


async def pool() -> AsyncConnectionPool[Any]:
    """The pool of this event loop, opened on first use.  It survives a restart of the database."""
    loop = asyncio.get_running_loop()
    if loop not in _POOLS:
        _POOLS[loop] = AsyncConnectionPool(
            _conninfo(),
            kwargs={"autocommit": True},
            min_size=0,
            max_size=4,
            timeout=5,
            open=False,
            check=AsyncConnectionPool.check_connection,
        )
        await _POOLS[loop].open()
    return _POOLS[loop]


async def close_pool() -> None:
    if opened := _POOLS.pop(asyncio.get_running_loop(), None):
        await opened.close()


def _conninfo() -> str:
    """Django's own address of the database; a socket folder stands in its options."""
    settings = connection.settings_dict
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    given = {ours: settings[theirs] for theirs, ours in names.items() if settings.get(theirs)}
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    options = {name: value for name, value in settings.get("OPTIONS", {}).items() if name in known}
    return make_conninfo(**(given | options), application_name="palestra-live")
