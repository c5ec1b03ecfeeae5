"""What requests hold of their bodies, from the first byte to the end of their answer."""

from engine.rollout.agents.asked import RequestRefused

MOST_HELD_BYTES = 32 * 2**20
"""What all requests of one rollout may hold."""


class Bodies:
    """Those of one key; with ``among``, they count among the bodies of all keys too."""

    def __init__(self, most_bytes: int = MOST_HELD_BYTES, *, among: "Bodies | None" = None) -> None:
        self._most_bytes, self._among = most_bytes, among
        self.held_bytes = 0

    def held(self) -> "HeldBody":
        """One more, of which nothing has come."""
        return HeldBody(self)

    def take(self, received: int) -> None:
        """Raises RequestRefused, and then nothing is taken."""
        if self.held_bytes + received > self._most_bytes:
            raise RequestRefused(
                "rate", f"more than {self._most_bytes} bytes are under way at once: send less in parallel"
            )
        if self._among is not None:
            self._among.take(received)
        self.held_bytes += received

    def give_back(self, received: int) -> None:
        self.held_bytes -= received
        if self._among is not None:
            self._among.give_back(received)


class HeldBody:
    """One request's; nobody's, where its key is not known yet."""

    def __init__(self, bodies: Bodies | None = None) -> None:
        self._bodies, self._bytes = bodies, 0

    def take(self, received: int) -> None:
        """Raises RequestRefused."""
        if self._bodies is not None:
            self._bodies.take(received)
            self._bytes += received

    def give_back(self) -> None:
        """All of it; twice is fine."""
        if self._bodies is not None:
            self._bodies.give_back(self._bytes)
        self._bytes = 0
