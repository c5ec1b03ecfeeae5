"""A generator that does not fit is refused before a start, with what it takes and what would fit."""

import psutil
import pytest

from engine.loop.generator_requirements import free_memory, lacking_in_generator
from engine.loop.requirements import lacking
from engine.spec.run import RunSpec

GIB = 2**30


def spec(**resources):
    return RunSpec.model_validate({"name": "x", "model": {"context_tokens": 4096}, "resources": resources})


def test_a_generator_that_fits_lacks_nothing():
    assert lacking_in_generator(spec(kv_slots=8), GIB) == []


def test_more_slots_than_memory_are_refused_and_the_remedy_is_taken():
    [problem] = lacking_in_generator(spec(kv_slots=4096), GIB)
    assert (problem.field, problem.value) == ("resources.kv_slots", 4096)
    assert "this machine has 1.0 GiB free" in problem.message
    slots = int(problem.remedy.split("resources.kv_slots to ")[1].split()[0])
    assert lacking_in_generator(spec(kv_slots=slots), GIB) == []
    assert lacking_in_generator(spec(kv_slots=slots + 1), GIB) != []


def test_several_generators_need_room_for_all_of_them():
    assert lacking_in_generator(spec(kv_slots=8, generators=2), GIB) == []
    [problem] = lacking_in_generator(spec(kv_slots=4096, generators=2), GIB)
    assert "each of 2 generators takes" in problem.message
    assert "use fewer resources.generators" in problem.remedy
    slots = int(problem.remedy.split("resources.kv_slots to ")[1].split()[0])
    assert lacking_in_generator(spec(kv_slots=slots, generators=2), GIB) == []


def test_preflight_says_so():
    largest = {"layers": 64, "kv_heads": 512, "heads": 512, "head_dim": 1024, "context_tokens": 2**20}
    impossible = RunSpec.model_validate({"name": "x", "model": largest, "resources": {"kv_slots": 4096}})
    assert "resources.kv_slots" in {problem.field for problem in lacking(impossible, {})}


def test_what_a_gpu_holds_is_not_asked_of_this_machine():
    assert lacking_in_generator(spec(kv_slots=4096, device="cuda"), 1) == []


@pytest.mark.parametrize(("limit", "use", "left"), [("3000", "1000", 2000), ("1000", "3000", 0), ("max", "5", None)])
def test_a_cgroup_with_a_limit_leaves_what_it_has_not_used(tmp_path, limit, use, left):
    (tmp_path / "limit").write_text(f"{limit}\n")
    (tmp_path / "use").write_text(f"{use}\n")
    free = free_memory(((tmp_path / "limit", tmp_path / "use"), (tmp_path / "none", tmp_path / "none")))
    assert free == left if left is not None else 0 < free <= psutil.virtual_memory().total
