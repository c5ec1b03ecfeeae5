import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.turn_masks import TurnRecord, turn_mask_reasons

LOOK = TurnRecord("print(lookup('cell a'))", "41")
THINK = TurnRecord(None)


@pytest.mark.parametrize(
    ("turns", "reasons"),
    [
        ([LOOK, THINK], [None, None]),
        ([TurnRecord("1/0", "ZeroDivisionError", failed=True), LOOK], ["error", None]),
        ([TurnRecord("a", pruned=True), TurnRecord("b", compression=True)], ["pruned", "compression"]),
        ([LOOK, THINK, LOOK], [None, None, "redundant"]),
        ([LOOK, LOOK, LOOK], ["loop"] * 3),
        ([LOOK, TurnRecord(LOOK.call + ";", "41")], [None, "near-duplicate"]),
        ([LOOK, TurnRecord(LOOK.call, "42")], [None, None]),  # the world has changed: worth asking again
        ([LOOK, TurnRecord("print(lookup('cell b'))", "17")], [None, None]),
    ],
)
def test_masks_by_hand(turns, reasons):
    assert turn_mask_reasons(turns) == reasons


def test_the_correction_of_a_failed_call_is_learned_however_similar():
    failed = TurnRecord("print(lookup('cell a')", "", failed=True)
    assert turn_mask_reasons([failed, TurnRecord("print(lookup('cell a'))", "")]) == ["error", None]


def test_both_switches_off_learn_every_turn():
    turns = [TurnRecord("1/0", failed=True), TurnRecord("a", pruned=True), LOOK, LOOK, LOOK]
    assert turn_mask_reasons(turns, errors=False, relevance=False) == [None] * 5
    assert turn_mask_reasons(turns, relevance=False) == ["error", None, None, None, None]
    assert turn_mask_reasons(turns, errors=False) == [None, "pruned", "loop", "loop", "loop"]


@given(st.lists(st.sampled_from("abc"), max_size=8))
def test_of_calls_made_twice_the_first_is_learned_and_of_loops_none(calls):
    turns = [TurnRecord(call, call) for call in calls]
    for k, (call, reason) in enumerate(zip(calls, turn_mask_reasons(turns), strict=True)):
        expected = "loop" if calls.count(call) >= 3 else "redundant" if call in calls[:k] else None
        assert reason == expected
