"""What ``resources.generator = "sglang"`` requires of the rest of a run."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticCustomError

from engine.spec.impossible import impossible

TORCH = 'use resources.generator = "torch"'


def refusals_of_sglang(run: Any) -> Iterator[PydanticCustomError]:
    """``run`` is a RunSpec; what it asks for and no SGLang server can give, each with its remedy."""
    if run.resources.generator != "sglang":
        return
    if run.model.kind == "builtin":
        yield impossible(
            "resources.generator",
            "sglang",
            "a server serves a model's folder, and the run's model is the built-in network",
            f'set model.kind = "pretrained" and model.path, or {TORCH}',
        )
    if run.resources.sends_adapter_of(run.model) and run.resources.sglang.weights == "broadcast":
        yield impossible(
            "resources.sglang.weights",
            "broadcast",
            "an adapter travels by a folder or within a request, and servers receive none over a process group",
            'use "disk" or "tensor", or resources.sglang.lora = "merged"',
        )
    yield from _log_probs(run)


def _log_probs(run: Any) -> Iterator[PydanticCustomError]:
    """Servers tell log-probs at one temperature, and those of forced tokens at 1."""
    schedule, exact_temperature = run.schedule, run.resources.sglang.logprobs_at
    if schedule.logprobs_at == "one" and exact_temperature == "sampling" and schedule.temperature != 1:
        yield impossible(
            "resources.sglang.logprobs_at",
            exact_temperature,
            "schedule.logprobs_at asks for the model's own",
            'use "one"',
        )
    if schedule.logprob_temperature == 1 and not schedule.logprobs_truncated:
        return
    if schedule.logprobs_at == "sampling" and exact_temperature == "one":
        yield impossible(
            "resources.sglang.logprobs_at",
            exact_temperature,
            f'schedule.logprobs_at = "sampling" asks for log-probs at {schedule.temperature:g}',
            'use "sampling"',
        )
    if exact_temperature == "sampling" and run.evaluation.temperature != 1:
        yield impossible(
            "evaluation.temperature",
            run.evaluation.temperature,
            "evaluation asks for log-probs at 1, and the servers tell them at its temperature",
            f"use 1, or {TORCH}",
        )
    recipe = run.recipe
    for field in ("purification", "expert_starts"):
        if getattr(recipe, field) is not None:
            yield impossible(
                "schedule.logprobs_at",
                schedule.logprobs_at,
                f"recipe.{field} asks for log-probs of given tokens, which SGLang tells at 1 alone",
                f'use "one", or {TORCH}',
            )
