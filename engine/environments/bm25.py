"""Okapi BM25 (Robertson and Zaragoza 2009) over documents that are kept in memory."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import log

TERM_SATURATION = 1.2
"""k1."""
LENGTH_NORM = 0.75
"""b."""

terms_of = re.compile(r"[a-z0-9]+").findall
"""The terms of a text in small letters."""


class Bm25:
    """Keeps, by term, the documents that hold it with what the term adds to their score."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(terms_of(document.lower())) for document in documents]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / max(1, len(lengths))
        self._weights: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, count in enumerate(counts):
            norm = TERM_SATURATION * (1 - LENGTH_NORM + LENGTH_NORM * lengths[number] / mean)
            for term, times in count.items():
                self._weights[term].append((number, times * (TERM_SATURATION + 1) / (times + norm)))
        self._size = len(documents)

    def ranked(self, query: str) -> list[int]:
        """The numbers of the documents that hold a term of the query, best first, those of equal score by number."""
        scores = self.scores(query)
        return sorted(scores, key=lambda number: (-round(scores[number], 9), number))

    def scores(self, query: str) -> dict[int, float]:
        """The scores of the documents that hold a term of the query.  A term counts once, however often it is asked."""
        scores: dict[int, float] = defaultdict(float)
        for term in dict.fromkeys(terms_of(query.lower())):
            weights = self._weights.get(term, [])
            rarity = log(1 + (self._size - len(weights) + 0.5) / (len(weights) + 0.5))
            for number, weight in weights:
                scores[number] += rarity * weight
        return scores
