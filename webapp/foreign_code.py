"""What a spec may not name in the service: code to be imported, folders of the server by their absolute paths, and
places that whoever runs it has not allowed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from django.conf import settings

from engine.spec.allowed import Allowed
from engine.spec.environment import Agent, Environment, Terminal
from engine.spec.foreign_environments import Gem, Imported, OpenEnv, Package, VerifiersTaskset
from engine.spec.judge import OF_THE_RUN
from engine.spec.mixture import Mixture, PlayedPart, RunEnvironment, parts_of, terminals_of
from engine.spec.model import CheckpointModel, Model, PretrainedModel
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from webapp.refusals import Invalid


def allowed_by_settings() -> Allowed:
    return Allowed(
        openenv=settings.PALESTRA_OPENENV,
        judges=settings.PALESTRA_JUDGES,
        sglang=settings.PALESTRA_SGLANG_URLS,
        exchange=settings.PALESTRA_EXCHANGE,
    )


def code_to_import(environment: RunEnvironment) -> list[Problem]:
    """Return why this environment is refused; empty for one of the service's own and for tasks of the catalog."""
    match environment:
        case Mixture():
            return [problem for part in parts_of(environment) for problem in _of_part(part)]
        case Imported():
            message = "importing an environment would run its author's code in the service's engine"
            remedy = "use a built-in environment here, or train it with: python -m engine train"
            return [Problem("environment.id", environment.id, message, remedy)]
        case OpenEnv(url=url) if url.rstrip("/") in settings.PALESTRA_OPENENV:
            return []
        case OpenEnv(url=url):
            message = "the service asks no server that whoever runs it has not allowed"
            remedy = "let it be added to PALESTRA_OPENENV, or train it with: python -m engine train"
            return [Problem("environment.url", url, message, remedy)]
        case Package() | Gem() | VerifiersTaskset() if environment.catalog is None:
            message = "the service runs no environment that its catalog does not hold"
            remedy = "bring your package to the catalog, or train it with: python -m engine train"
            return [Problem("environment.id", environment.id, message, remedy)]
        case Terminal():
            return list(_folder_of_tasks("environment", environment))
        case Agent():
            return list(_folders_of(environment))
        case _:
            return []


def _of_part(part: PlayedPart) -> Iterator[Problem]:
    """The refusals of one part, under its own field."""
    for problem in code_to_import(part.environment):
        yield replace(problem, field=part.field + problem.field.removeprefix("environment"))


def _several_task_sets(environment: RunEnvironment) -> Iterator[Problem]:
    """A run of the service is launched with the files of one version."""
    named = [(field, terminal.catalog) for field, terminal in terminals_of(environment) if terminal.catalog]
    for field, version in named[1:]:
        if version != named[0][1]:
            message = f"another part plays {named[0][1]}, and a run of the service is launched with one version"
            remedy = "name that one, or import the tasks of both parts as one set"
            yield Problem(f"{field}.catalog", version, message, remedy)


def _folders_of(agent: Agent) -> Iterator[Problem]:
    if isinstance(agent.tasks, Terminal):
        yield from _folder_of_tasks("environment.tasks", agent.tasks)
    if agent.agent.folder is not None:
        message, remedy = "a folder of the server's own choosing is not read here", "give environment.agent.files"
        yield Problem("environment.agent.folder.path", agent.agent.folder.path, message, remedy)


def _folder_of_tasks(field: str, terminal: Terminal) -> Iterator[Problem]:
    if terminal.tasks is not None:
        message = "a folder of the server's own choosing is not read here"
        remedy = f'set {field}.catalog = "name@version", or train it with: python -m engine train'
        yield Problem(f"{field}.tasks", terminal.tasks, message, remedy)


def refuse_code_to_import(environment: Environment) -> None:
    """Raises Invalid."""
    judges = allowed_by_settings().refusals_of_judges(environment, "environment")
    if problems := [*code_to_import(environment), *judges]:
        raise Invalid("the service imports no code, and asks allowed judges alone", problems)


def folders_of_the_server(model: Model) -> list[Problem]:
    """Return why this model is refused; empty for one below the folders that are there for models and runs."""
    match model:
        case PretrainedModel():
            field, named, root = "path", model.path, "the models folder"
        case CheckpointModel():
            field, named, root = "run", model.run, "the runs of your team, by id"
        case _:
            return []
    parts = PurePosixPath(named or "").parts
    if field == "path" and parts[:1] in (("catalog",), ("uploads",)):
        message = "what lies there belongs to the teams that imported it"
        return [Problem("model.path", named, message, 'set model.catalog = "name@version"')]
    if named is None or not (PurePosixPath(named).is_absolute() or ".." in parts):
        return []
    return [
        Problem(
            f"model.{field}", named, "a folder of the server's own choosing is not read here", f"name one in {root}"
        )
    ]


def _folder_of_judge(spec: RunSpec) -> list[Problem]:
    judge = spec.resources.judge
    problems = [] if judge is None else folders_of_the_server(judge.model)
    return [problem.renamed("model", OF_THE_RUN) for problem in problems]


def _folder_of_rows(spec: RunSpec) -> list[Problem]:
    if spec.dataset.folder is None:
        return []
    remedy = 'upload the files, and set dataset.catalog = "name@version"'
    return [Problem("dataset.folder", spec.dataset.folder, "the service reads datasets of its catalog alone", remedy)]


def foreign_in(spec: RunSpec) -> list[Problem]:
    """Return why the service refuses the spec, although an engine of one's own would take it."""
    sets = _several_task_sets(spec.environment)
    folders = [*folders_of_the_server(spec.model), *_folder_of_judge(spec), *_folder_of_rows(spec)]
    return [*code_to_import(spec.environment), *sets, *folders, *allowed_by_settings().refusals(spec)]


def refuse_foreign(spec: RunSpec) -> None:
    """Raises Invalid."""
    if problems := foreign_in(spec):
        raise Invalid("the service imports no code, and uses allowed folders and servers alone", problems)
