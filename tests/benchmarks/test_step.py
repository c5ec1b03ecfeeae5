"""What the step benchmark makes of its runs."""

import tomllib
from pathlib import Path

from benchmarks.step import PHASES, ROOT, STAGES, Measured, headlines, run_for
from engine.spec.run import RunSpec


def test_ratios_are_taken_pair_by_pair_and_processor_time_only_where_both_have_it() -> None:
    pairs = [
        (Measured(2.0, 1.0, 3.0), Measured(1.0, 1.0, 2.0)),
        (Measured(1.0, 1.0, None), Measured(1.0, 0.5, 2.0)),
        (Measured(1.0, 1.0, 4.0), Measured(1.0, 0.5, 4.0)),
    ]
    steps, rollouts, processor = headlines(pairs)
    assert (steps.value, steps.spread, steps.met) == (1.0, (1.0, 2.0), True)
    assert (rollouts.value, rollouts.met) == (2.0, False)
    assert (processor.value, processor.spread) == (1.25, (1.0, 1.5))


def test_without_an_account_of_processor_time_nothing_is_claimed_about_it() -> None:
    *_, processor = headlines([(Measured(1, 1, None), Measured(1, 1, None))])
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
