import numpy as np
import pytest

from engine.models.tokenizer import tokenizer_for
from engine.spec.trajectory import Change
from engine.training.preferences import pairs_of
from tests.engine.training.cast import trajectory, turn


def repair(number: int, start: int, stop: int, removed: list[int], kind: str = "purified") -> Change:
    return Change(kind=kind, turn=number, start=start, stop=stop, reason="shallow", removed_ids=removed)


TOOL_OPEN = tokenizer_for("characters").tool_open
PLAYED = trajectory(turn([1, 2], [20, 21, 22]), turn([3], [30, 31]))


def test_a_pair_is_the_same_beginning_with_two_ends() -> None:
    """Shallow in the first turn: its reasoning 20 is kept.  Deep in the second: all of it was replaced."""
    one = PLAYED.model_copy(update={"changes": [repair(0, 1, 3, [90]), repair(1, 0, 2, [91, 92, 93])]})
    shallow, deep = pairs_of([one], TOOL_OPEN)
    assert shallow.chosen.token_ids.tolist() == [1, 2, 20, 21, 22]
    assert shallow.rejected.token_ids.tolist() == [1, 2, 20, 90]
    assert deep.chosen.token_ids.tolist() == [1, 2, 20, 21, 22, 3, 30, 31]
    assert deep.rejected.token_ids.tolist() == [1, 2, 20, 21, 22, 3, 91, 92, 93]
    assert [np.flatnonzero(side.loss_mask).tolist() for side in (shallow.chosen, shallow.rejected)] == [[3, 4], [3]]
    assert [np.flatnonzero(side.loss_mask).tolist() for side in (deep.chosen, deep.rejected)] == [[6, 7], [6, 7, 8]]


def test_only_the_tool_call_is_preferred_and_not_the_reasoning_before_it() -> None:
    opens = TOOL_OPEN
    played = trajectory(turn([1, 2], [50, 51, opens, 60]))
    [pair] = pairs_of([played.model_copy(update={"changes": [repair(0, 0, 4, [70, opens, 80, 81])]})], TOOL_OPEN)
    assert np.flatnonzero(pair.chosen.loss_mask).tolist() == [4, 5]
    assert np.flatnonzero(pair.rejected.loss_mask).tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    "change", [repair(0, 1, 3, []), repair(0, 1, 1, [90]), repair(0, 1, 3, [90], kind="purification-failed")]
)
def test_what_has_no_two_sides_is_no_pair(change: Change) -> None:
    assert pairs_of([PLAYED.model_copy(update={"changes": [change]})], TOOL_OPEN) == []


def test_a_masked_trajectory_gives_no_pair() -> None:
    one = PLAYED.model_copy(update={"changes": [repair(0, 1, 3, [90])], "masked_because": "overlong"})
    assert pairs_of([one], TOOL_OPEN) == []
