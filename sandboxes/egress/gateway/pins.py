"""Which names led to which addresses: the only reason why an address may be reached by a rule that names hosts."""

import time
from collections import OrderedDict

PIN_S = 60.0
"""How long an answer may be used to connect; the answer itself says ``TTL_S``."""
TTL_S = 30
MOST_ADDRESSES = 1024
MOST_NAMES = 32


class Pins:
    """Bounded: of too many addresses the oldest is forgotten, which denies."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, dict[str, float]] = OrderedDict()

    def pin(self, name: str, address: str) -> None:
        names = self._until.setdefault(address, {})
        names.pop(name, None)
        names[name] = time.monotonic() + PIN_S
        if len(names) > MOST_NAMES:
            del names[next(iter(names))]
        self._until.move_to_end(address)
        if len(self._until) > MOST_ADDRESSES:
            self._until.popitem(last=False)

    def names(self, address: str) -> frozenset[str]:
        now = time.monotonic()
        return frozenset(name for name, until in self._until.get(address, {}).items() if until > now)

    def resolved(self, address: str | None) -> dict[str, frozenset[str]]:
        """Return what ``decide`` wants to know about one destination."""
        return {} if address is None else {address: self.names(address)}

    def clear(self) -> None:
        self._until.clear()
