"""What detectors ask about an attempt: where it goes, by which names, in which zone; and windows of time."""

import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from sandboxes.egress.address import ip, special_range
from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.rule_checks import ANYBODYS

Item = TypeVar("Item")

KEPT = 512
"""How many destinations a detector remembers; of more, the longest unseen is forgotten."""


REGISTRIES = (
    "pypi.org", "pythonhosted.org", "registry.npmjs.org", "registry.yarnpkg.com", "crates.io", "rubygems.org",
    "proxy.golang.org",
    "sum.golang.org", "repo.anaconda.com", "conda.anaconda.org", "deb.debian.org", "security.debian.org",
    "archive.ubuntu.com",
    "security.ubuntu.com", "repo.maven.apache.org", "download.pytorch.org", "sh.rustup.rs", "static.rust-lang.org",
    "astral.sh", "deb.nodesource.com", "nodejs.org", "get.docker.com", "download.docker.com",
    "install.python-poetry.org", "bootstrap.pypa.io", "bun.sh", "get.pnpm.io",
)  # fmt: skip
"""Where packages and the usual tools come from, what installers ask without being told to; whether they may is the
policy's, and what it refuses is no alarm.
"""


def names_of(attempt: ConnectionAttempt) -> set[str]:
    host = (attempt.host or "").rpartition("]")[0].lstrip("[") or (attempt.host or "").partition(":")[0]
    return {name for name in (attempt.name, attempt.sni, host) if name}


def below(name: str, domains: Iterable[str]) -> str | None:
    """The domain among ``domains`` that the name is, or is below of."""
    parts = name.split(".")
    ends = {".".join(parts[place:]) for place in range(len(parts))}
    return next((domain for domain in domains if domain in ends), None)


def special_kind(attempt: ConnectionAttempt) -> str | None:
    """``private``, ``metadata`` ... or None for a public address or none at all."""
    if attempt.address is None:
        return None
    special = special_range(ip(attempt.address))
    return None if special is None else special[1]


def where(attempt: ConnectionAttempt) -> str:
    """A destination as one story: the name where there is one, for it stays when addresses change."""
    name = attempt.sni or attempt.name or attempt.host or attempt.address or "?"
    return f"{name}:{attempt.port}" if attempt.port is not None and attempt.protocol != "dns" else name


def zone_of(name: str) -> tuple[str, str]:
    """(what stands below the zone that one owner registered, that zone)."""
    parts = name.split(".")
    size = 2
    while size < len(parts) and ".".join(parts[-size:]) in ANYBODYS:
        size += 1
    return ".".join(parts[:-size]), ".".join(parts[-size:])


def entropy_bits(text: str) -> float:
    """Shannon's, per character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) if text else 0.0


def hosts_in(text: str) -> list[str]:
    """Host parts of the URLs in a text."""
    found = re.findall(
        r"\b(?:[a-z][a-z0-9+.-]{1,20}://)(?:[^\s/@'\"]{1,100}@)?(\[[0-9a-fA-F:]+\]|[^\s/:'\"<>|;]+)", text
    )
    return [host.lower().strip("[]") for host in found]


def is_here(host: str) -> bool:
    """Return whether a host is the sandbox itself."""
    return host in {"localhost", "::1", "0.0.0.0", "[::1]"} or host.startswith("127.") or host.endswith(".localhost")


class Windows(Generic[Item]):
    """The items of the last ``seconds``, for each key; at most ``items`` of each and ``KEPT`` keys."""

    def __init__(self, seconds: float, items: int = 256) -> None:
        self._seconds = seconds
        self._items = items
        self._kept: OrderedDict[Hashable, deque[tuple[float, Item]]] = OrderedDict()

    def add(self, key: Hashable, at: float, item: Item) -> list[Item]:
        """The items of this key that are not older than the window, this one last."""
        window = self._kept.setdefault(key, deque(maxlen=self._items))
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        window.append((at, item))
        while window[0][0] < at - self._seconds:
            window.popleft()
        return [kept for _, kept in window]
