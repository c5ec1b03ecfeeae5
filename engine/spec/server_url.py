"""The address of a server, parsed: http or https, a host, a port.  Nothing is looked up or asked."""

import re
from ipaddress import AddressValueError, IPv6Address
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, StringConstraints

from engine.spec.impossible import impossible

_PORTS = {"http": 80, "https": 443}
_NO_IPV6 = "has brackets around what is no number of IPv6"
_FORM = "give it as http://host:port, without a path"


class Server(NamedTuple):
    """What answers at an address: two addresses with an equal one are of one server."""

    host: str
    """In small letters; a number of IPv6 in its shortest form."""
    port: int


def server_at(address: str) -> Server:
    """The server of an address, whatever path stands behind it.  Raises ValueError, which says what is wrong."""
    if not re.fullmatch(r"[!-~]+", address):
        raise ValueError("has blanks or characters that no address has" if address else "is empty")
    try:
        parts = urlsplit(address)
    except ValueError:
        raise ValueError(_NO_IPV6) from None
    if parts.scheme not in _PORTS or not address.lower().startswith(f"{parts.scheme}://"):
        raise ValueError("does not begin with http:// or https://")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError("has a port that is no number from 1 to 65535")
    return Server(_host(parts.netloc, parts.hostname or ""), port or _PORTS[parts.scheme])


def key_of(address: str, pairs: str) -> str | None:
    """The key of a server among ``URL=KEY`` with spaces between: no key is sent to a server that it is not of."""
    for pair in pairs.split():
        for url in (address.rstrip("/"), f"{address.rstrip('/')}/"):
            if pair.startswith(f"{url}="):
                return pair.removeprefix(f"{url}=")
    return None


def without_credentials(text: str) -> str:
    """A text with *** in place of what an address holds before its host, or asks for behind a question mark."""
    return re.sub(r"\?.*", "?***", re.sub(r"^([A-Za-z]+://)?.*@", r"\1***@", text, flags=re.DOTALL), flags=re.DOTALL)


def _host(netloc: str, host: str) -> str:
    if "[" in netloc:
        if not re.fullmatch(r"\[.*\](:\d+)?", netloc):
            raise ValueError(_NO_IPV6)
        try:
            return str(IPv6Address(host))
        except AddressValueError:
            raise ValueError(_NO_IPV6) from None
    if not host.strip(".") or not re.fullmatch(r"[a-z0-9._-]+", host):
        raise ValueError("has no host")
    return host.rstrip(".")


def _is_of_a_server(url: str) -> str:
    shown = without_credentials(url)
    if "@" in url:
        remedy = f"{_FORM}; keys of servers stand in PALESTRA_SGLANG_KEYS, as URL=KEY"
        raise impossible("", shown, "holds credentials, which every reader of the spec would see", remedy)
    try:
        server_at(url)
    except ValueError as error:
        raise impossible("", shown, f"is no address of a server: it {error}", _FORM) from None
    if re.search(r"[/?#]", url.partition("://")[2]):
        raise impossible("", shown, "is no address of a server alone: something stands behind it", _FORM)
    return url


ServerUrl = Annotated[str, StringConstraints(max_length=300), AfterValidator(_is_of_a_server)]
"""A server by scheme, host and port, e.g. ``http://10.0.0.5:30000`` or ``http://[fd00::5]:30000``."""
