"""Who computes what, and which layouts are refused before anything starts."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from engine.loop.model_requirements import lacking_in_model, memory_in_words
from engine.models.folder import opened_folder
from engine.spec.megatron import Megatron
from engine.spec.model import PretrainedModel
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from engine.training.backends.megatron.layout import Grid, layout_problems
from tests.engine.models.folders import folder_of, other_folder
from tests.engine.training.backends.test_pretrained import spec_of


def spec_on(ranks: int, megatron: dict[str, Any] | None = None, family: str = "qwen3", **model: Any) -> RunSpec:
    document = spec_of(family, **model).model_dump()
    document["resources"] |= {"trainer": "megatron", "trainer_ranks": ranks, "megatron": megatron or {}}
    return RunSpec.model_validate(document)


def refusal(ranks: int, megatron: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        spec_on(ranks, megatron)
    (problem,) = problems_in(refused.value, RunSpec)
    return str(problem)


def test_every_share_has_one_speaker_on_the_last_stage() -> None:
    grid = Grid(tensor=2, pipeline=3, context=2, expert=1, ranks=24)
    assert grid.data == 2
    assert [rank for rank in range(24) if grid.speaks(rank)] == [16, 20]
    assert [grid.replica_of(rank) for rank in (0, 3, 4, 7, 8, 16, 20, 23)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [grid.speaker_of(replica) for replica in range(2)] == [16, 20]


@pytest.mark.parametrize(
    ("ranks", "megatron", "says"),
    [
        (6, {"tensor": 4}, r"trainer_ranks = 6: .*takes 4 ranks .*multiple of 4"),
        (4, {"pipeline": 2, "context": 3}, r"trainer_ranks = 4: .*takes 6 ranks"),
        (4, {"expert": 3}, r"megatron\.expert = 3: .*the 4 ranks .*divisor"),
        (2, {"sequence_parallel": True}, r"megatron\.sequence_parallel = True: .*there is one"),
    ],
)
def test_sizes_that_do_not_divide_the_ranks_are_refused(ranks: int, megatron: dict[str, Any], says: str) -> None:
    assert re.search(says, refusal(ranks, megatron)), refusal(ranks, megatron)


def test_a_layout_is_for_megatron_alone() -> None:
    document = spec_of("qwen3").model_dump()
    document["resources"] |= {"trainer_ranks": 2, "megatron": {"tensor": 2}}
    with pytest.raises(ValidationError, match="the trainer torch has no such layout"):
        RunSpec.model_validate(document)


def problems_of(family: str, megatron: dict[str, Any], ranks: int, **model: Any) -> list[str]:
    folder = other_folder("qwen3-moe") if family == "qwen3-moe" else folder_of(family)  # type: ignore[arg-type]
    given = PretrainedModel(path=str(folder), **model)
    found = layout_problems(opened_folder(folder).config, given, Megatron(**megatron), ranks)
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("family", "megatron", "ranks", "names"),
    [
        ("qwen3", {"tensor": 4}, 4, ["tensor", "num_key_value_heads = 2"]),
        ("llama3", {"tensor": 3}, 3, ["tensor", "num_attention_heads = 4"]),
        ("qwen2.5", {"pipeline": 3}, 3, ["pipeline", "num_hidden_layers = 2", "use one of: 1, 2"]),
        ("qwen3", {"expert": 2}, 2, ["expert", "no mixture"]),
        ("qwen3-moe", {"expert": 3}, 3, ["expert", "num_experts = 4"]),
        ("qwen3-moe", {"tensor": 2}, 2, ["sequence_parallel", "set it to true"]),
    ],
)
def test_a_model_that_does_not_divide_is_refused_with_field_and_remedy(
    family: str, megatron: dict[str, Any], ranks: int, names: list[str]
) -> None:
    problems = " | ".join(problems_of(family, megatron, ranks))
    assert all(name in problems for name in names), problems
    assert problems_of("qwen3", {"tensor": 2, "pipeline": 2}, 4) == []


@pytest.mark.parametrize(
    ("model", "named"),
    [({"lora": {"rank": 4}}, "model.lora"), ({"dtype": "float16"}, "model.dtype")],
)
def test_what_it_cannot_train_is_refused_by_name(model: dict[str, Any], named: str) -> None:
    (problems,) = problems_of("qwen3", {}, 1, **model)
    assert problems.startswith(named)


def test_another_family_is_refused_with_the_trainer_that_has_it() -> None:
    folder = other_folder("gemma2")
    (problem,) = layout_problems(opened_folder(folder).config, PretrainedModel(path=str(folder)), Megatron(), 1)
    assert "gemma2" in problem.message
    assert "torch" in problem.remedy


def test_a_critic_is_refused_in_the_spec() -> None:
    document = spec_of("qwen3", {"credit": {"kind": "gae"}}).model_dump()
    document["resources"]["trainer"] = "megatron"
    with pytest.raises(ValidationError, match="no critic"):
        RunSpec.model_validate(document)


def test_a_built_in_model_is_refused_at_preflight() -> None:
    spec = RunSpec.model_validate({"name": "t", "resources": {"trainer": "megatron"}})
    assert [problem.field for problem in lacking_in_model(spec)] == ["model.kind"]


def test_the_estimate_counts_the_layout() -> None:
    def bytes_of(ranks: int, megatron: dict[str, Any]) -> str:
        spec = spec_on(ranks, megatron)
        return str(memory_in_words(spec.model, spec.recipe, spec.resources))

    from engine.training.backends.megatron.memory import _elements_on_rank

    opened = opened_folder(folder_of("qwen3"))
    whole = _elements_on_rank(opened, Grid(1, 1, 1, 1, 1))
    assert whole == opened.parameters
    assert _elements_on_rank(opened, Grid(2, 1, 1, 1, 2)) == whole // 2
    on_stages = _elements_on_rank(opened, Grid(1, 2, 1, 1, 2))
    assert whole / 2 <= on_stages < whole
    assert "2 processes" in bytes_of(2, {"tensor": 2})
