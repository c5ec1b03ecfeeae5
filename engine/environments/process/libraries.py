"""Environments of other libraries, each played by its own library in a process and a virtual environment of its own."""

import json
from typing import Any

from engine.environments.imported import UnusableEnvironment
from engine.environments.process.connection import EnvironmentProgram
from engine.environments.process.environment import ProcessEnvironment
from engine.environments.process.installation import interpreter_at
from engine.environments.process.package import FACADE, facade_folder, limits_of, running
from engine.environments.process.source import PackageRefused
from engine.spec.environment import Gem, VerifiersTaskset
from engine.spec.run import Dataset


def gem_environment(described: Gem, dataset: Dataset) -> ProcessEnvironment:
    """Raises UnusableEnvironment."""
    options = {
        "env_id": described.env_id,
        "train": dataset.train_tasks,
        "heldout": dataset.heldout_tasks,
        "success_at": described.success_at,
        "arguments": json.loads(described.arguments),
    }
    program = _program(described, f"gem {described.env_id}", "gem_library:GemEnvironment", options)
    return running(program, "environment.env_id", described.env_id)


def taskset_environment(described: VerifiersTaskset) -> ProcessEnvironment:
    """Raises UnusableEnvironment."""
    options = {
        "taskset": described.taskset,
        "config": json.loads(described.config),
        "heldout_share": described.heldout_share,
        "most_tasks": described.most_tasks,
        "success_at": described.success_at,
    }
    program = _program(described, f"verifiers {described.taskset}", "verifiers_tasksets:TasksetEnvironment", options)
    return running(program, "environment.taskset", described.taskset)


def _program(described: Gem | VerifiersTaskset, name: str, adapter: str, options: dict[str, Any]) -> EnvironmentProgram:
    try:
        interpreter = interpreter_at(described.python)
    except PackageRefused as refused:
        raise UnusableEnvironment(refused.problems[0]) from refused
    return EnvironmentProgram(
        name=name,
        python=described.python,
        folders=(*interpreter.folders, facade_folder()),
        facade=FACADE,
        path=(),
        entry=f"palestra_env.adapters.{adapter}",
        options=json.dumps(options),
        **limits_of(described.process),
    )
