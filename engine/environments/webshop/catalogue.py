"""The catalogue of webshop: some thousand products that follow from a seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

from engine.environments.bm25 import Bm25
from engine.seeds import derived_seed

PRODUCTS = 2000
FIRST_ID = 1000
CACHED_QUERIES = 1024

BRANDS = (
    "Alto", "Borel", "Corva", "Dunmore", "Estel", "Fenwick", "Galden", "Harlow", "Ister", "Jorvik",
    "Kelso", "Lumen", "Marlow", "Nordal", "Orion", "Penrose",
)  # fmt: skip
COLORS = ("red", "blue", "green", "black", "white")
ATTRIBUTES_OF_PRODUCT = 3
SHOWN_ATTRIBUTES = 2
"""So many of a product's attributes stand in its title; the others on its page alone."""
SURCHARGE = 4


@dataclass(frozen=True, slots=True)
class Department:
    categories: tuple[str, ...]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]


DEPARTMENTS = {
    "clothing": Department(
        ("shoes", "jacket", "shirt", "socks"),
        ("waterproof", "warm", "light", "soft", "breathable", "washable"),
        {"color": COLORS, "size": ("small", "medium", "large")},
    ),
    "kitchen": Department(
        ("kettle", "pan", "mug", "knife"),
        ("steel", "nonstick", "durable", "compact", "insulated", "stackable"),
        {"color": COLORS, "pack": ("single", "double", "family")},
    ),
    "electronics": Department(
        ("headphones", "speaker", "lamp", "charger"),
        ("wireless", "rechargeable", "portable", "quiet", "bright", "fast"),
        {"color": COLORS, "cable": ("short", "long", "coiled")},
    ),
    "garden": Department(
        ("chair", "hose", "pot", "gloves"),
        ("foldable", "wooden", "sturdy", "rustproof", "padded", "handmade"),
        {"color": COLORS, "pack": ("single", "double", "family")},
    ),
}


@dataclass(frozen=True, slots=True)
class Product:
    id: int
    department: str
    category: str
    brand: str
    attributes: tuple[str, ...]
    price: int
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """(option, values on offer)."""
    surcharged: tuple[str, str]
    """The option and the value that cost ``SURCHARGE`` more."""

    @property
    def title(self) -> str:
        return " ".join([self.brand, *self.attributes[:SHOWN_ATTRIBUTES], self.category])

    @property
    def hidden_attributes(self) -> tuple[str, ...]:
        return self.attributes[SHOWN_ATTRIBUTES:]

    def offers(self, option: str, value: str) -> bool:
        return any(option == name and value in values for name, values in self.options)

    def price_with(self, chosen: Sequence[tuple[str, str]]) -> int:
        return self.price + (SURCHARGE if self.surcharged in chosen else 0)


class Catalogue:
    def __init__(self, seed: int) -> None:
        rng = Random(derived_seed("webshop catalogue", seed))
        ids = rng.sample(range(FIRST_ID, 5 * FIRST_ID), PRODUCTS)
        self.products = {number: _product(number, rng) for number in ids}

    @cached_property
    def _index(self) -> Bm25:
        """Over titles and the attributes that stand on the page alone, as a shop indexes both."""
        return Bm25([f"{product.title} {' '.join(product.hidden_attributes)}" for product in self.products.values()])

    @cached_property
    def _ids(self) -> list[int]:
        return list(self.products)

    def found(self, query: str) -> tuple[Product, ...]:
        """The products that fit a term of the query, best first."""
        return self._cached_results(query)

    @cached_property
    def _cached_results(self) -> Callable[[str], tuple[Product, ...]]:
        """Groups of rollouts, and orders of one kind, ask the same."""
        return lru_cache(maxsize=CACHED_QUERIES)(self._results)

    def _results(self, query: str) -> tuple[Product, ...]:
        return tuple(self.products[self._ids[place]] for place in self._index.ranked(query))


catalogue_of = lru_cache(maxsize=4)(Catalogue)


def _product(number: int, rng: Random) -> Product:
    name = rng.choice(sorted(DEPARTMENTS))
    department = DEPARTMENTS[name]
    options = tuple((option, _offered(values, rng)) for option, values in department.options.items())
    option, values = rng.choice(options)
    return Product(
        id=number,
        department=name,
        category=rng.choice(department.categories),
        brand=rng.choice(BRANDS),
        attributes=tuple(rng.sample(department.attributes, ATTRIBUTES_OF_PRODUCT)),
        price=rng.randint(10, 99),
        options=options,
        surcharged=(option, rng.choice(values)),
    )


def _offered(values: tuple[str, ...], rng: Random) -> tuple[str, ...]:
    """Two or three of the values, in the order of the shop."""
    taken = rng.sample(values, rng.randint(2, 3))
    return tuple(value for value in values if value in taken)
