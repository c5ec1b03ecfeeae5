from math import log

import pytest

from engine.environments.bm25 import Bm25

DOCUMENTS = ["red shoes", "red red hat", "blue hat with a feather"]


def test_a_score_is_the_one_computed_by_hand():
    """k1 = 1.2, b = 0.75, lengths 2, 3 and 5, mean 10/3; ``red`` stands in two of three documents."""
    rarity = log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    first = rarity * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / (10 / 3)))
    second = rarity * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / (10 / 3)))
    assert Bm25(DOCUMENTS).scores("Red!") == {0: pytest.approx(first), 1: pytest.approx(second)}


def test_the_rarer_term_and_the_shorter_document_come_first():
    index = Bm25(DOCUMENTS)
    assert index.ranked("red shoes") == [0, 1]
    assert index.ranked("hat") == [1, 2]


def test_a_term_that_is_asked_twice_counts_once_and_an_unknown_one_nothing():
    index = Bm25(DOCUMENTS)
    assert index.scores("hat hat HAT zebra") == index.scores("hat")
    assert index.ranked("zebra") == index.ranked("") == index.ranked("!?") == []


def test_documents_of_equal_score_come_by_number():
    assert Bm25(["x b", "x a", "x c"]).ranked("x") == [0, 1, 2]
