"""pass@k and intervals against counting and published values."""

from itertools import combinations, product
from math import comb

import pytest

from engine.algorithms.success import SuccessRate, pass_at_k, success_rate


@pytest.mark.parametrize(("tries", "k"), [(1, 1), (4, 2), (6, 3), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_success(tries: int, k: int) -> None:
    for successes in range(tries + 1):
        won = [number < successes for number in range(tries)]
        subsets = list(combinations(won, k))
        assert pass_at_k(tries, successes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_unbiased() -> None:
    p, tries, k = 0.3, 5, 2
    mean = sum(
        comb(tries, won) * p**won * (1 - p) ** (tries - won) * pass_at_k(tries, won, k) for won in range(tries + 1)
    )
    assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize(("tries", "successes", "k"), [(2, 1, 3), (2, 3, 1), (0, 0, 1), (2, 1, 0), (2, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be_estimated(tries: int, successes: int, k: int) -> None:
    with pytest.raises(ValueError, match="cannot be estimated"):
        pass_at_k(tries, successes, k)


def test_one_try_per_task_has_wilsons_interval() -> None:
    """81 of 263: 0.2553 to 0.3662 (Newcombe 1998, table I)."""
    tasks = [1] * 81 + [0] * (263 - 81)
    found = success_rate(tasks, [1] * 263)
    assert (round(found.low, 4), round(found.high, 4)) == (0.2553, 0.3662)


def test_none_and_all_are_not_certain() -> None:
    assert success_rate([0] * 10, [1] * 10) == SuccessRate(0.0, 0.0, pytest.approx(0.2775, abs=1e-4))
    assert success_rate([1] * 10, [1] * 10).low == pytest.approx(1 - 0.2775, abs=1e-4)


def test_tries_that_repeat_their_task_narrow_nothing() -> None:
    """Four equal tries of each task say no more than one."""
    once = success_rate([1] * 20 + [0] * 20, [1] * 40)
    again = success_rate([4] * 20 + [0] * 20, [4] * 40)
    assert (again.low, again.high) == pytest.approx((once.low, once.high))


def test_tries_that_differ_within_tasks_narrow_the_interval() -> None:
    once = success_rate([1] * 20 + [0] * 20, [1] * 40)
    varied = success_rate([2] * 40, [4] * 40)
    assert varied.high - varied.low < 0.6 * (once.high - once.low)


def test_intervals_hold_their_rate_and_stay_within_0_and_1() -> None:
    for won in product(range(4), repeat=4):
        found = success_rate(won, [3, 3, 3, 3])
        assert 0 <= found.low <= found.rate <= found.high <= 1


def test_no_tries_have_no_rate() -> None:
    with pytest.raises(ValueError, match="no tries"):
        success_rate([], [])
