"""The generator that a run asks for, and how it comes to new weights; several of them in one process; and the servers
of its judge."""

from importlib import import_module
from typing import TYPE_CHECKING

from engine.cluster.generator_fleet import GeneratorFleet
from engine.cluster.generator_group import Method
from engine.inference.interface import Generator, Level, ReportingGenerator
from engine.models.weights import WeightSource
from engine.spec.backends import GENERATORS
from engine.spec.generation import TextGenerator
from engine.spec.model import Model
from engine.spec.resources import Resources
from engine.spec.usage import ServerReading

if TYPE_CHECKING:
    from engine.inference.sglang.judge import ServedJudgeModel


def generator_for(model: Model, resources: Resources, *, seed: int) -> Generator:
    """``resources.generator``, whose module is imported only now: a run loads the libraries of its own generator.

    ``seed`` is the run's, of which a built-in model has its first weights.
    """
    module, factory = GENERATORS[resources.generator].split(":")
    generator: Generator = getattr(import_module(module), factory)(model, resources, seed=seed)
    return generator


def judge_for(resources: Resources, *, first_gpu: int = 0) -> "ServedJudgeModel | None":
    """The servers of the run's judge; None where it has none.  ``first_gpu``: so many GPUs here are others'."""
    if resources.judge is None:
        return None
    from engine.inference.sglang.judge import ServedJudgeModel

    return ServedJudgeModel(resources.judge, resources, first_gpu=first_gpu)


def reports_of(generator: Generator) -> list[tuple[Level, str]]:
    """What happened to a generator's own processes since the last call; nothing where it has none."""
    return generator.reports() if isinstance(generator, ReportingGenerator) else []


async def servers_of(generator: Generator) -> list[ServerReading]:
    """How a generator's servers fare; nothing where it has none."""
    return await generator.servers() if isinstance(generator, ReportingGenerator) else []


async def hand_over_weights(
    generator: Generator, source: WeightSource, version: int, *, stays_suspended: bool = False
) -> None:
    """Between two tokens of whatever is being sampled.  ``stays_suspended``: somebody else will resume it."""
    try:
        await generator.suspend()
        await generator.load_weights(source, version)
    finally:
        if not stays_suspended:
            await generator.resume()


class LocalGenerators:
    """The ``GeneratorCalls`` of generators in this process, which are added one by one."""

    def __init__(self) -> None:
        self.weights: WeightSource | None = None
        """What ``load`` takes."""
        self._generators: list[Generator] = []
        self._fleet = GeneratorFleet()
        self._suspended: set[int] = set()

    def add(self, generator: Generator) -> None:
        self._fleet.replace(len(self._generators), generator)
        self._generators.append(generator)

    @property
    def first(self) -> Generator:
        return self._generators[0]

    @property
    def asked(self) -> TextGenerator:
        """What episodes ask: one alone needs nobody who remembers its sessions."""
        return self._fleet if len(self._generators) > 1 else self.first

    async def load(self, number: int, version: int) -> None:
        assert self.weights is not None, "whoever loads has said which weights"
        await hand_over_weights(
            self._generators[number], self.weights, version, stays_suspended=number in self._suspended
        )

    async def ask(self, number: int, method: Method) -> int:
        if method == "suspend":
            self._suspended.add(number)
        elif method == "resume":
            self._suspended.discard(number)
        turns: int | None = await getattr(self._generators[number], method)()
        return turns or 0

    async def welcome(self) -> None:
        self._fleet.welcome()
