"""How a model's folder is refused.  Whoever only names one, or asks where it lies, loads no tokenizer for that."""

from typing import Any

from engine.spec.problems import Problem

FIELD = "model.path"


class ModelFolderRefused(ValueError):
    """What a model folder holds cannot be used; ``problem`` says field, value, message and remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def refused(field: str, value: Any, message: str, remedy: str) -> ModelFolderRefused:
    return ModelFolderRefused(Problem(field, value, message, remedy))
