"""What a run asks of its generator.  docs/guide/backends.md makes one in forty lines.

    rollouts   generate, rewind, release             a session is one episode's place in the generator
    loop       suspend, load_weights, resume         new weights between two tokens
    operator   stats, abort_all, close

``TextGenerator`` is the part that an episode sees.  It stands in ``engine.spec`` because rollouts may not import
inference, and it stays narrow because a rollout worker's way to a generator in another process offers no more
(engine/cluster/generator_client.py): who plays episodes has no say over weights, nor over other people's sessions.
"""

from typing import Literal, Protocol, runtime_checkable

from engine.models.weights import WeightSource
from engine.spec.generation import TextGenerator
from engine.spec.usage import ServerReading


class GenerationAborted(RuntimeError):
    """A pending ``generate`` was ended by ``abort_all``, ``release`` or ``close``; its session is gone."""


class NonFiniteLogits(RuntimeError):
    """The weights give no distribution for a session, which is ended; the others go on."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the logits under policy version {version} are not finite: the weights have diverged, or their dtype is"
            " too narrow (float16 overflows where bfloat16 does not)"
        )
        self._version = version

    def __reduce__(self) -> tuple[type["NonFiniteLogits"], tuple[int]]:
        """From a process to another it travels as what it was made of."""
        return type(self), (self._version,)


Level = Literal["info", "warning"]


@runtime_checkable
class ReportingGenerator(Protocol):
    """A generator of several processes, to which things happen that the run's log should tell."""

    def reports(self) -> list[tuple[Level, str]]:
        """What happened since the last call."""
        ...

    async def servers(self) -> list[ServerReading]:
        """How its servers fare."""
        ...


class Generator(TextGenerator, Protocol):
    """Samples from the policy.  Every token that it gives carries the version of the weights that sampled it.

    All calls may come in any order and at once, from one event loop.
    """

    async def suspend(self) -> None:
        """Sample no further token until ``resume``: when this returns the last one has been sampled.

        Pending turns stay pending and keep what they have; new ones are taken and wait.  Twice is once.
        """
        ...

    async def load_weights(self, source: WeightSource, version: int) -> None:
        """Sample from these weights, called ``version``, from the next token on.  Sessions live on."""
        ...

    async def resume(self) -> None:
        """Go on where ``suspend`` stopped; where the weights are the same ones, as if it had never been asked."""
        ...

    async def abort_all(self) -> None:
        """End every session; pending turns raise GenerationAborted.  What is suspended stays suspended."""
        ...

    def stats(self) -> dict[str, float]:
        """Totals since the start and the present load; ``version`` is that of the weights."""
        ...

    def close(self) -> None:
        """Abort everything and give back what the generator holds.  Further calls raise GenerationAborted."""
        ...


class SharingGenerator(Generator, Protocol):
    """One of several of a run, between which sessions move (engine/cluster/generator_fleet.py).

    It serves ``GenerateRequest.drawn`` and ``continues``, and raises UnknownSession where they ask for that.
    """

    async def vacate(self) -> int:
        """End all sessions; pending turns, whose number is returned, raise TurnMoved.

        So do turns that come until ``occupy``.  Twice is once.
        """
        ...

    async def occupy(self) -> None:
        """Take turns again."""
        ...

    async def move_waiting(self) -> int:
        """Let the turns that wait for a slot raise TurnMoved; how many they are.  Others notice nothing."""
        ...
