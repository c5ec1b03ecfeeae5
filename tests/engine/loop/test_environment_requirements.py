"""What a recipe needs of its environment is asked of the environment, and lengths are measured."""

from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.loop import environment_requirements
from engine.loop.environment_requirements import lacking_in_environment
from engine.spec.foreign_environments import Imported
from engine.spec.message import Message, ToolSchema
from engine.spec.run import Dataset, RunSpec
from engine.spec.trajectory import Task


class Plain:
    """An environment that is nothing but that."""

    def __init__(self, tasks: int = 20, tools: Any = (), question: str = "what?") -> None:
        self.size, self.schemas, self.question = tasks, tools, question

    def tasks(self, split: Any) -> list[Task]:
        return [Task(id=f"{split}-{n}", split=split, level=1, question="", answer="") for n in range(self.size)]

    def tools(self, task: Task) -> Any:
        return self.schemas

    @asynccontextmanager
    async def session(self, task: Task, sandboxes: Any) -> Any:
        yield self

    async def reset(self) -> list[Message]:
        return [Message("user", self.question)]


def spec_of(environment: str = f"{__name__}:Plain", recipe: Any = None, context: int = 128, **options: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "x",
            "environment": {"id": "import", "path": environment, "options": options},
            "dataset": {"train_tasks": 20, "heldout_tasks": 20},
            "evaluation": {"tasks": 20, "interim_tasks": 20},
            "model": {"context_tokens": context},
            "recipe": recipe if recipe is not None else {"stages": []},
        }
    )


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def environment_for(environment: Imported, dataset: Dataset) -> Plain:
        return Plain(**environment.options)

    monkeypatch.setattr(environment_requirements, "environment_for", environment_for)


def lacking(recipe: Any = None, context: int = 128, **options: Any) -> list[tuple[str, str]]:
    problems = lacking_in_environment(spec_of("any:Thing", recipe, context, **options))
    return [(problem.field, f"{problem.message}; {problem.remedy}") for problem in problems]


def test_a_recipe_that_needs_nothing_lacks_nothing() -> None:
    assert lacking() == []


@pytest.mark.parametrize(
    ("recipe", "field", "reported"),
    [
        ({"purification": {}, "stages": []}, "recipe.purification", "the sessions of Plain keep no snapshots"),
        ({}, "recipe.stages", "Plain has no demonstrator"),
        (
            {"stages": [], "expert_starts": {}},
            "recipe.expert_starts.demonstrations",
            "the policy's own successes serve then",
        ),
        (
            {"stages": [], "credit": {"kind": "attribution", "judge": {"kind": "rules"}}},
            "recipe.credit.judge.kind",
            "Plain has no rules",
        ),
    ],
)
def test_a_capability_that_the_recipe_needs_is_asked_for(recipe: dict[str, Any], field: str, reported: str) -> None:
    [(where, text)] = lacking(recipe)
    assert where == field
    assert reported in text


def test_an_environment_of_fewer_tasks_than_the_dataset_says_is_refused() -> None:
    assert [field for field, _ in lacking(tasks=19)] == ["dataset.train_tasks", "dataset.heldout_tasks"]


@pytest.mark.parametrize(
    ("tools", "reported"),
    [
        ((ToolSchema("two words"),), "'two words' needs a name of its own"),
        ((ToolSchema("same"), ToolSchema("same")), "'same' needs a name of its own"),
        ((ToolSchema("odd", parameters={"type": "number of things"}),), "are no JSON schema"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools: tuple[ToolSchema, ...], reported: str) -> None:
    assert all(reported in text for _, text in lacking(tools=tools))
    assert lacking(tools=tools)


def test_the_prompt_is_measured_in_the_tokens_of_the_runs_renderer() -> None:
    """<bos>, <user>, 40 characters, <assistant>, and a turn of 32: 75."""
    assert lacking(context=75, question="x" * 40) == []
    [(field, text)] = lacking(context=74, question="x" * 40)
    assert field == "model.context_tokens"
    assert text == "the longest prompt (43 tokens) and one turn (32) do not fit; use at least 75"


def test_experience_must_fit_beside_the_prompt() -> None:
    recipe = {"stages": [], "experience": {"pool": [{"when_to_use": "always", "content": "y" * 88}]}}
    assert lacking(recipe, context=175, question="x" * 40) == []
    [(field, text)] = lacking(recipe, context=174, question="x" * 40)
    assert (field, "use at least 175" in text) == ("model.context_tokens", True)


def test_code_of_the_environment_that_raises_is_a_problem_and_no_crash() -> None:
    [(field, text)] = lacking(tasks="many")
    assert field == "environment.id"
    assert "its own code raised TypeError" in text


def test_code_that_raises_when_it_is_asked_for_its_solutions_is_a_problem_and_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Confused(Plain):
        def reference_answer(self, task: Task) -> str:
            raise RuntimeError("no answers today")

    monkeypatch.setattr(environment_requirements, "environment_for", lambda environment, dataset: Confused())
    for players in (["oracle"], ["oracle", "model"]):
        spec = RunSpec.model_validate(
            spec_of().model_dump(mode="json") | {"recipe": {"preset": "evaluate"}}
            | {"evaluation": {"tasks": 20, "interim_tasks": 20, "players": players}}
        )  # fmt: skip
        [problem] = lacking_in_environment(spec)
        assert (problem.field, "no answers today" in problem.message) == ("environment.id", True)
