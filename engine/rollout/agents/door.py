"""Who answers whom: the keys of a server of the model proxy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.rollout.agents.asked import Asked
from engine.rollout.agents.bodies import Bodies
from engine.rollout.agents.capture import Call
from engine.rollout.agents.live import Live


@dataclass(frozen=True, slots=True)
class Completed:
    """The turns that were sampled for a request."""

    calls: Sequence[Call]
    pieces: Sequence[Sequence[str]]
    """The text of each token of each turn; of none where nobody asked for log-probs."""


class Answerer(Protocol):
    """Answers the requests of one key."""

    @property
    def bodies(self) -> Bodies:
        """What the key's requests hold."""
        ...

    def begin(self) -> None:
        """A request begins, of which nothing but its head is read.  Raises RequestRefused."""
        ...

    def models(self) -> Sequence[str]:
        """Answer with the names under which it may be asked.  Raises RequestRefused."""
        ...

    def new_id(self) -> str:
        """For the next answer."""
        ...

    async def complete(self, asked: Asked, live: Live | None) -> Completed:
        """``live``, where there is one, shows the turns meanwhile.  Raises RequestRefused."""
        ...

    def refuse(self, kind: str) -> None:
        """Count a request that is answered with an error."""
        ...


class Door(Protocol):
    """Knows the keys."""

    def answerer(self, keys: Sequence[bytes]) -> Answerer | None:
        """Who answers a request that brings these keys, which may be none; None where they open nothing."""
        ...

    def refuse(self, kind: str) -> None:
        """Count a request of nobody who is known."""
        ...

    def failed(self) -> None:
        """Take note of an exception, which is being handled, that nobody expected."""
        ...
