"""What ``environment.catalog`` means on this machine, found before a run of terminal tasks begins."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from engine.launch.pinned_dataset import datasets_folder
from engine.launch.preflight import BadSpec
from engine.spec.environment import Agent, Environment, Terminal, terminal_in
from engine.spec.mixture import Mixture, MixturePart, RunEnvironment, terminals_of
from engine.spec.model_files import CatalogFolder
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.task_files import TASKS_FOLDER, TASKS_MANIFEST, TaskManifest


def with_pinned_tasks(spec: RunSpec, *, named_in: Path, catalog: CatalogFolder | None) -> RunSpec:
    """A launch document's spec with the folder of its terminal tasks as an absolute path, and the digest that they
    must have.

    ``catalog`` is what the document says of their ``catalog``, at ``environment`` or an agent's ``environment.tasks``.
    The environment compares every file with the
    digest when it reads the folder.  Raises BadSpec, also for a folder of the run's own choosing.
    """
    found = terminals_of(spec.environment)
    if not found:
        return spec
    pins = [_pinned(field, terminal, named_in=named_in, catalog=catalog) for field, terminal in found]
    return spec.model_copy(update={"environment": _with_tasks(spec.environment, iter(pins))})


def _pinned(field: str, terminal: Terminal, *, named_in: Path, catalog: CatalogFolder | None) -> Terminal:
    if terminal.catalog is None or catalog is None:
        message = "the service plays the tasks of a version of its catalog, and no others"
        problem = Problem(f"{field}.catalog", terminal.catalog, message, 'set it to "name@version"')
        raise BadSpec([f"{named_in}: {problem}"])
    folder = datasets_folder().resolve() / "tasks" / catalog.team / catalog.sha256
    pinned = {
        "catalog": None,
        "tasks": str(folder / TASKS_FOLDER),
        "digest": _manifest(folder, catalog, f"{field}.catalog", named_in).digest,
    }
    return terminal.model_copy(update=pinned)


def _with_tasks(environment: RunEnvironment, pins: Iterator[Terminal]) -> RunEnvironment:
    """The environment with the next of the pins in the place of each of its terminal tasks."""
    if isinstance(environment, Mixture):
        return environment.model_copy(update={"parts": [_part_with_tasks(part, pins) for part in environment.parts]})
    return _alone_with_tasks(environment, pins)


def _part_with_tasks(part: MixturePart, pins: Iterator[Terminal]) -> MixturePart:
    return part.model_copy(update={"environment": _alone_with_tasks(part.environment, pins)})


def _alone_with_tasks(environment: Environment, pins: Iterator[Terminal]) -> Environment:
    if terminal_in(environment) is None:
        return environment
    pinned = next(pins)
    return environment.model_copy(update={"tasks": pinned}) if isinstance(environment, Agent) else pinned


def _manifest(folder: Path, catalog: CatalogFolder, field: str, named_in: Path) -> TaskManifest:
    """Raises BadSpec where it is not there, or not the one that was pinned."""
    try:
        text = (folder / TASKS_MANIFEST).read_bytes()
        if hashlib.sha256(text).hexdigest() == catalog.sha256:
            return TaskManifest.model_validate_json(text)
        message = "its manifest is not the one of this version"
    except (OSError, ValidationError) as error:
        message = f"its manifest cannot be read: {error}"
    problem = Problem(field, catalog.version, message, "import the tasks again")
    raise BadSpec([f"{named_in}: {problem}"])
