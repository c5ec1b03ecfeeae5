"""What ``environment.catalog`` means on this machine, found before a run of terminal tasks begins."""

import hashlib
from pathlib import Path

from pydantic import ValidationError

from engine.launch.pinned_dataset import datasets_folder
from engine.launch.preflight import BadSpec
from engine.spec.environment import Agent, Environment, Terminal, terminal_in
from engine.spec.mixture import with_each
from engine.spec.model_files import CatalogFolder
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.task_files import TASKS_FOLDER, TASKS_MANIFEST, TaskManifest


def with_pinned_tasks(spec: RunSpec, *, named_in: Path, catalog: CatalogFolder | None) -> RunSpec:
    """A launch document's spec with the folder of its terminal tasks as an absolute path, and the digest that they
    must have.

    ``catalog`` is what the document says of their ``catalog``, at ``environment`` or an agent's ``environment.tasks``.
    The environment compares every file with the digest when it reads the folder.  Raises BadSpec, also for a folder of
    the run's own choosing.
    """

    def pinned(field: str, environment: Environment) -> Environment:
        found = terminal_in(environment)
        if found is None:
            return environment
        at, terminal = found
        tasks = _pinned(field + at.removeprefix("environment"), terminal, named_in=named_in, catalog=catalog)
        return environment.model_copy(update={"tasks": tasks}) if isinstance(environment, Agent) else tasks

    return spec.model_copy(update={"environment": with_each(spec.environment, pinned)})


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
