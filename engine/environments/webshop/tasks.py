"""The orders of webshop: procedural, numbered, and split by their text.

Order ``n`` of a split is a function of (dataset seed, split, n, level) and nothing else.
"""

import hashlib
from dataclasses import dataclass, replace
from random import Random

from engine.environments.webshop.catalogue import DEPARTMENTS, SHOWN_ATTRIBUTES, Catalogue, Product, catalogue_of
from engine.environments.webshop.shop import PAGE, Order, Shop
from engine.environments.webshop.shopper import purchase
from engine.seeds import derived_seed
from engine.spec.trajectory import Split

HELDOUT_SHARE = 5
"""One order in this many is held out."""
MOST_SLACK = 5
"""The price that is allowed exceeds that of the product by at most this."""
MOST_CALLS = 12
"""The demonstrator makes at most so many."""
MOST_FITTING = 2
"""So many of the results that are looked at may fit."""


@dataclass(frozen=True)
class _Size:
    attributes: tuple[int, int]
    """From, to."""
    options: bool
    pages: int
    """A product that fits stands on one of the first so many pages of the plain query."""
    hidden: bool
    """Whether an attribute that is asked for stands on the product's page alone."""


_SIZE_OF_LEVEL = {
    1: _Size(attributes=(1, 2), options=False, pages=1, hidden=False),
    2: _Size(attributes=(1, 2), options=True, pages=1, hidden=False),
    3: _Size(attributes=(2, 2), options=True, pages=2, hidden=True),
}


def order_of(seed: int, split: Split, number: int, level: int) -> Order:
    """The first draw of this order's own stream that belongs to the split and whose first fit is where it should be."""
    rng, size = Random(derived_seed("webshop", seed, split, number, level)), _SIZE_OF_LEVEL[level]
    catalogue = catalogue_of(seed)
    while True:
        order = _drawn(catalogue, size, rng)
        if order is not None and split_of(order) == split:
            return order


def split_of(order: Order) -> Split:
    digest = hashlib.blake2b(order.text.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


def _drawn(catalogue: Catalogue, size: _Size, rng: Random) -> Order | None:
    department = DEPARTMENTS[rng.choice(sorted(DEPARTMENTS))]
    attributes = tuple(rng.sample(department.attributes, rng.randint(*size.attributes)))
    plain = Order(rng.choice(department.categories), attributes, (), limit=0)
    results = catalogue.found(plain.query)[: size.pages * PAGE]
    # Drawn before anything is known of what stands there, so that no place is right more often than another.
    place = rng.randrange(1, size.pages * PAGE)
    if place >= len(results) or not _can_be_asked_for(results[place], plain, size):
        return None
    target = results[place]
    options = tuple((option, rng.choice(values)) for option, values in target.options) if size.options else ()
    order = replace(plain, options=options, limit=target.price_with(options) + rng.randint(0, MOST_SLACK))
    fitting = [product for product in results if order.fits(product)]
    plain_enough = fitting[0] is target and len(fitting) <= MOST_FITTING
    return order if plain_enough and len(purchase(Shop(catalogue, order, partial_credit=False))) <= MOST_CALLS else None


def _can_be_asked_for(product: Product, plain: Order, size: _Size) -> bool:
    shown = set(plain.attributes) <= set(product.attributes[:SHOWN_ATTRIBUTES])
    has_all = product.category == plain.category and set(plain.attributes) <= set(product.attributes)
    return has_all and shown != size.hidden
