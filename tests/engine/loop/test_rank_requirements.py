"""Ranks whose processes do not fit into memory are refused before a start, with how many do."""

from typing import Any

import pytest

from engine.loop import rank_requirements
from engine.loop.rank_requirements import lacking_for_ranks
from engine.loop.requirements import lacking
from engine.spec.resources import Resources
from engine.spec.run import RunSpec

GIB = 2**30


@pytest.mark.parametrize("given", [{"trainer_ranks": 4}, {}, {"trainer_ranks": 256, "device": "cuda"}])
def test_ranks_that_fit_one_rank_and_ranks_with_gpus_lack_nothing(given: dict[str, Any]) -> None:
    assert lacking_for_ranks(Resources.model_validate(given), GIB) == []


def test_more_ranks_than_memory_are_refused_and_the_remedy_is_taken() -> None:
    [problem] = lacking_for_ranks(Resources(trainer_ranks=256), GIB)
    assert (problem.field, problem.value) == ("resources.trainer_ranks", 256)
    assert "each rank is a process" in problem.message
    assert "1.0 GiB free" in problem.message
    most = int(problem.remedy.split("use at most ")[1].split(",")[0])
    assert lacking_for_ranks(Resources(trainer_ranks=most), GIB) == []
    assert lacking_for_ranks(Resources(trainer_ranks=most + 1), GIB) != []


@pytest.mark.parametrize(("gib", "remedy"), [(2, "use at most 6, or more memory"), (0.5, "use more memory")])
def test_what_is_advised_holds_whole_replicas(gib: float, remedy: str) -> None:
    resources = Resources.model_validate(
        {"trainer": "megatron", "trainer_ranks": 12, "megatron": {"tensor": 3, "expert": 1}}
    )
    [problem] = lacking_for_ranks(resources, int(gib * GIB))
    assert problem.remedy == remedy


def test_preflight_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_requirements, "free_memory", lambda: GIB)
    spec = RunSpec.model_validate({"name": "x", "resources": {"trainer_ranks": 8, "kv_slots": 4}})
    assert [problem.field for problem in lacking(spec, {})] == ["resources.trainer_ranks"]
