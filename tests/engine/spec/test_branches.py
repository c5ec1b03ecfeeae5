"""The conversations that a tree of segments holds: prefixes end at a turn, inside one, or inside a context."""

from typing import Any

import pytest

from engine.spec.branches import branches_of, exchanges_of
from engine.spec.trajectory import Segment, SharedPrefix, Trajectory
from tests.engine.training.cast import trajectory, turn

PLAIN = trajectory(turn([1, 2, 3], [4, 5]), turn([6], [7]))


def texts(one: Any, context: str, sampled: str) -> Any:
    return one.model_copy(update={"context_text": context, "pieces": list(sampled)})


FIRST = [texts(turn([1, 2, 3], [4, 5]), "one two three ", "xy"), texts(turn([6], [7]), "four ", "z")]


def of(*prefixes: SharedPrefix) -> Trajectory:
    own = [
        Segment(turns=[texts(turn([20 + number % 9], [30]), f"new {number} ", "n")], prefix=prefix)
        for number, prefix in enumerate(prefixes)
    ]
    return PLAIN.model_copy(update={"segments": [Segment(turns=FIRST), *own]})


@pytest.mark.parametrize(
    ("prefix", "read"),
    [
        (SharedPrefix(segment=0, tokens=2, characters=8), [("one two new 0 ", 0, "n")]),
        (SharedPrefix(segment=0, tokens=2), [("new 0 ", 2, "n")]),
        (SharedPrefix(segment=0, tokens=3), [("one two three new 0 ", 0, "n")]),
        (SharedPrefix(segment=0, tokens=4), [("one two three ", 0, "x"), ("new 0 ", 0, "n")]),
        (SharedPrefix(segment=0, tokens=5), [("one two three ", 0, "xy"), ("new 0 ", 0, "n")]),
        (SharedPrefix(segment=0, tokens=6), [("one two three ", 0, "xy"), ("four new 0 ", 0, "n")]),
        (SharedPrefix(segment=0, tokens=7), [("one two three ", 0, "xy"), ("four ", 0, "z"), ("new 0 ", 0, "n")]),
    ],
)
def test_a_branch_reads_what_it_shares_as_far_as_it_shares_it(
    prefix: SharedPrefix, read: list[tuple[str, int, str]]
) -> None:
    exchanges = exchanges_of(of(prefix), 1)
    assert [(it.read_text, it.unknown_tokens, it.passage.sampled_text) for it in exchanges] == read
    assert sum(it.tokens for it in exchanges) == prefix.tokens + 2


def test_a_prefix_of_a_prefix_is_read_where_it_stands_and_no_further() -> None:
    whole = of(SharedPrefix(segment=0, tokens=6), SharedPrefix(segment=1, tokens=2))
    assert [it.read_text for it in exchanges_of(whole, 2)] == ["new 1 "]
    assert [it.unknown_tokens for it in exchanges_of(whole, 2)] == [2]
    deeper = of(SharedPrefix(segment=0, tokens=2, characters=8), SharedPrefix(segment=1, tokens=3))
    assert [it.read_text for it in exchanges_of(deeper, 2)] == ["one two new 0 new 1 "]


def test_a_segment_that_a_later_one_holds_as_a_whole_is_no_branch() -> None:
    assert branches_of(of(SharedPrefix(segment=0, tokens=7), SharedPrefix(segment=1, tokens=2))) == [1, 2]
    assert branches_of(PLAIN) == [0]


def test_a_chain_of_a_thousand_segments_is_followed_to_its_beginning() -> None:
    chain = of(*(SharedPrefix(segment=number, tokens=1, characters=4) for number in range(1500)))
    [exchange] = exchanges_of(chain, 1500)
    assert (exchange.read_text, exchange.tokens) == ("one new 1499 ", 3)
