"""The items of experience that are shown are those written for tasks like this one, always the same, and they fit."""

from typing import Any

import pytest

from engine.loop.environment_requirements import lacking_in_environment
from engine.rollout.experience import ExperienceRetriever, cosine, grams
from engine.rollout.renderers.registry import renderer_for
from engine.spec.exploration import Experience, ExperienceItem
from engine.spec.problems import Problem
from engine.spec.run import RunSpec

POOL = [
    ExperienceItem(when_to_use="multiply two numbers such as 42*63", content="Ask the tool for a product."),
    ExperienceItem(when_to_use="a question that names a cell", content="Show the cell first."),
    ExperienceItem(when_to_use="subtract, as in 623-161", content="Mind the sign."),
]


def test_nearness_by_hand() -> None:
    # " ab " and " abc ": two and three trigrams, one of them (" ab") in common.
    assert grams("ab") == {" ab": 1, "ab ": 1}
    assert cosine(grams("ab"), grams("abc")) == pytest.approx(1 / (2 * 3) ** 0.5)
    assert cosine(grams("Cell  D"), grams("cell d")) == pytest.approx(1.0)
    assert cosine(grams("abc"), grams("xyz")) == 0.0


def test_the_nearest_come_first_and_no_more_than_asked_for() -> None:
    experience = ExperienceRetriever(Experience(pool=POOL, top_k=2))
    assert experience.for_question("cell d*cell g+41=?")[0] == "Show the cell first."
    assert experience.for_question("42*63=?")[0] == "Ask the tool for a product."
    assert len(experience.for_question("42*63=?")) == 2


def test_equally_near_items_come_in_the_order_of_the_pool() -> None:
    twins = [ExperienceItem(when_to_use="same", content=content) for content in ("first", "second", "third")]
    assert ExperienceRetriever(Experience(pool=twins, top_k=2)).for_question("anything") == ("first", "second")


@pytest.mark.parametrize(("share", "shown"), [(0.0, 0), (0.1, 1), (0.5, 4), (0.3, 2), (1.0, 8)])
def test_a_share_of_each_group_is_shown_them(share: float, shown: int) -> None:
    assert ExperienceRetriever(Experience(pool=POOL, share=share)).shown(8) == shown


def test_seven_tenths_of_ten_are_seven() -> None:
    assert ExperienceRetriever(Experience(pool=POOL, share=0.7)).shown(10) == 7


@pytest.mark.parametrize("environment", ["python-math", "household", "sokoban", "webshop", "search-qa", "apps"])
def test_no_experience_takes_more_room_than_the_spec_reckons_with(environment: str) -> None:
    spec = RunSpec.model_validate({"name": "x", "environment": {"id": environment}, "model": {"context_tokens": 4096}})
    experience = Experience(pool=POOL, top_k=2)
    for question in ("42*63=?", "cell d", "é" * 40):
        shown = ExperienceRetriever(experience).for_question(question)
        start, stop = renderer_for(spec.model, spec.environment).experience_span([], [], shown)
        assert 0 < stop - start <= experience.longest_tokens


def test_experience_that_does_not_fit_is_refused_with_what_would_do() -> None:
    """The pool's two items together; with ``top_k`` 1 the longer one alone; none where nobody is shown any."""

    def problems(context_tokens: int, **experience: Any) -> list[Problem]:
        pool = [{"when_to_use": "always", "content": "x" * 100}, {"when_to_use": "never", "content": "y" * 50}]
        recipe = {"stages": [], "experience": {"pool": pool, **experience}}
        spec = {"name": "x", "recipe": recipe, "model": {"context_tokens": context_tokens}}
        return lacking_in_environment(RunSpec.model_validate(spec))

    [bare] = problems(16, share=0.0)
    assert bare.remedy.startswith("use at least ")
    room = int(bare.remedy.split()[-1])
    needed = room + 100 + 50 + len("\n<EXP></EXP>\n")
    assert problems(needed) == []
    [problem] = problems(needed - 1)
    assert (problem.field, problem.value) == ("model.context_tokens", needed - 1)
    assert problem.remedy == f"use at least {needed}, or fewer or shorter items in recipe.experience"
    assert problems(needed - 51, top_k=1) == []
    assert problems(room, share=0.0) == []
