"""When GPUs change sides: by hand, and by whatever may come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.multiplexing import Demand, Move, Multiplexer, Multiplexing

SETTINGS = Multiplexing(total=8, trainer=2, batch=100, hold_s=5, keep_at=0.75, patience_s=10)


def demand(at_s: float, ready: int, *, in_flight: int = 50, training: bool = False, may_train: bool = True) -> Demand:
    return Demand(at_s, ready, in_flight, training, may_train)


def test_a_step_lends_the_trainer_its_gpus_and_gives_them_back() -> None:
    gpus = Multiplexer(SETTINGS)
    assert (gpus.rollout_gpus, gpus.trainer_gpus) == (8, 0)
    assert gpus.decide(demand(1, 99)) is None
    assert gpus.decide(demand(2, 100)) == "shrink"
    assert (gpus.rollout_gpus, gpus.trainer_gpus) == (6, 2)
    assert gpus.decide(demand(9, 10, training=True)) is None
    assert gpus.decide(demand(12, 10)) == "expand"
    assert gpus.decide(demand(13, 100)) is None  # held until 17
    assert gpus.decide(demand(17, 100)) == "shrink"


def test_a_trainer_whose_next_batch_is_ready_keeps_its_gpus() -> None:
    gpus = Multiplexer(SETTINGS)
    gpus.decide(demand(0, 100))
    assert [gpus.decide(demand(at, 100)) for at in (10, 20, 300)] == [None] * 3


def test_a_batch_that_is_near_is_waited_for_and_not_longer_than_its_patience() -> None:
    gpus = Multiplexer(SETTINGS)
    gpus.decide(demand(0, 100))
    waiting = demand(20, 80)
    assert gpus.decide(waiting) is None
    assert gpus.next_look_s(waiting) == 30
    assert gpus.decide(demand(29, 90)) is None
    assert gpus.decide(demand(30, 90)) == "expand"


def test_a_batch_that_nobody_plays_for_is_not_near() -> None:
    gpus = Multiplexer(SETTINGS)
    gpus.decide(demand(0, 100))
    assert gpus.decide(demand(20, 80, in_flight=19)) == "expand"


def test_a_batch_that_waits_for_a_straggler_is_not_ready() -> None:
    gpus = Multiplexer(SETTINGS)
    assert gpus.decide(demand(0, 180, may_train=False)) is None


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ({"trainer": 8}, "trainer = 8 of 8 GPUs"),
        ({"trainer": 9, "patience_s": 0}, "use 1 to 8"),
        ({"trainer": 0}, "trainer = 0 of 8 GPUs"),
        ({"batch": 0}, "batch = 0"),
        ({"hold_s": -1}, "hold_s = -1"),
        ({"keep_at": 1.5}, "keep_at = 1.5"),
    ],
)
def test_what_cannot_be_divided_is_refused(wrong: dict[str, int], reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        Multiplexing(**({"total": 8, "trainer": 2, "batch": 100} | wrong))


def test_where_all_change_sides_an_idle_trainer_gives_them_back_as_soon_as_it_may() -> None:
    gpus = Multiplexer(Multiplexing(total=1, trainer=1, batch=4, hold_s=2, keep_at=1, patience_s=0))
    assert gpus.decide(demand(0, 4)) == "shrink"
    assert gpus.rollout_gpus == 0
    idle = demand(1, 3)
    assert gpus.decide(idle) is None
    assert gpus.next_look_s(idle) == 2
    assert gpus.decide(demand(2, 3)) == "expand"


def test_an_evaluation_does_not_wait_and_the_next_move_is_held_from_then_on() -> None:
    gpus = Multiplexer(SETTINGS)
    gpus.decide(demand(0, 100))
    gpus.expand_now(1)
    assert gpus.rollout_gpus == 8
    assert gpus.decide(demand(5, 100)) is None
    assert gpus.decide(demand(6, 100)) == "shrink"


MOMENTS = st.lists(
    st.tuples(st.floats(0.01, 4), st.integers(0, 12), st.integers(0, 12), st.booleans(), st.booleans()),
    min_size=1,
    max_size=120,
)


@settings(deadline=None, max_examples=300)
@given(
    moments=MOMENTS,
    hold_s=st.floats(0, 8),
    patience_s=st.floats(0, 15),
    keep_at=st.floats(0.1, 1),
    trainer=st.integers(1, 7),
)
def test_it_neither_flaps_nor_starves(
    moments: list[tuple[float, int, int, bool, bool]], hold_s: float, patience_s: float, keep_at: float, trainer: int
) -> None:
    """Whatever rollouts and trainer do, though a trainer without GPUs does not train."""
    asked = Multiplexing(8, trainer, batch=6, hold_s=hold_s, keep_at=keep_at, patience_s=patience_s)
    gpus, at_s, slack_s = Multiplexer(asked), 0.0, 1e-6
    moves: list[tuple[float, Move]] = []
    ready_since: float | None = None
    idle_since: float | None = None
    longest_gap = max(moment[0] for moment in moments)
    for gap_s, ready, in_flight, wants_to_train, may_train in moments:
        at_s += gap_s
        now = Demand(at_s, ready, in_flight, wants_to_train and gpus.trainer_gpus > 0, may_train)
        has_batch = may_train and ready >= asked.batch
        ready_since = (at_s if ready_since is None else ready_since) if has_batch and not gpus.trainer_gpus else None
        is_idle = gpus.trainer_gpus > 0 and not now.training and not has_batch
        idle_since = (at_s if idle_since is None else idle_since) if is_idle else None
        if (move := gpus.decide(now)) is not None:
            moves.append((at_s, move))
        assert gpus.rollout_gpus >= 8 - trainer
        assert not (now.training and move == "expand")
        if ready_since is not None and not gpus.trainer_gpus:
            assert at_s - ready_since <= hold_s + longest_gap + slack_s
        if idle_since is not None and gpus.trainer_gpus:
            assert at_s - idle_since <= max(hold_s, patience_s) + longest_gap + slack_s
        ready_since = None if move else ready_since
        idle_since = None if move else idle_since
    assert all(later[0] - earlier[0] >= hold_s - slack_s for earlier, later in zip(moves, moves[1:], strict=False))
    assert all(earlier[1] != later[1] for earlier, later in zip(moves, moves[1:], strict=False))
