"""What the step benchmark makes of its runs."""

import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.step import PHASES, ROOT, STAGES, Measured, _waited_for, headlines, run_for
from engine.spec.run import RunSpec


def test_ratios_are_taken_pair_by_pair_and_processor_time_only_where_both_have_it() -> None:
    pairs = [
        (Measured(2.0, 1.0, 3.0, 400), Measured(1.0, 1.0, 2.0, 500)),
        (Measured(1.0, 1.0, None, 500), Measured(1.0, 0.5, 2.0, 400)),
        (Measured(1.0, 1.0, 4.0, 420), Measured(1.0, 0.5, 4.0, 420)),
    ]
    steps, rollouts, processor, memory, *peaks = headlines(pairs)
    assert (steps.value, steps.spread, steps.met) == (1.0, (1.0, 2.0), True)
    assert (rollouts.value, rollouts.met) == (2.0, False)
    assert (processor.value, processor.spread) == (1.25, (1.0, 1.5))
    assert (memory.value, memory.spread, memory.target, memory.met) == (1.0, (0.8, 1.25), "<= 1", True)
    assert [(peak.value, peak.spread, peak.target) for peak in peaks] == [
        (420, (400, 500), None),
        (420, (400, 500), None),
    ]


def test_the_peak_is_that_of_the_run_and_a_run_that_fails_is_no_measurement() -> None:
    # Above what this process ever had: until a child begins as a program of its own, its memory is its parent's.
    floor_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    programs = [f"held = b'x' * {floor_mib + mib << 20}" for mib in (100, 300)]
    small, large = (_waited_for(subprocess.Popen([sys.executable, "-c", program])) for program in programs)
    assert 190 < large - small < 210
    with pytest.raises(subprocess.CalledProcessError):
        _waited_for(subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))


def test_without_an_account_of_processor_time_nothing_is_claimed_about_it() -> None:
    _, _, processor, *_ = headlines([(Measured(1, 1, None, 1), Measured(1, 1, None, 1))])
    assert (processor.value, processor.met) == (None, None)


def test_the_run_has_the_shape_of_the_sample_and_the_default_sandbox() -> None:
    spec = RunSpec.model_validate(tomllib.loads(run_for(ROOT, steps=4)))
    assert (spec.schedule.prompts_per_step, spec.schedule.group_size) == (32, 8)
    assert spec.environment.sandbox.reuse == "never"
    assert len(set(PHASES)) == 5


def test_each_checkout_gets_the_same_supervised_stage_in_the_form_that_it_reads(tmp_path: Path) -> None:
    former = tomllib.loads(run_for(tmp_path, steps=4))["recipe"]
    (tmp_path / STAGES).parent.mkdir(parents=True)
    (tmp_path / STAGES).touch()
    present = tomllib.loads(run_for(tmp_path, steps=4))["recipe"]
    assert (set(former), set(present)) == ({"preset", "cold_start"}, {"preset", "stages"})
    [stage] = present["stages"]
    data = stage.pop("data")
    assert (data.pop("kind"), data.pop("count")) == ("demonstrations", former["cold_start"].pop("demonstrations"))
    assert stage | data == former["cold_start"]
