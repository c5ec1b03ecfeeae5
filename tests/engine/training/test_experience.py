import pytest

from engine.models.tokenizer import tokenizer_for
from engine.spec.trajectory import Trajectory
from engine.training.experience import stripped_because, with_experience_stripped
from tests.engine.training.cast import trajectory, turn, with_experience

SHOWN = with_experience(trajectory(turn([2, 5], [20, 21])), ids=(33, 34))


def stripped(rollout: Trajectory) -> Trajectory:
    return with_experience_stripped(rollout, "strip", text_of=tokenizer_for("characters").decode)


def test_the_change_says_what_was_taken_out_and_the_context_still_shows_it() -> None:
    rollout = stripped(SHOWN)
    [change] = rollout.changes
    assert (change.kind, change.turn, change.start, change.stop, change.reason) == ("stripped", 0, 1, 3, "strip")
    assert change.removed_ids == [33, 34]
    assert change.before == tokenizer_for("characters").decode([33, 34])
    assert rollout.turns[0].context_ids == [2, 33, 34, 5]


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
    assert stripped_because(SHOWN, advantages, training) == (training if stripped else None)


def test_who_was_shown_nothing_is_not_stripped_and_stripping_twice_is_once() -> None:
    assert stripped_because(trajectory(turn([2], [20])), [1.0], "strip") is None
    once = stripped(SHOWN)
    assert stripped(once) is once
