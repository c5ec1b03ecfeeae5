"""The generators of a run, as the loop speaks with them: which weights each has, and which are lent to the trainer.

The first ``resources.shared_generators`` share their devices with the trainer's ranks.  ``lend`` gives the trainer
those devices:

    others are there   the shared ones are vacated; what was pending there goes on in the others, and new weights go to
                       the others alone until ``returned``, when the shared ones take the newest
    no others          all are suspended; what was pending waits, and new weights are taken all the same

Whoever replaces a dead generator calls ``lost`` and ``renewed``.  How a generator is reached, ``GeneratorCalls`` knows:
in this process or as an actor.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from engine.spec.resources import Resources

Method = Literal["suspend", "resume", "vacate", "occupy", "move_waiting"]


def generator_names(resources: Resources) -> list[str]:
    return ["generator", *(f"generator-{number}" for number in range(1, resources.generators))]


class GeneratorCalls(Protocol):
    """``number`` counts the generators from 0."""

    async def load(self, number: int, version: int) -> None:
        """The learner's weights, called ``version``."""
        ...

    async def ask(self, number: int, method: Method) -> int:
        """How many turns that concerned; 0 also where the generator is dead: its successor begins as it should be."""
        ...

    async def welcome(self) -> None:
        """Tell all fleets that every generator takes turns."""
        ...


class GeneratorGroup:
    def __init__(self, resources: Resources, calls: GeneratorCalls) -> None:
        self._all = range(resources.generators)
        self._shared = range(resources.shared_generators)
        self._calls = calls
        self._versions: dict[int, int | None] = dict.fromkeys(self._all)
        """What each has loaded; None of one that has been given nothing yet."""
        self._lent = False

    @property
    def _others(self) -> Sequence[int]:
        return self._all[len(self._shared) :]

    @property
    def _serving(self) -> Sequence[int]:
        """Those that take new weights."""
        return self._others if self._lent and self._others else self._all

    def behind(self, version: int) -> list[int]:
        """Those that should have ``version`` and have not."""
        return [number for number in self._serving if self._versions[number] != version]

    @property
    def lacks_weights(self) -> bool:
        """Whether one that should sample was never given any."""
        return any(self._versions[number] is None for number in self._serving)

    def forget_weights(self) -> None:
        """None of them has what the learner has, whatever it is called."""
        self._versions = dict.fromkeys(self._all)

    async def load(self, version: int) -> None:
        """Raises what a call raises, when all are over."""
        outcomes = await asyncio.gather(
            *(self._load(number, version) for number in self.behind(version)), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _load(self, number: int, version: int) -> None:
        await self._calls.load(number, version)
        self._versions[number] = version

    async def lend(self) -> int:
        """Return how many turns go on in another generator."""
        self._lent = True
        if self._others:
            return await self._ask(self._shared, "vacate")
        await self._ask(self._all, "suspend")
        return 0

    def returned(self) -> None:
        """The trainer has given the devices back: ``load`` what is missing now, then ``go_on``."""
        self._lent = False

    async def go_on(self) -> None:
        """The shared ones take turns again, those of them first that wait for a slot elsewhere."""
        if not self._others:
            await self._ask(self._all, "resume")
            return
        await self._ask(self._shared, "occupy")
        await self._calls.welcome()
        await self._ask(self._others, "move_waiting")

    def lost(self, number: int) -> None:
        self._versions[number] = None

    async def renewed(self, number: int) -> None:
        """A successor lives."""
        if self._lent and not self._others:
            await self._calls.ask(number, "suspend")
        elif self._lent and number in self._shared:
            await self._calls.ask(number, "vacate")

    async def _ask(self, numbers: Iterable[int], method: Method) -> int:
        return sum(await asyncio.gather(*(self._calls.ask(number, method) for number in numbers)))
