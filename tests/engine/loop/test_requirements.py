"""What the spec names and this process lacks is told before anything starts, with field, value and remedy."""

from typing import Any

import pytest

from engine.loop.judge_phase import judging_for
from engine.loop.requirements import lacking
from engine.spec.run import RunSpec


def judged_by(alpha: float = 0.1, objective: str = "clipped", **judge: Any) -> RunSpec:
    llm = {"kind": "llm", "endpoint": "http://127.0.0.1:1/v1", "model": "m", **judge}
    credit = {"kind": "attribution", "alpha": alpha, "judge": llm}
    return RunSpec.model_validate({"name": "x", "recipe": {"credit": credit, "objective": {"kind": objective}}})


@pytest.mark.parametrize("environ", [{}, {"PALESTRA_JUDGE_KEY": " "}])
def test_a_judges_key_that_is_not_set_is_named_with_its_remedy(environ: dict[str, str]) -> None:
    [problem] = lacking(judged_by(api_key_variable="PALESTRA_JUDGE_KEY"), environ)
    assert (problem.field, problem.value) == ("recipe.credit.judge.api_key_variable", "PALESTRA_JUDGE_KEY")
    assert "set it where the engine starts" in problem.remedy


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    [problem] = lacking(judged_by(api_key_variable="PALESTRA_JUDGE_KEY"), {"PALESTRA_JUDGE_KEY": "geh\neim"})
    assert "header" in problem.message
    assert "geh" not in str(problem)


def test_a_key_of_another_address_is_not_there_for_this_one() -> None:
    others = "http://127.0.0.1:1/v1/other=geheim https://127.0.0.1:1/v1=geheim http://127.0.0.1:11/v1=geheim"
    [problem] = lacking(judged_by(api_key_variable="PALESTRA_JUDGE_KEY"), {"PALESTRA_JUDGE_KEY": others})
    assert "add http://127.0.0.1:1/v1=KEY" in problem.remedy
    assert "geheim" not in str(problem)


def test_what_needs_nothing_lacks_nothing() -> None:
    assert lacking(RunSpec(name="x"), {}) == []
    assert lacking(judged_by(), {}) == []
    assert lacking(judged_by(api_key_variable="PALESTRA_JUDGE_KEY"), {"PALESTRA_JUDGE_KEY": "k"}) == []


@pytest.mark.parametrize("unasked", [{"alpha": 0.0}, {"objective": "none"}])
def test_a_judge_that_is_never_asked_needs_no_key(unasked: dict[str, Any]) -> None:
    spec = judged_by(api_key_variable="PALESTRA_JUDGE_KEY", **unasked)
    assert lacking(spec, {}) == []
    assert judging_for(spec.recipe, spec.environment, spec.dataset, {}) is None
