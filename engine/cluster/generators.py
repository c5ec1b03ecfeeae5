"""The generator that a run asks for, and how it comes to new weights; and the servers of its judge."""

from importlib import import_module
from typing import TYPE_CHECKING

from engine.inference.interface import Generator, Level, ReportingGenerator
from engine.models.weights import WeightSource
from engine.spec.backends import GENERATORS
from engine.spec.model import Model
from engine.spec.run import Resources
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
    await generator.suspend()
    try:
        await generator.load_weights(source, version)
    finally:
        if not stays_suspended:
            await generator.resume()
