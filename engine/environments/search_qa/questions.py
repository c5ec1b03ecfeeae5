"""The questions of search-qa: procedural, numbered, and split by their text and by the worlds they are about.

Question ``n`` of a split is a function of (dataset seed, split, n, level) and nothing else.  A *chain* goes from an
entity over relations, each of which has one value; its documents are those that say these values.
"""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from random import Random

from engine.environments.search_qa.corpus import RELATIONS, RESULTS, Corpus, Kind, corpus_of
from engine.seeds import derived_seed
from engine.spec.trajectory import Split

CORPORA: dict[Split, int] = {"train": 48, "heldout": 12}
"""Worlds that a split's questions are about; no world is of both splits."""
HELDOUT_SHARE = 5
"""One question in this many is held out."""
YEAR: dict[Kind, str] = {"person": "birth year", "city": "founding year", "company": "founding year"}
"""What entities are compared by."""
KINDS: tuple[Kind, ...] = ("person", "city", "country", "company", "book")


@dataclass(frozen=True, slots=True)
class Chain:
    start: str
    relations: tuple[str, ...]

    @property
    def phrase(self) -> str:
        phrase = self.start
        for relation in self.relations:
            phrase = f"the {relation} of {phrase}"
        return phrase

    def steps(self, corpus: Corpus) -> list[str]:
        """The entities from the start, and what the last relation leads to."""
        steps = [self.start]
        for relation in self.relations:
            steps.append(corpus.facts[steps[-1], relation])
        return steps


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answer: str
    ways: tuple[tuple[str, ...], ...]
    """One or two: the entities whose documents hold what the answer follows from, each named by the one before it."""

    @property
    def entities(self) -> list[str]:
        """All of them in the order in which they are read."""
        return [entity for way in self.ways for entity in way]


def question_of(seed: int, split: Split, number: int, level: int) -> tuple[Corpus, Question]:
    """The first draw of this question's own stream that belongs to the split, and whose documents can be found."""
    rng = Random(derived_seed("search-qa", seed, split, number, level))
    corpus = corpus_of(seed, f"{split} {rng.randrange(CORPORA[split])}")
    while True:
        question = _drawn(corpus, level, rng)
        if question is not None and split_of(question) == split and _sound(corpus, question):
            return corpus, question


def split_of(question: Question) -> Split:
    digest = hashlib.blake2b(question.text.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


def _drawn(corpus: Corpus, level: int, rng: Random) -> Question | None:
    if level > 1 and rng.random() < 0.5:
        return _comparison(corpus, level - 2, rng)
    chain = _chain(corpus, level + 1, rng)
    if chain is None:
        return None
    *entities, answer = chain.steps(corpus)
    return Question(f"what is {chain.phrase}?", answer, (tuple(entities),))


def _comparison(corpus: Corpus, hops: int, rng: Random) -> Question | None:
    """Which of two entities is older; each is named, or is what ``hops`` relations lead to."""
    first, second = _chain(corpus, hops, rng), _chain(corpus, hops, rng)
    if first is None or second is None:
        return None
    ways = [chain.steps(corpus) for chain in (first, second)]
    kinds = {corpus.kind_of.get(way[-1]) for way in ways}
    kind = kinds.pop()
    if kinds or kind not in YEAR:
        return None
    years = [int(corpus.facts[way[-1], YEAR[kind]]) for way in ways]
    if years[0] == years[1]:
        return None
    asked = "who was born first" if kind == "person" else "which was founded first"
    older = ways[years.index(min(years))][-1]
    return Question(f"{asked}, {first.phrase} or {second.phrase}?", older, tuple(map(tuple, ways)))


def _chain(corpus: Corpus, hops: int, rng: Random) -> Chain | None:
    """None where it would go on from a plain value."""
    first = rng.choice(KINDS)
    start, relations = rng.choice(corpus.names(first)), list[str]()
    kind: Kind | None = first
    for _ in range(hops):
        if kind is None:
            return None
        relations.append(rng.choice(list(RELATIONS[kind])))
        kind = RELATIONS[kind][relations[-1]]
    return Chain(start, tuple(relations))


def _sound(corpus: Corpus, question: Question) -> bool:
    """Return whether no document is needed twice, the question does not name the answer of a chain, and a search for
    each entity's name shows its document on the first page."""
    entities = question.entities
    named = question.text.startswith("what") and question.answer in question.text
    circular = question.text.startswith("what") and question.answer in entities
    distinct = len(set(entities)) == len(entities)
    return distinct and not named and not circular and all(_is_found(corpus, entity) for entity in entities)


def _is_found(corpus: Corpus, entity: str) -> bool:
    return corpus.document_of[entity] in corpus.found(entity)[:RESULTS]


# ---- answers, as SQuAD compares them (arXiv:1606.05250) ----


def normalized(answer: str) -> list[str]:
    """The words without articles, capitals and punctuation."""
    return [word for word in re.findall(r"[^\W_]+", answer.lower()) if word not in ("a", "an", "the")]


def f1(answer: str, expected: str) -> float:
    """The harmonic mean of precision and recall of the words."""
    given, wanted = Counter(normalized(answer)), Counter(normalized(expected))
    shared = (given & wanted).total()
    return 2 * shared / (given.total() + wanted.total()) if shared else 0.0
