"""The generator that a run asks for, and how it comes to new weights."""

from importlib import import_module

from engine.inference.interface import Generator
from engine.models.weights import WeightSource
from engine.spec.backends import GENERATORS
from engine.spec.run import RunSpec


def generator_for(spec: RunSpec) -> Generator:
    """``resources.generator``, whose module is imported only now: a run loads the libraries of its own generator."""
    module, factory = GENERATORS[spec.resources.generator].split(":")
    generator: Generator = getattr(import_module(module), factory)(spec)
    return generator


async def hand_over_weights(generator: Generator, source: WeightSource, version: int) -> None:
    """Between two tokens of whatever is being sampled."""
    await generator.suspend()
    try:
        await generator.load_weights(source, version)
    finally:
        await generator.resume()
