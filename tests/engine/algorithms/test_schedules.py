import pytest

from engine.algorithms.schedules import linear_warmup, warmup_then_decay


def test_warmup_rises_in_equal_parts_and_then_stays():
    assert [linear_warmup(i, 4) for i in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_no_warmup_begins_at_the_peak():
    assert linear_warmup(0, 0) == 1


def test_cosine_by_hand():
    factors = [warmup_then_decay(i, 7, warmup_updates=2, floor=0.2) for i in range(7)]
    assert factors == pytest.approx(
        [0.5, 1.0, 1.0, 0.2 + 0.8 * (1 + 2**-0.5) / 2, 0.6, 0.2 + 0.8 * (1 - 2**-0.5) / 2, 0.2]
    )


@pytest.mark.parametrize("total", [1, 2, 3])
def test_the_shortest_schedules_stay_between_floor_and_peak(total):
    assert all(0.1 <= warmup_then_decay(i, total, warmup_updates=0, floor=0.1) <= 1 for i in range(total + 2))
