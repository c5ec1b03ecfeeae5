"""From what a spec says about its environment to the environment itself."""

from engine.environments.contract import Environment
from engine.environments.household import HouseholdEnvironment
from engine.environments.imported import imported
from engine.environments.python_math import PythonMathEnvironment
from engine.environments.sokoban import SokobanEnvironment
from engine.spec import environment as environments
from engine.spec.environment import Household, Imported, PythonMath, Sokoban
from engine.spec.run import Dataset


def environment_for(environment: environments.Environment, dataset: Dataset) -> Environment:
    """The environment that a spec describes, a built-in one over the spec's dataset.  Raises UnusableEnvironment."""
    match environment:
        case PythonMath() as python_math:
            return PythonMathEnvironment(python_math, dataset)
        case Household() as household:
            return HouseholdEnvironment(household, dataset)
        case Sokoban() as sokoban:
            return SokobanEnvironment(sokoban, dataset)
        case Imported() as described:
            return imported(described)
