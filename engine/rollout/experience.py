"""Which experience a rollout is shown: the items written for tasks most like its own (AgentEvolver, 4.1, eq. 14).

Likeness is lexical: the cosine of the counts of character trigrams of the question and of a item's
``when_to_use``, both in lower case and with runs of white space made one.  It is deterministic and
needs no model; among experience that is equally near, the earlier in the pool comes first.
"""

from collections import Counter
from math import floor, sqrt

from engine.spec.exploration import Experience

GRAM = 3
"""Characters; a text is padded with one space on either side, so that short words have their own."""


class ExperienceRetriever:
    """A pool, ready to be asked."""

    def __init__(self, experience: Experience) -> None:
        self._experience = experience
        self._grams = [grams(item.when_to_use) for item in experience.pool]

    def for_question(self, question: str) -> tuple[str, ...]:
        """The contents of the ``top_k`` nearest items, nearest first."""
        asked = grams(question)
        nearness = [cosine(asked, gram) for gram in self._grams]
        nearest = sorted(range(len(nearness)), key=lambda position: (-nearness[position], position))
        return tuple(self._experience.pool[position].content for position in nearest[: self._experience.top_k])

    def shown(self, group_size: int) -> int:
        """Return how many of a group's rollouts are shown them, from index 0 on: floor(share x size), at least one."""
        # 1e-9: 0.7 * 10 is 6.999... in floating point and means 7.
        share = self._experience.share
        return max(1, floor(share * group_size + 1e-9)) if share else 0


def grams(text: str) -> Counter[str]:
    plain = f" {' '.join(text.lower().split())} "
    return Counter(plain[at : at + GRAM] for at in range(max(1, len(plain) - GRAM + 1)))


def cosine(left: Counter[str], right: Counter[str]) -> float:
    """1 for equal counts, 0 where nothing is shared."""
    dot = sum(count * right[gram] for gram, count in left.items())
    return dot / sqrt(sum(n * n for n in left.values()) * sum(n * n for n in right.values()))
