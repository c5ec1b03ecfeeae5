"""The service runs nobody's own code in its engine: what names code to be imported is refused."""

from engine.spec.environment import Environment, Imported
from engine.spec.problems import Problem
from webapp.refusals import Invalid


def code_to_import(environment: Environment) -> list[Problem]:
    """Why this environment is refused; empty for a built-in one."""
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
