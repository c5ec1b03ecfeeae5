"""What a spec may not name in the service: code to be imported, and any folder of the server by its absolute path."""

from pathlib import PurePosixPath

from engine.spec.environment import Environment, Imported
from engine.spec.model import CheckpointModel, Model, PretrainedModel
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from webapp.refusals import Invalid


def code_to_import(environment: Environment) -> list[Problem]:
    """Return why this environment is refused; empty for a built-in one."""
    if not isinstance(environment, Imported):
        return []
    return [
        Problem(
            "environment.id",
            environment.id,
            "importing an environment would run its author's code in the service's engine",
            "use a built-in environment here, or train it with: python -m engine train",
        )
    ]


def refuse_code_to_import(environment: Environment) -> None:
    """Raises Invalid."""
    if problems := code_to_import(environment):
        raise Invalid("the service imports no code", problems)


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


def foreign_in(spec: RunSpec) -> list[Problem]:
    """Return why the service refuses the spec, although an engine of one's own would take it."""
    return [*code_to_import(spec.environment), *folders_of_the_server(spec.model)]


def refuse_foreign(spec: RunSpec) -> None:
    """Raises Invalid."""
    if problems := foreign_in(spec):
        raise Invalid("the service imports no code and reads no folder but its own", problems)
