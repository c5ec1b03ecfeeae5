"""What a spec names that must be there before anything of a run is started."""

import os
from collections.abc import Iterator, Mapping

from engine.judge_endpoint import NoKey, key_for
from engine.loop.environment_requirements import lacking_in_environment
from engine.loop.generator_requirements import lacking_for_judge, lacking_in_generator
from engine.loop.judge_phase import attribution_in
from engine.loop.model_requirements import lacking_in_model
from engine.loop.rank_requirements import lacking_for_ranks
from engine.loop.task_filter import lacking_in_difficulty
from engine.loop.teacher import lacking_in_teacher
from engine.spec.judge import LlmJudge
from engine.spec.problems import Problem
from engine.spec.recipe import Recipe
from engine.spec.run import RunSpec


def lacking(spec: RunSpec, environ: Mapping[str, str] = os.environ, *, free_bytes: int | None = None) -> list[Problem]:
    """Return what the spec names and this process does not find.  No value of a secret is in it.

    ``free_bytes`` of memory are what is free on this machine by default.
    """
    in_model = lacking_in_model(spec, free_bytes=free_bytes)
    # Prompts are measured in the model's tokens, so a model that cannot be read leaves nothing to measure.
    measured = [] if in_model else lacking_in_environment(spec)
    ranks = lacking_for_ranks(spec.resources, free_bytes)
    needed = [*in_model, *ranks, *lacking_in_generator(spec, free_bytes), *measured]
    judge = [*_judge_key(spec.recipe, environ), *lacking_for_judge(spec)]
    return [*judge, *(needed or [*lacking_in_difficulty(spec), *lacking_in_teacher(spec)])]


def _judge_key(recipe: Recipe, environ: Mapping[str, str]) -> Iterator[Problem]:
    credit = attribution_in(recipe)
    if credit is None or not isinstance(credit.judge, LlmJudge):
        return
    try:
        key_for(credit.judge, environ)
    except NoKey as missing:
        field = "recipe.credit.judge.api_key_variable"
        yield Problem(field, missing.variable, missing.problem, missing.remedy)
