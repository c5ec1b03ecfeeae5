import subprocess
import sys
from pathlib import Path

from benchmarks.workload import SETTINGS, Workload, digit_share, spec_for


def test_every_setting_trains_the_default_model_batch_and_group() -> None:
    smaller = {"slow-tools-64": 8, "slow-tools-32": 4}
    for setting in SETTINGS:
        spec = spec_for(setting, steps=3, threads=2)
        default = type(spec)(name="default")
        assert spec.model == default.model
        assert (spec.schedule.group_size, spec.schedule.prompts_per_step) == (8, smaller.get(setting, 32))
        assert spec.recipe.objective == default.recipe.objective


def test_a_batch_of_every_setting_is_one_update_and_only_slow_tools_overlap() -> None:
    for setting in SETTINGS:
        schedule = spec_for(setting, steps=3, threads=2).schedule
        assert schedule.minibatch_trajectories == schedule.prompts_per_step * schedule.group_size
        assert (schedule.async_ratio > 0) == setting.startswith("slow-tools")


def test_a_workload_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    spec = spec_for("tool-use", steps=3, threads=2)
    workload = Workload("tool-use", spec.model_dump(mode="json"), "/policy", warmup_steps=1, timed_steps=2)
    workload.write(tmp_path / "workload.json")
    assert Workload.read(tmp_path / "workload.json") == workload
    assert Workload.read(tmp_path / "workload.json").run_spec() == spec


def test_the_reward_of_completions_is_the_share_of_digits() -> None:
    assert digit_share(["<answer>", *"a1 22-"]) == 3 / 7


def test_the_shared_half_of_the_benchmark_imports_no_torch() -> None:
    code = "import sys, benchmarks.workload, benchmarks.measurement; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
