"""Lengths of the built-in worlds, measured with their own renderers."""

from typing import Any

import pytest

from engine.loop.environment_requirements import lacking_in_environment
from engine.spec.run import RunSpec


def problems(environment: dict[str, Any], context_tokens: int, **parts: Any) -> list[str]:
    document = {"name": "x", "environment": environment, "model": {"context_tokens": context_tokens}} | parts
    return [problem.message for problem in lacking_in_environment(RunSpec.model_validate(document))]


def test_a_context_without_room_for_prompt_and_turn_is_refused() -> None:
    """The longest first questions of levels 1 to 3 have 21 tokens with their marks."""
    [reported] = problems({}, 20)
    assert reported == "the longest prompt (21 tokens) and one turn (32) do not fit"


@pytest.mark.parametrize(
    "environment", [{"levels": [1]}, *({"id": world} for world in ("household", "sokoban", "webshop", "search-qa"))]
)
def test_a_cold_start_asks_for_room_for_its_longest_demonstration(environment: dict[str, Any]) -> None:
    [reported] = problems(environment, 60)
    assert "the longest demonstration of a supervised stage has" in reported
    assert problems(environment, 60, recipe={"stages": []}) == []


def test_another_vocabulary_makes_other_lengths() -> None:
    document = {"name": "x", "environment": {"id": "household"}, "recipe": {"stages": []}}
    for vocabulary, fits in (("household", True), ("characters", False)):
        model = {"context_tokens": 60, "vocabulary": vocabulary}
        assert (lacking_in_environment(RunSpec.model_validate(document | {"model": model})) == []) is fits
