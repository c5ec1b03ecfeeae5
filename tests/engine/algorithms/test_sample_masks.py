from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.sample_masks import (
    SampleFacts,
    TurnFacts,
    has_void_turn,
    is_repetitive,
    is_unreadable,
    mask_reason,
)

CALL, ANSWER, NEITHER = TurnFacts(True, False), TurnFacts(False, True), TurnFacts(False, False)
FINE = SampleFacts(list(range(100)), "let me see\n4 * 2", [CALL, ANSWER], cut_short=False)


def _reason(**changes) -> str | None:
    return mask_reason(replace(FINE, **changes), max_response_tokens=100)


def test_a_fine_sample_is_trained_on():
    assert _reason() is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": list(range(101))}, "overlong"),
        ({"cut_short": True}, "incomplete"),
        ({"turns": [CALL, NEITHER, ANSWER]}, "void-turn"),
        ({"turns": [ANSWER]}, "void-turn"),
        ({"token_ids": [1] * 30}, "repetitive"),
        ({"text": "\ufffd" * 10}, "unreadable"),
        ({"text": "\ufffd", "cut_short": True}, "incomplete"),  # the first reason is the one that is shown
    ],
)
def test_every_mask_names_its_reason_and_can_be_switched_off(changes, reason):
    assert _reason(**changes) == reason
    facts = replace(FINE, **changes)
    assert mask_reason(facts, max_response_tokens=100, switched_on=frozenset()) is None
    assert mask_reason(facts, max_response_tokens=100, switched_on=frozenset({reason})) == reason


def test_a_void_turn_neither_calls_nor_answers():
    assert not has_void_turn([CALL, CALL, ANSWER])
    assert not has_void_turn([CALL])
    assert has_void_turn([CALL, NEITHER])
    assert has_void_turn([])


@pytest.mark.parametrize(("times", "repetitive"), [(9, False), (10, True)])
def test_a_20_gram_at_10_places_is_repetitive(times, repetitive):
    between = iter(range(1000, 2000))
    ids = [token for _ in range(times) for token in (*range(20), next(between))]
    assert is_repetitive(ids) == repetitive


@pytest.mark.parametrize(("length", "repetitive"), [(28, False), (29, True)])
def test_places_may_overlap(length, repetitive):
    assert is_repetitive([7] * length) == repetitive


@given(st.lists(st.integers(0, 2), max_size=80), st.integers(1, 4), st.integers(1, 6))
def test_repetition_is_what_a_slow_count_says(ids, gram, times):
    grams = [tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1)]
    assert is_repetitive(ids, gram=gram, times=times) == any(grams.count(item) >= times for item in grams)


@pytest.mark.parametrize(
    ("text", "unreadable"),
    [
        ("", False),
        ("a\tb\r\nc", False),
        ("naïve 数学 \U0001f600", False),
        ("a" * 95 + "\ufffd" * 5, False),
        ("a" * 94 + "\ufffd" * 6, True),
        ("\x00\x07", True),
        ("\ue000", True),
    ],
)
def test_unreadable_text(text, unreadable):
    assert is_unreadable(text) == unreadable
