"""From what a spec says about its environment to the environment itself."""

from engine.environments.contract import Environment
from engine.environments.household import HouseholdEnvironment
from engine.environments.imported import imported
from engine.environments.python_math import PythonMathEnvironment
from engine.environments.sokoban import SokobanEnvironment
from engine.spec.environment import Household, Imported, PythonMath, Sokoban
from engine.spec.run import RunSpec


def environment_for(spec: RunSpec) -> Environment:
    """The environment that the spec names, a built-in one over the spec's dataset.  Raises UnusableEnvironment."""
    match spec.environment:
        case PythonMath() as python_math:
            return PythonMathEnvironment(python_math, spec.dataset)
        case Household() as household:
            return HouseholdEnvironment(household, spec.dataset)
        case Sokoban() as sokoban:
            return SokobanEnvironment(sokoban, spec.dataset)
        case Imported() as described:
            return imported(described)
