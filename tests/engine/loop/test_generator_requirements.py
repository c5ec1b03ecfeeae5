"""A generator that does not fit is refused before a start, with what it takes and what would fit."""

from dataclasses import replace

import psutil
import pytest

from engine.loop.generator_requirements import free_memory, lacking_in_generator
from engine.loop.requirements import lacking
from engine.spec.run import RunSpec
from sandboxes.cgroups.memory import CGROUP_V1, CGROUP_V2, total_memory

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


@pytest.mark.parametrize("version", [CGROUP_V1, CGROUP_V2])
@pytest.mark.parametrize(
    ("limit", "use", "idle", "left"),
    [("3000", 1000, 0, 2000), ("3000", 2900, 1500, 1600), ("1000", 3000, 0, 0), ("max", 5, 0, None)],
)
def test_a_cgroup_with_a_limit_leaves_what_it_has_not_used_and_idle_page_cache(
    tmp_path, version, limit, use, idle, left
):
    (tmp_path / version.limit).write_text(f"{limit}\n")
    (tmp_path / version.use).write_text(f"{use}\n")
    (tmp_path / "memory.stat").write_text(f"active_file 700\n{version.idle_cache} {idle}\n")
    cgroups = [replace(version, folder=tmp_path), replace(version, folder=tmp_path / "none")]
    free, total = free_memory(cgroups), psutil.virtual_memory().total
    assert free == left if left is not None else 0 < free <= total
    assert total_memory(cgroups) == (total if limit == "max" else int(limit))


@pytest.mark.parametrize("stat", [None, "", "active_file 700\n"])
def test_a_cgroup_that_counts_no_idle_page_cache_has_none(tmp_path, stat):
    (tmp_path / CGROUP_V1.limit).write_text("3000\n")
    (tmp_path / CGROUP_V1.use).write_text("2900\n")
    if stat is not None:
        (tmp_path / "memory.stat").write_text(stat)
    assert free_memory([replace(CGROUP_V1, folder=tmp_path)]) == 100


def test_a_cgroup_whose_use_is_unknown_leaves_what_the_machine_has(tmp_path):
    (tmp_path / CGROUP_V2.limit).write_text("3000\n")
    assert free_memory([replace(CGROUP_V2, folder=tmp_path)]) > 3000
