"""The address of a sandbox service or of a host, scheme, host and port: it is parsed, not matched with a pattern."""

import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

EXAMPLE = "http://10.0.0.7:8750"
PORTS = {"http": 80, "https": 443}
NAME = re.compile(r"([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.?")


class AddressFault(Exception):
    """The text is no address; the message says what is wrong with it, without any secret in it."""


def parsed(url: str) -> SplitResult:
    """Raises ``AddressFault`` for what has no scheme, host or port that could be, and for a user or a query."""
    if re.search(r"[\s\x00-\x1f\x7f\\\\]", url):
        raise AddressFault("it has a space, a control character or a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressFault(_words(error)) from error
    if parts.scheme not in PORTS:
        raise AddressFault("its scheme is not http or https")
    if "@" in parts.netloc:
        raise AddressFault("it names a user")
    if "?" in url or "#" in url:
        raise AddressFault("it has a query or a fragment")
    if not _is_host(parts):
        raise AddressFault("it names no host: a name, an IPv4 address, or an IPv6 address in brackets")
    if port == 0 or parts.netloc.endswith(":"):
        raise AddressFault("its port is not one of 1 to 65535")
    return parts


def canonical(url: str) -> str:
    """One text for all ways in which an address can be written: case, the port of the scheme, forms of IPv6."""
    parts = parsed(url)
    host = (parts.hostname or "").rstrip(".")
    if ":" in host:
        host = f"[{ipaddress.IPv6Address(host)}]"
    return f"{parts.scheme}://{host}:{parts.port or PORTS[parts.scheme]}"


def without_secrets(url: str) -> str:
    """The text as it may be shown: what stands before an @ and behind a question mark is left out."""
    return re.sub(r"//.*@", "//...@", re.sub(r"[?#].*", "?...", url, flags=re.DOTALL), flags=re.DOTALL)


def _words(error: ValueError) -> str:
    return "its port is not one of 1 to 65535" if "ort" in str(error) else "its brackets hold no IPv6 address"


def _is_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        if parts.netloc.startswith("["):
            ipaddress.IPv6Address(host)
            return re.fullmatch(r"\[[^\]]*\](:\d*)?", parts.netloc) is not None
        if host.rstrip(".").rpartition(".")[2].isdigit():
            ipaddress.IPv4Address(host)
            return True
    except ValueError:
        return False
    return NAME.fullmatch(host) is not None


def _checked(url: str) -> str:
    try:
        has_path = bool(parsed(url).path)
    except AddressFault as fault:
        raise _refused(url, str(fault)) from fault
    if has_path:
        raise _refused(url, "it has a path")
    return url


def _refused(url: str, problem: str) -> PydanticCustomError:
    context: dict[str, Any] = {
        "shown": without_secrets(url),
        "problem": f"this is no address of a host: {problem}",
        "remedy": f"give scheme, host and port alone, e.g. {EXAMPLE}",
    }
    return PydanticCustomError("host_address", "{problem}", context)


HostUrl = Annotated[
    str,
    Field(max_length=300),
    AfterValidator(_checked),
    WithJsonSchema({"type": "string", "format": "uri", "maxLength": 300, "pattern": r"^https?://[^/@?#\s]+$"}),
]
