"""The rules of sokoban on a small grid, and for every position how far it is from solved.

    #  wall    _  floor    .  goal    $  box    *  box on a goal    @  player    +  player on a goal

Cells are numbered row by row.  Pure: a ``SokobanState`` is immutable, and ``pushed`` gives the next one.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

SIDE = 6
STEP = {"up": -SIDE, "down": SIDE, "left": -1, "right": 1}
"""What a move adds to a cell's number.  The border is wall, so no move ever wraps around."""


@dataclass(frozen=True, slots=True)
class Room:
    """What never changes: as many goals as boxes."""

    walls: frozenset[int]
    goals: frozenset[int]


@dataclass(frozen=True, slots=True)
class SokobanState:
    player: int
    boxes: frozenset[int]


BORDER = frozenset(cell for cell in range(SIDE * SIDE) if {cell // SIDE, cell % SIDE} & {0, SIDE - 1})


def pushed(room: Room, state: SokobanState, move: str) -> SokobanState | None:
    """Return the state after the move, or None: a wall or a second box is in the way, or there is no such move."""
    step = STEP.get(move)
    if step is None:
        return None
    player, boxes = state.player + step, state.boxes
    if player in boxes:
        if player + step in boxes or player + step in room.walls:
            return None
        boxes = boxes - {player} | {player + step}
    return None if player in room.walls else SokobanState(player, boxes)


def solved(room: Room, state: SokobanState) -> bool:
    return state.boxes == room.goals


def drawn(room: Room, state: SokobanState) -> str:
    """The grid, line by line."""
    lines = ("".join(_mark(room, state, row * SIDE + column) for column in range(SIDE)) for row in range(SIDE))
    return "\n".join(lines)


def _mark(room: Room, state: SokobanState, cell: int) -> str:
    if cell in room.walls:
        return "#"
    goal = cell in room.goals
    if cell in state.boxes:
        return "*" if goal else "$"
    if cell == state.player:
        return "+" if goal else "@"
    return "." if goal else "_"


@lru_cache(maxsize=128)
def distances(room: Room) -> dict[SokobanState, int]:
    """The least number of moves that solves each position; a position that is not in it cannot be solved.

    Breadth first and backwards from all solved positions: a move undone is a step back, with or
    without pulling the box that would then have been pushed.
    """
    free = [cell for cell in range(SIDE * SIDE) if cell not in room.walls and cell not in room.goals]
    known = {SokobanState(player, room.goals): 0 for player in free}
    reached = deque(known)
    while reached:
        state = reached.popleft()
        for earlier in _before(room, state):
            if earlier not in known:
                known[earlier] = known[state] + 1
                reached.append(earlier)
    return known


def _before(room: Room, state: SokobanState) -> list[SokobanState]:
    earlier = []
    for step in STEP.values():
        player = state.player - step
        if player in room.walls or player in state.boxes:
            continue
        earlier.append(SokobanState(player, state.boxes))
        if state.player + step in state.boxes:
            earlier.append(SokobanState(player, state.boxes - {state.player + step} | {state.player}))
    return earlier


def shortest(room: Room, state: SokobanState) -> list[str]:
    """One of the shortest ways; of equally good moves the first in the order of ``STEP``.  For solvable states."""
    left, moves = distances(room), list[str]()
    while left[state]:
        move, state = next(
            (move, after)
            for move in STEP
            if (after := pushed(room, state, move)) is not None and left.get(after) == left[state] - 1
        )
        moves.append(move)
    return moves
