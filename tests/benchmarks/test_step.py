"""What the step benchmark makes of its runs."""

import tomllib

from benchmarks.step import PHASES, RUN, Measured, headlines
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
    spec = RunSpec.model_validate(tomllib.loads(RUN.format(steps=4)))
    assert (spec.schedule.prompts_per_step, spec.schedule.group_size) == (32, 8)
    assert spec.environment.sandbox.reuse == "never"
    assert len(set(PHASES)) == 5
