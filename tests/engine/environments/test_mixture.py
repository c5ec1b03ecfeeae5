"""Tasks are drawn from the parts of a mixture by weight, and each part answers for its own."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from engine.cluster.sandboxes import _shares
from engine.environments.mixture import MixtureEnvironment
from engine.environments.registry import environment_for
from engine.launch.chat import lacking_for_chat
from engine.loop.environment_requirements import lacking_in_environment
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec

SUMS: dict[str, Any] = {"name": "sums", "weight": 3, "environment": {"id": "python-math", "levels": [1]}}
HOUSE: dict[str, Any] = {"name": "house", "environment": {"id": "household", "levels": [1], "max_turns": 9}}


def spec_of(*parts: dict[str, Any], seed: int = 0, **run: Any) -> RunSpec:
    environment = {"id": "mixture", "seed": seed, "parts": parts}
    return RunSpec.model_validate({"name": "x", "environment": environment, **run})


def environment_of(spec: RunSpec) -> MixtureEnvironment:
    environment = environment_for(spec.environment, spec.dataset)
    assert isinstance(environment, MixtureEnvironment)
    return environment


def test_parts_are_drawn_by_weight_and_alike_in_whatever_order_they_are_asked_for() -> None:
    forwards, backwards = environment_of(spec_of(SUMS, HOUSE)).tasks("train"), environment_of(spec_of(SUMS, HOUSE))
    tasks = [forwards[number] for number in range(400)]
    assert [backwards.tasks("train")[number] for number in reversed(range(400))] == tasks[::-1]
    assert Counter(task.part for task in tasks)["sums"] == pytest.approx(300, abs=40)
    other = environment_of(spec_of(SUMS, HOUSE, seed=1)).tasks("train")
    assert [task.part for task in tasks] != [task.part for task in other[:400]]


def test_the_nth_task_of_a_part_is_the_parts_own_nth() -> None:
    spec = spec_of(SUMS, HOUSE)
    own = environment_for(spec.environment.parts[1].environment, spec.dataset).tasks("train")
    drawn = [task for task in environment_of(spec).tasks("train")[:100] if task.part == "house"]
    assert [task.question for task in drawn] == [own[number].question for number in range(len(drawn))]


def test_a_task_has_the_tools_and_the_script_of_its_part() -> None:
    environment = environment_of(spec_of(SUMS, HOUSE))
    tools = {task.part: [tool.name for tool in environment.tools(task)] for task in environment.tasks("train")[:20]}
    assert tools == {"sums": ["python"], "house": ["act"]}
    for task in environment.tasks("train")[:20]:
        assert environment.script(task, "solve", Random(0)).rewards.success


def test_sandboxes_are_shared_by_weight_among_parts_that_take_some() -> None:
    spec = spec_of(SUMS, HOUSE, SUMS | {"name": "more", "weight": 1})
    assert [(name, share) for name, _, share in _shares(spec.environment, 10)] == [
        ("sums", 7), ("house", 10), ("more", 3),
    ]  # fmt: skip


def test_each_part_is_measured_and_named() -> None:
    short = spec_of(SUMS, HOUSE, model={"context_tokens": 24}, recipe={"stages": []})
    problems = lacking_in_environment(short)
    assert {problem.field for problem in problems} == {"model.context_tokens"}
    assert [problem.message.partition(":")[0] for problem in problems] == ["part sums", "part house"]


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ([SUMS], "environment.parts", "name two"),
        ([SUMS, SUMS], "environment.parts.1.name", "another name"),
        ([SUMS, HOUSE | {"weight": 0}], "environment.parts.1.weight", "greater than 0"),
        ([SUMS, HOUSE | {"name": "A house"}], "environment.parts.1.name", "small letters"),
        ([SUMS, HOUSE | {"environment": {"id": "mixture"}}], "environment.parts.1.environment.id", "use one of"),
        (
            [SUMS, HOUSE | {"environment": {"id": "terminal"}}],
            "environment.parts.1.environment.catalog",
            "name@version",
        ),
        ([SUMS, HOUSE | {"environment": {"id": "qa"}}], "dataset.catalog", "name@version"),
    ],
)
def test_what_cannot_be_mixed_is_refused(parts: list[dict[str, Any]], field: str, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        spec_of(*parts)
    [problem] = problems_in(refused.value, RunSpec)
    assert problem.field == field
    assert words in str(problem)


def test_parts_with_sandboxes_need_one_each() -> None:
    with pytest.raises(ValidationError, match="2 parts of the environment take sandboxes"):
        spec_of(SUMS, SUMS | {"name": "more"}, resources={"sandboxes": 1})


def test_words_are_those_that_suit_all_parts() -> None:
    assert spec_of(SUMS, HOUSE).model.vocabulary == "household"
    pushing = {"name": "pushing", "environment": {"id": "sokoban"}}
    assert spec_of(SUMS, HOUSE, pushing).model.vocabulary == "characters"


def test_releases_of_parts_with_sandboxes_are_of_one_age() -> None:
    late = {"name": "late", "environment": {"id": "python-math", "response": {"release_within_steps": 9}}}
    with pytest.raises(ValidationError) as refusal:
        spec_of(SUMS, late)
    [problem] = problems_in(refusal.value, RunSpec)
    assert problem.field == "environment.parts.1.environment.response.release_within_steps"
    assert "another part has" in problem.message


def test_what_a_part_cannot_do_is_refused_under_its_name() -> None:
    window = {"preset": "grpo", "context": {"template": "sliding-window", "window_turns": 2}}
    assert lacking_in_environment(spec_of(SUMS, HOUSE, recipe=window, model={"context_tokens": 160})) == []
    without = {"id": "python-math", "sandbox": {"snapshots": False}}
    with pytest.raises(ValidationError, match="keeps no snapshots"):
        spec_of(SUMS, HOUSE | {"environment": without}, recipe={"preset": "grpo", "purification": {}})


def test_conversations_with_tools_are_with_one_environment() -> None:
    assert [problem.field for problem in lacking_for_chat(spec_of(SUMS, HOUSE), with_tools=True)] == ["environment.id"]
    assert lacking_for_chat(spec_of(SUMS, HOUSE), with_tools=False) == []
