"""The tasks of household: procedural, numbered, and split by their layout.

Task ``n`` of a split is a function of (dataset seed, split, n, level) and nothing else.  A layout (what
stands where, and the goal) belongs to one split for good, by a hash of its text.
"""

import hashlib
from dataclasses import dataclass
from random import Random

from engine.environments.household_world import (
    LAMP,
    OPENABLE,
    STATION,
    TREATABLE,
    Goal,
    GoalKind,
    World,
    first_state,
    kind_of,
    reached,
)
from engine.seeds import derived_seed
from engine.spec.trajectory import Split

RECEPTACLES = (
    "countertop", "table", "shelf", "sofa", "desk", "sinkbasin", "cabinet", "drawer", "fridge", "microwave",
)  # fmt: skip
OBJECTS = (
    "apple", "egg", "tomato", "potato", "bread", "mug", "plate", "pan", "book", "pen", "soap", "vase", "desklamp",
)  # fmt: skip
NUMBERS = (" 1", " 2", " 3")
"""A house holds at most three things of a kind."""
HELDOUT_SHARE = 5
"""One layout in this many is held out."""


@dataclass(frozen=True)
class _Size:
    goals: tuple[GoalKind, ...]
    receptacles: int
    objects: int
    closed: bool
    """Whether some receptacles have doors."""


_SIZE_OF_LEVEL = {
    1: _Size(("put",), receptacles=3, objects=2, closed=False),
    2: _Size(("put", "examine"), receptacles=4, objects=3, closed=True),
    3: _Size(("heat", "cool", "clean"), receptacles=4, objects=3, closed=True),
    4: _Size(("two",), receptacles=5, objects=4, closed=True),
    5: _Size(("put", "examine", "heat", "cool", "clean", "two"), receptacles=7, objects=6, closed=True),
}


def world_of(seed: int, split: Split, number: int, level: int) -> World:
    """The first draw of this task's own stream that can be named, belongs to the split and is not solved already."""
    rng = Random(derived_seed("household", seed, split, number, level))
    while True:
        drawn = _drawn(_SIZE_OF_LEVEL[level], rng)
        named = all(name.endswith(NUMBERS) for name in (*drawn.receptacles, *drawn.objects))
        if named and split_of(drawn) == split and not reached(drawn, first_state(drawn)):
            return drawn


def split_of(world: World) -> Split:
    digest = hashlib.blake2b(world.layout.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


def _drawn(size: _Size, rng: Random) -> World:
    kind = rng.choice(size.goals)
    usable = [receptacle for receptacle in RECEPTACLES if size.closed or receptacle not in OPENABLE]
    target = None if kind == "examine" else rng.choice(usable)
    wanted = rng.choice(sorted(TREATABLE[kind]) if kind in TREATABLE else [name for name in OBJECTS if name != LAMP])
    required = list(dict.fromkeys([*([target] if target else []), *([STATION[kind]] if kind in STATION else [])]))
    receptacles = _numbered([*required, *rng.choices(usable, k=size.receptacles - len(required))], rng)
    needed = [wanted, wanted] if kind == "two" else [wanted, LAMP] if kind == "examine" else [wanted]
    others = [name for name in OBJECTS if name not in (LAMP, wanted)]
    objects = _numbered([*needed, *rng.choices(others, k=size.objects - len(needed))], rng)
    places = tuple(_place(receptacles, name, rng) for name in objects)
    return World(receptacles, objects, places, Goal(kind, wanted, target))


def _numbered(kinds: list[str], rng: Random) -> tuple[str, ...]:
    """In random order, those of a kind numbered in that order."""
    rng.shuffle(kinds)
    return tuple(f"{kind} {kinds[: place + 1].count(kind)}" for place, kind in enumerate(kinds))


def _place(receptacles: tuple[str, ...], thing: str, rng: Random) -> int:
    """Lamps stand in the open."""
    fits = [n for n, name in enumerate(receptacles) if kind_of(thing) != LAMP or kind_of(name) not in OPENABLE]
    return rng.choice(fits or [0])
