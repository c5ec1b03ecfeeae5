"""How numbers of one kind lie."""

import pytest

from benchmarks.distribution import Distribution


def test_a_distribution_by_hand() -> None:
    assert Distribution.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Distribution(
        median=3.0, p10=pytest.approx(1.4), p90=pytest.approx(4.6), min=1.0, max=5.0, n=5
    )
    assert Distribution.of([7.0]) == Distribution(7.0, 7.0, 7.0, 7.0, 7.0, 1)
    with pytest.raises(ValueError, match="at least one"):
        Distribution.of([])


def test_it_is_reported_as_median_and_extremes() -> None:
    assert str(Distribution(1234.4, 1.0, 90.0, 0.5, 99.999, 4)) == "1,234 (0.50 to 100.00)"
