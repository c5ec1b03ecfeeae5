import pytest

from engine.spec.trajectory import Trajectory
from engine.training.experience import strip_experience
from tests.engine.training.cast import trajectory, turn, with_lessons


def credited(*advantages: float) -> Trajectory:
    return with_lessons(trajectory(turn([2, 5], [20] * len(advantages), advantages=list(advantages))), ids=(33, 34))


def test_the_change_says_what_was_taken_out_and_the_context_still_shows_it() -> None:
    one = strip_experience(credited(1.0), "strip", vocabulary="characters")
    [change] = one.changes
    assert (change.kind, change.turn, change.start, change.stop, change.reason) == ("stripped", 0, 1, 3, "strip")
    assert change.removed_ids == [33, 34]
    assert len(change.before) == 2
    assert one.turns[0].context_ids == [2, 33, 34, 5]


@pytest.mark.parametrize(
    ("training", "advantages", "stripped"),
    [
        ("strip", (-1.0,), True),
        ("keep", (1.0,), False),
        ("hybrid", (1.0,), True),
        ("hybrid", (-1.0,), False),
        ("hybrid", (0.0,), False),
        ("hybrid", (2.0, -1.0), True),
        ("hybrid", (1.0, -2.0), False),
    ],
)
def test_who_is_stripped(training: str, advantages: tuple[float, ...], stripped: bool) -> None:
    assert bool(strip_experience(credited(*advantages), training, vocabulary="characters").changes) is stripped


def test_who_was_shown_nothing_stays_the_very_trajectory_and_stripping_twice_is_once() -> None:
    plain = trajectory(turn([2], [20]))
    assert strip_experience(plain, "strip", vocabulary="characters") is plain
    once = strip_experience(credited(1.0), "strip", vocabulary="characters")
    assert strip_experience(once, "strip", vocabulary="characters") is once
