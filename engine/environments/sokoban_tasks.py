"""The levels of sokoban: procedural, numbered, solvable, and split by their grid.

Level ``n`` of a split is a function of (dataset seed, split, n, level) and nothing else.
"""

import hashlib
from dataclasses import dataclass
from random import Random

from engine.environments.sokoban_world import BORDER, SIDE, Room, SokobanState, distances, drawn
from engine.seeds import derived_seed
from engine.spec.trajectory import Split

HELDOUT_SHARE = 5
"""One grid in this many is held out."""

INNER = tuple(cell for cell in range(SIDE * SIDE) if cell not in BORDER)


@dataclass(frozen=True)
class _Size:
    boxes: int
    inner_walls: tuple[int, int]
    """From, to."""
    moves: tuple[int, int]
    """The shortest solution has so many moves."""


_SIZE_OF_LEVEL = {
    1: _Size(boxes=1, inner_walls=(0, 2), moves=(2, 4)),
    2: _Size(boxes=1, inner_walls=(1, 3), moves=(5, 10)),
    3: _Size(boxes=2, inner_walls=(0, 2), moves=(4, 12)),
}


def grid_of(seed: int, split: Split, number: int, level: int) -> tuple[Room, SokobanState]:
    """The first draw of this level's own stream that belongs to the split and is as long as it should be."""
    rng, size = Random(derived_seed("sokoban", seed, split, number, level)), _SIZE_OF_LEVEL[level]
    shortest, longest = size.moves
    while True:
        room, state = _thrown(size, rng)
        if split_of(room, state) == split and shortest <= distances(room).get(state, 0) <= longest:
            return room, state


def split_of(room: Room, state: SokobanState) -> Split:
    digest = hashlib.blake2b(drawn(room, state).encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


def _thrown(size: _Size, rng: Random) -> tuple[Room, SokobanState]:
    walls = rng.randint(*size.inner_walls)
    cells = rng.sample(INNER, walls + 2 * size.boxes + 1)
    boxes, goals = cells[walls : walls + size.boxes], cells[walls + size.boxes : -1]
    return Room(BORDER | set(cells[:walls]), frozenset(goals)), SokobanState(cells[-1], frozenset(boxes))
