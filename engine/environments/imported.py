"""An environment by its import path: somebody's own code, which the engine finds, calls and checks."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from engine.environments.contract import Environment
from engine.spec.foreign_environments import Imported
from engine.spec.problems import Problem

VERBS = ("tasks", "tools", "session")


class UnusableEnvironment(Exception):
    """What the import path names is no environment that can be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def imported(described: Imported) -> Environment:
    """Return what the class or function at ``path`` gives, called with ``options``.  Raises UnusableEnvironment."""
    environment = _called(_found(described), described)
    missing = [verb for verb in VERBS if not callable(getattr(environment, verb, None))]
    if missing:
        raise _unusable(
            described,
            f"a {type(environment).__name__} is no environment: it has no method {', '.join(missing)}",
            "give it the methods of engine/environments/contract.py: Environment",
        )
    return environment  # type: ignore[no-any-return]


def _found(described: Imported) -> Callable[..., Any]:
    module_name, _, name = described.path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _raised(described, f"importing {module_name}", error) from error
        raise _unusable(
            described,
            f"there is no module {error.name!r}",
            "put its folder on PYTHONPATH, install its package, or start the engine in its folder",
        ) from error
    except Exception as error:
        raise _raised(described, f"importing {module_name}", error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise _unusable(described, f"{module_name} has no {name}", "name a class or a function of that module")
        found = getattr(found, part)
    if not callable(found):
        raise _unusable(described, f"{name} cannot be called", "name a class, or a function that gives an environment")
    return found  # type: ignore[no-any-return]


def _called(factory: Callable[..., Any], described: Imported) -> Any:
    try:
        inspect.signature(factory).bind(**described.options)
    except (TypeError, ValueError) as error:
        raise UnusableEnvironment(
            Problem(
                "environment.options",
                described.options,
                f"{described.path} does not take them: {error}",
                "give the arguments that it takes, by name",
            )
        ) from error
    try:
        return factory(**described.options)
    except Exception as error:
        raise _raised(described, f"calling {described.path}", error) from error


def _raised(described: Imported, doing: str, error: Exception) -> UnusableEnvironment:
    return _unusable(described, f"{doing} raised {type(error).__name__}: {error}", "mend that code, or its options")


def _unusable(described: Imported, message: str, remedy: str) -> UnusableEnvironment:
    return UnusableEnvironment(Problem("environment.path", described.path, message, remedy))
