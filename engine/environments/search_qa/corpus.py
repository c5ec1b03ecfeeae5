"""An invented world and the documents about it: people, cities, countries, companies and books.

A fact is the value of a relation of an entity, and every relation has one value: so a chain of relations leads from an
entity to one answer.  Every fact stands in the document of its entity, whose title is the entity's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import Literal

from engine.environments.bm25 import Bm25
from engine.seeds import derived_seed

Kind = Literal["person", "city", "country", "company", "book"]
SIZE: dict[Kind, int] = {"person": 90, "city": 60, "country": 12, "company": 60, "book": 80}
RESULTS = 5
"""Titles on a page of search results."""

BEGINNINGS = (
    "Mora", "Kan", "Bel", "Tor", "Sil", "Ra", "Vel", "Dun", "Pol", "Gri", "Hal", "Les",
    "Nor", "Wen", "Zal", "Cer", "Fin", "Jas", "Lor", "Mel",
)  # fmt: skip
ENDINGS = (
    "tel", "osa", "ut", "mar", "vik", "den", "ria", "lo", "san", "gat", "mir", "pek", "ston", "ula", "bor", "nes",
)  # fmt: skip
GIVEN_NAMES = (
    "Ada", "Ben", "Cleo", "Dara", "Emil", "Faye", "Gus", "Hana", "Ivo", "June", "Karl", "Lena",
    "Milo", "Nina", "Otto", "Pia",
)  # fmt: skip
ADJECTIVES = ("Silver", "Quiet", "Hidden", "Golden", "Broken", "Distant", "Winter", "Paper", "Hollow", "Crimson")
NOUNS = ("River", "Garden", "Letter", "Mirror", "Harbor", "Orchard", "Signal", "Lantern", "Bridge", "Meadow")
CURRENCIES = ("crown", "florin", "shell", "ducat", "mark", "thaler", "pearl", "bead", "groat", "talon", "obol", "ryal")
TRADES = ("Works", "Mills", "Press", "Lines")


@dataclass(frozen=True, slots=True)
class Document:
    id: int
    title: str
    text: str


class Corpus:
    """One world.  Nothing in it changes."""

    def __init__(self, kind_of: Mapping[str, Kind], facts: Mapping[tuple[str, str], str], rng: Random) -> None:
        self.kind_of = kind_of
        """The kind of every entity, by its name."""
        self.facts = facts
        """(entity, relation) -> the name of another entity, or a plain value."""
        ids = rng.sample(range(100, 1000), len(kind_of))
        names = rng.sample(list(kind_of), len(kind_of))
        self.documents = [Document(ids.pop(), name, _text(name, kind_of[name], facts, rng)) for name in names]
        self.document_of = {document.title: document for document in self.documents}
        self.document = {document.id: document for document in self.documents}

    def names(self, kind: Kind) -> list[str]:
        return [name for name, of in self.kind_of.items() if of == kind]

    @cached_property
    def _index(self) -> Bm25:
        return Bm25([f"{document.title} {document.text}" for document in self.documents])

    def found(self, query: str) -> list[Document]:
        """The documents that hold a term of the query, best first."""
        return [self.documents[place] for place in self._index.ranked(query)]


@lru_cache(maxsize=128)
def corpus_of(seed: int, name: str) -> Corpus:
    rng = Random(derived_seed("search-qa corpus", seed, name))
    names = _names(rng)
    return Corpus({name: kind for kind, of_kind in names.items() for name in of_kind}, _facts(names, rng), rng)


def _names(rng: Random) -> dict[Kind, list[str]]:
    """No part of a name but given names and trades occurs in two of them."""
    stems = [beginning + ending for beginning in BEGINNINGS for ending in ENDINGS]
    rng.shuffle(stems)
    titles = [f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS]
    return {
        "person": [f"{rng.choice(GIVEN_NAMES)} {stems.pop()}" for _ in range(SIZE["person"])],
        "city": [stems.pop() for _ in range(SIZE["city"])],
        "country": [f"{stems.pop()}land" for _ in range(SIZE["country"])],
        "company": [f"{stems.pop()} {rng.choice(TRADES)}" for _ in range(SIZE["company"])],
        "book": rng.sample(titles, SIZE["book"]),
    }


def _facts(names: Mapping[Kind, list[str]], rng: Random) -> dict[tuple[str, str], str]:
    facts: dict[tuple[str, str], str] = {}
    relations: dict[Kind, dict[str, Callable[[], str]]] = {
        "person": {
            "birthplace": lambda: rng.choice(names["city"]),
            "employer": lambda: rng.choice(names["company"]),
            "birth year": lambda: str(rng.randint(1850, 1979)),
        },
        "city": {
            "country": lambda: rng.choice(names["country"]),
            "founding year": lambda: str(rng.randint(1100, 1849)),
        },
        "company": {
            "founder": lambda: rng.choice(names["person"]),
            "seat": lambda: rng.choice(names["city"]),
            "founding year": lambda: str(rng.randint(1850, 1999)),
        },
        "book": {
            "author": lambda: rng.choice(names["person"]),
            "printing year": lambda: str(rng.randint(1900, 1999)),
        },
        "country": {},
    }
    for kind, of_kind in relations.items():
        facts |= {(name, relation): draw() for name in names[kind] for relation, draw in of_kind.items()}
    capitals, currencies = rng.sample(names["city"], SIZE["country"]), rng.sample(CURRENCIES, SIZE["country"])
    for country, capital, currency in zip(names["country"], capitals, currencies, strict=True):
        facts |= {(country, "capital"): capital, (country, "currency"): currency, (capital, "country"): country}
    return facts


_FORMS: dict[Kind, tuple[str, ...]] = {
    "person": (
        "{name} was born in {birthplace} in {birth year} and works for {employer}.",
        "{name} works for {employer}. Born: {birth year}, {birthplace}.",
    ),
    "city": (
        "{name} is a city in {country}, founded in {founding year}.",
        "Founded in {founding year}, {name} lies in {country}.",
    ),
    "country": (
        "The capital of {name} is {capital}. Its currency is the {currency}.",
        "{name} pays with the {currency}. Its capital is {capital}.",
    ),
    "company": (
        "{name} was founded in {founding year} by {founder}. Its seat is {seat}.",
        "{founder} founded {name} in {founding year}. Its seat is {seat}.",
    ),
    "book": (
        "{name} is a book by {author}, printed in {printing year}.",
        "Printed in {printing year}, {name} is a book by {author}.",
    ),
}


def _text(name: str, kind: Kind, facts: Mapping[tuple[str, str], str], rng: Random) -> str:
    text = rng.choice(_FORMS[kind]).replace("{name}", name)
    for relation in RELATIONS[kind]:
        text = text.replace(f"{{{relation}}}", facts[name, relation])
    return text


RELATIONS: dict[Kind, dict[str, Kind | None]] = {
    "person": {"birthplace": "city", "employer": "company", "birth year": None},
    "city": {"country": "country", "founding year": None},
    "country": {"capital": "city", "currency": None},
    "company": {"founder": "person", "seat": "city", "founding year": None},
    "book": {"author": "person", "printing year": None},
}
"""The relations of each kind of entity, and to what kind they lead; None: to a plain value."""
