"""The two ways in which a gateway reaches beyond the sandbox: connecting to an address, and looking up a name.

Both are given to it, so that tests put servers of their own there.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to an address (never a name) and port.  Raises ``OSError``."""
Lookup = Callable[[str, socket.AddressFamily], Awaitable[list[str]]]
"""The addresses of a name in a family; none if it has none.  Raises ``OSError`` if nobody knows."""

NOT_THERE = (socket.EAI_NONAME, socket.EAI_NODATA)


async def dial(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(made, (address, port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        made.close()
        raise
    return made


async def look_up(name: str, family: socket.AddressFamily) -> list[str]:
    """As the host resolves names.  Aliases are followed there, and not shown to the sandbox."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, None, family=family, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in NOT_THERE:
            return []
        raise
    return [str(entry[4][0]) for entry in found]


@dataclass(frozen=True, slots=True)
class Upstream:
    """What lies beyond the gateways."""

    dial: Dial = dial
    look_up: Lookup = look_up


UPSTREAM = Upstream()
"""The host's own network and names."""
