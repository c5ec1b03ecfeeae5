from pathlib import Path

import pytest

from benchmarks.machine import CoreTime
from benchmarks.measurement import Comparison, Run, Step


def step(
    *, seconds: float, rollout: float = 0.0, score: float = 0.0, update: float = 0.0, trajectories: int = 8
) -> Step:
    return Step(
        seconds, rollout, score, update, seconds, trajectories, turns=2 * trajectories, sampled_tokens=10 * trajectories
    )


def run(*seconds: float, others_share: float = 0.0) -> Run:
    return Run(
        "some", [step(seconds=second) for second in seconds], {"torch": "2"}, threads=2, others_share=others_share
    )


def test_throughput_is_all_work_over_all_time_and_not_a_mean_of_rates() -> None:
    measured = run(1.0, 3.0)
    assert measured.trajectories_per_s == 16 / 4
    assert measured.tokens_per_s == 160 / 4
    assert measured.tokens_per_trajectory == 10
    assert measured.turns_per_trajectory == 2


def test_each_run_is_compared_with_the_run_of_its_own_pair() -> None:
    comparison = Comparison("some", ours=[run(1.0), run(10.0)], theirs=[run(3.0), run(20.0)])
    assert comparison.ratios() == pytest.approx([3.0, 2.0])


def test_a_pair_without_its_other_half_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        Comparison("some", ours=[run(1.0), run(1.0)], theirs=[run(1.0)]).ratios()


def test_cost_ratios_are_above_one_where_the_peer_takes_longer() -> None:
    ours = Run("ours", [step(seconds=2.0, rollout=1.0, update=1.0)], {}, 2)
    theirs = Run("theirs", [step(seconds=4.5, rollout=0.5, update=4.0)], {}, 2)
    comparison = Comparison("some", [ours], [theirs])
    assert comparison.cost_ratios("rollout") == [0.5]
    assert comparison.cost_ratios("update") == [4.0]


def test_what_no_phase_claims_is_shown_as_other() -> None:
    measured = Run("some", [step(seconds=10.0, rollout=5.0, score=1.0, update=2.0)], {}, 2)
    assert measured.shares() == pytest.approx({"rollout": 0.5, "score": 0.1, "update": 0.2, "other": 0.2})


def test_a_run_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    measured = run(1.0, 3.0)
    measured.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == measured


def test_the_most_disturbed_run_speaks_for_the_comparison() -> None:
    comparison = Comparison("some", [run(1.0, others_share=0.01)], [run(1.0, others_share=0.4)])
    assert comparison.others_share() == 0.4


def test_time_of_our_own_children_is_not_counted_as_others() -> None:
    begin = CoreTime(at=100.0, busy=50.0, ours=5.0)
    end = CoreTime(at=110.0, busy=62.0, ours=14.0)
    assert begin.others_share_until(end, cores=2) == pytest.approx(0.15)  # (12 - 9) of 2 x 10 seconds


def test_the_clock_of_the_cores_never_makes_the_others_negative() -> None:
    begin, end = CoreTime(0.0, 0.0, 0.0), CoreTime(1.0, 0.9, 1.0)  # ticks of 10 ms round down
    assert begin.others_share_until(end, cores=2) == 0.0
