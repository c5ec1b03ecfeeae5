"""From what a spec says about its environment to the environment itself.

The module of an environment is imported once a run plays it: what an environment needs (sockets, judges, servers of
tools) is in the processes of those runs alone.
"""

from engine.environments.contract import Environment
from engine.environments.imported import UnusableEnvironment, imported
from engine.environments.mixture import MixtureEnvironment
from engine.judge_endpoint import ServedJudge
from engine.spec.environment import Agent, Apps, Household, PythonMath, Qa, SearchQa, Sokoban, Terminal, Webshop
from engine.spec.foreign_environments import Gem, Imported, OpenEnv, Package, VerifiersTaskset
from engine.spec.mixture import Mixture, PlayedPart, RunEnvironment, parts_of
from engine.spec.problems import Problem
from engine.spec.run import Dataset


def environment_for(
    environment: RunEnvironment, dataset: Dataset, served_judge: ServedJudge | None = None
) -> Environment:
    """The environment that a spec describes, a built-in one over the spec's dataset.  Raises UnusableEnvironment.

    ``served_judge`` asks the servers of ``resources.judge``, where the run has them.
    """
    match environment:
        case PythonMath() as python_math:
            from engine.environments.python_math import PythonMathEnvironment

            return PythonMathEnvironment(python_math, dataset)
        case Household() as household:
            from engine.environments.household import HouseholdEnvironment

            return HouseholdEnvironment(household, dataset)
        case Sokoban() as sokoban:
            from engine.environments.sokoban import SokobanEnvironment

            return SokobanEnvironment(sokoban, dataset)
        case Webshop() as webshop:
            from engine.environments.webshop.environment import WebshopEnvironment

            return WebshopEnvironment(webshop, dataset)
        case SearchQa() as search_qa:
            from engine.environments.search_qa.environment import SearchQaEnvironment

            return SearchQaEnvironment(search_qa, dataset)
        case Apps() as apps:
            from engine.environments.apps.environment import AppsEnvironment

            return AppsEnvironment(apps, dataset)
        case Terminal() as terminal:
            from engine.environments.terminal.environment import TerminalEnvironment

            return TerminalEnvironment(terminal, dataset)
        case Qa() as qa:
            from engine.environments.qa.environment import QaEnvironment

            return QaEnvironment(qa, dataset, served_judge)
        case Agent() as agent:
            return environment_for(agent.tasks, dataset, served_judge)
        case Imported() as described:
            return imported(described)
        case Package() as package:
            from engine.environments.process.package import package_environment

            return package_environment(package)
        case Gem() as gem:
            from engine.environments.process.libraries import gem_environment

            return gem_environment(gem, dataset)
        case VerifiersTaskset() as taskset:
            from engine.environments.process.libraries import taskset_environment

            return taskset_environment(taskset, dataset)
        case OpenEnv() as openenv:
            from engine.environments.openenv import OpenEnvEnvironment

            return OpenEnvEnvironment(openenv, dataset)
        case Mixture() as mixture:
            parts = [_of_part(part, dataset, served_judge) for part in parts_of(mixture)]
            return MixtureEnvironment(mixture, dataset, parts)


def _of_part(part: PlayedPart, dataset: Dataset, served_judge: ServedJudge | None) -> Environment:
    """Raises UnusableEnvironment, which names the part's own field."""
    try:
        return environment_for(part.environment, dataset, served_judge)
    except UnusableEnvironment as unusable:
        found = unusable.problem
        field = part.field + found.field.removeprefix("environment")
        raise UnusableEnvironment(Problem(field, found.value, found.message, found.remedy)) from unusable
