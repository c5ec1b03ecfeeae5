from engine.spec.supervised import Stage
from engine.training.supervised import with_turn_masks
from tests.engine.training.cast import only_sample, trajectory, turn

FAILED = turn([1], [20, 21], failed=True)
WORKED = turn([2], [22])
AGAIN = turn([3], [23, 24])


def test_a_failed_turn_is_marked_on_the_turn_and_as_a_change_and_not_learned() -> None:
    one = with_turn_masks(trajectory(FAILED, WORKED), Stage(mask_errors=True))
    assert [each.masked_because for each in one.turns] == ["error", None]
    [change] = one.changes
    assert (change.kind, change.turn, change.start, change.stop, change.reason) == ("turn-masked", 0, 0, 2, "error")
    assert only_sample(one).loss_mask.tolist() == [False, False, False, False, True]


def test_a_call_made_before_with_the_same_output_is_redundant() -> None:
    one = with_turn_masks(trajectory(WORKED, AGAIN), Stage(mask_irrelevant=True))
    assert [each.masked_because for each in one.turns] == [None, "redundant"]


def test_each_switch_finds_its_own() -> None:
    played = trajectory(FAILED, WORKED, AGAIN)
    errors = with_turn_masks(played, Stage(mask_errors=True))
    assert [each.masked_because for each in errors.turns] == ["error", None, None]


def test_with_both_switches_off_or_nothing_to_mask_it_is_the_very_trajectory() -> None:
    played = trajectory(FAILED, WORKED, AGAIN)
    assert with_turn_masks(played, Stage()) is played
    clean = trajectory(WORKED)
    assert with_turn_masks(clean, Stage(mask_errors=True, mask_irrelevant=True)) is clean
