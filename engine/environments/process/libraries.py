"""Environments of other libraries, each played by its own library in a process and a virtual environment of its own."""

import json
from typing import Any

from engine.environments.imported import UnusableEnvironment
from engine.environments.process.connection import EnvironmentProgram
from engine.environments.process.environment import ProcessEnvironment
from engine.environments.process.installation import interpreter_at
from engine.environments.process.package import FACADE, facade_folder, limits_of, package_of, program_of, running
from engine.environments.process.source import PackageRefused
from engine.spec.foreign_environments import Gem, InPackage, Package, VerifiersTaskset
from engine.spec.run import Dataset

SEEDS = 100
"""So many tasks a check asks for of each split, where they are seeds."""


def gem_environment(described: Gem, dataset: Dataset) -> ProcessEnvironment:
    """Raises UnusableEnvironment."""
    return _running(described, dataset, "environment.env_id", described.env_id)


def taskset_environment(described: VerifiersTaskset, dataset: Dataset) -> ProcessEnvironment:
    """Raises UnusableEnvironment."""
    return _running(described, dataset, "environment.taskset", described.taskset)


def _running(described: Gem | VerifiersTaskset, dataset: Dataset, field: str, value: str) -> ProcessEnvironment:
    try:
        program = library_program(described, dataset)
    except PackageRefused as refused:
        raise UnusableEnvironment(refused.problems[0]) from refused
    return running(program, field, value)


def program_for(described: InPackage) -> EnvironmentProgram:
    """What a check plays of it.  Raises PackageRefused."""
    if isinstance(described, Package):
        return program_of(described)
    return library_program(described, Dataset(train_tasks=SEEDS, heldout_tasks=SEEDS))


def library_program(described: Gem | VerifiersTaskset, dataset: Dataset) -> EnvironmentProgram:
    """Raises PackageRefused."""
    name, adapter, options = _adapter(described, dataset)
    modules: tuple[str, ...] = ()
    if described.path is None and described.catalog is None:
        interpreter = interpreter_at(described.python)
        python, folders = str(described.python), interpreter.folders
    else:
        package = package_of(described)
        python, folders, modules = package.python, package.folders, (package.modules,)
    return EnvironmentProgram(
        name=name,
        python=python,
        folders=(*folders, facade_folder()),
        facade=FACADE,
        path=modules,
        entry=f"palestra_env.adapters.{adapter}",
        options=json.dumps(options),
        **limits_of(described.process),
    )


def _adapter(described: Gem | VerifiersTaskset, dataset: Dataset) -> tuple[str, str, dict[str, Any]]:
    """What plays it: the name of the process, the class, and what that is called with."""
    if isinstance(described, Gem):
        options = {
            "env_id": described.env_id,
            "train": dataset.train_tasks,
            "heldout": dataset.heldout_tasks,
            "success_at": described.success_at,
            "arguments": json.loads(described.arguments),
        }
        return f"gem {described.env_id}", "gem_library:GemEnvironment", options
    options = {
        "taskset": described.taskset,
        "config": json.loads(described.config),
        "heldout_share": described.heldout_share,
        "most_tasks": described.most_tasks,
        "success_at": described.success_at,
    }
    return f"verifiers {described.taskset}", "verifiers_tasksets:TasksetEnvironment", options
