"""How far a state of household is from its goal, and what an agent does who knows only what it has seen.

``distance`` knows the truth: the length of the shortest way, held by a test to breadth-first search.
``next_action`` knows what was seen: it looks into one receptacle after another, in the order of the
question, until it knows where the things are that it needs.
"""

from collections.abc import Iterator
from itertools import permutations

from engine.environments.household_world import (
    HELD,
    LAMP,
    STATION,
    Action,
    HouseholdState,
    World,
    closed,
    lamp_of,
    needs_treatment,
    reached,
)


class _Walk:
    """Counts the steps of one way through the house."""

    def __init__(self, world: World, state: HouseholdState) -> None:
        self._world, self._state = world, state
        self._location, self._opened = state.location, set(state.opened)
        self._held, self._steps = state.held, 0

    @property
    def steps(self) -> int:
        return self._steps

    def go(self, receptacle: int) -> None:
        self._steps += self._location != receptacle
        self._location = receptacle

    def open(self) -> None:
        if closed(self._world, self._state, self._location) and self._location not in self._opened:
            self._steps += 1
            self._opened.add(self._location)

    def fetch(self, thing: int) -> None:
        if self._held == thing:
            return
        self.go(self._state.places[thing])
        self.open()
        # A full hand is emptied where the thing is fetched: anywhere else costs at least as much.
        self._steps += 1 if self._held is None else 2
        self._held = thing

    def act(self) -> None:
        self._steps += 1

    def put(self) -> None:
        self._steps += 1
        self._held = None


def distance(world: World, state: HouseholdState) -> int:
    """The least number of actions that reaches the goal."""
    return 0 if reached(world, state) else min(_lengths(world, state))


def _lengths(world: World, state: HouseholdState) -> Iterator[int]:
    goal, wanted = world.goal, world.objects_of(world.goal.object_kind)
    if goal.kind == "examine":
        return (_length_of_examining(world, state, thing) for thing in wanted)
    targets = world.receptacles_of(goal.receptacle_kind)
    if goal.kind == "two":
        return (_length_of_pair(world, state, pair, target) for pair in permutations(wanted, 2) for target in targets)
    stations = world.receptacles_of(STATION.get(goal.kind))
    return (
        _length_of_putting(world, state, thing, station, target)
        for thing in wanted
        for station in (stations if needs_treatment(goal, state, thing) else [None])
        for target in targets
    )


def _length_of_putting(world: World, state: HouseholdState, thing: int, station: int | None, target: int) -> int:
    walk = _Walk(world, state)
    walk.fetch(thing)
    if station is not None:
        walk.go(station)
        walk.act()
    walk.go(target)
    walk.open()
    walk.put()
    return walk.steps


def _length_of_pair(world: World, state: HouseholdState, pair: tuple[int, ...], target: int) -> int:
    walk = _Walk(world, state)
    for thing in pair:
        if state.places[thing] != target:
            walk.fetch(thing)
            walk.go(target)
            walk.open()
            walk.put()
    return walk.steps


def _length_of_examining(world: World, state: HouseholdState, thing: int) -> int:
    lamp, walk = lamp_of(world), _Walk(world, state)
    assert lamp is not None, "a task to examine something has a lamp"
    walk.fetch(thing)
    walk.go(state.places[lamp])
    if not state.lit:
        walk.open()
        walk.act()
    return walk.steps


# ---- with what was seen only ----


def seen_now(world: World, state: HouseholdState) -> frozenset[int]:
    """The receptacle that the agent looks into, if any."""
    if state.location < 0 or closed(world, state, state.location):
        return frozenset()
    return frozenset({state.location})


def needs_search(world: World, state: HouseholdState, seen: frozenset[int]) -> bool:
    """Return whether something that the goal needs was not seen yet."""
    goal = world.goal
    needed = [*world.objects_of(goal.object_kind), *(world.objects_of(LAMP) if goal.kind == "examine" else [])]
    return any(state.places[thing] != HELD and state.places[thing] not in seen for thing in needed)


def next_action(world: World, state: HouseholdState, seen: frozenset[int]) -> Action:
    """One step of a sensible agent.  ``seen`` are the receptacles that it has looked into.  Not for a reached goal."""
    thing = _thing_to_bring(world, state, seen)
    if thing is None:
        return _search(world, state, seen)
    place = state.places[thing]
    if place != HELD:
        return _at(world, state, place, Action("take", world.objects[thing], world.receptacles[place]))
    goal = world.goal
    if goal.kind == "examine":
        lamp = lamp_of(world)
        assert lamp is not None, "a task to examine something has a lamp"
        if state.places[lamp] not in seen:
            return _search(world, state, seen)
        return _at(world, state, state.places[lamp], Action("use", world.objects[lamp]))
    if goal.kind == "two":
        station, target = None, _shared_target(world, state)
    else:
        station, target = _nearest_way(world, state, thing)
    if station is not None:
        treat = Action(goal.kind, world.objects[thing], world.receptacles[station])
        return treat if state.location == station else Action("go to", world.receptacles[station])
    return _at(world, state, target, Action("put", world.objects[thing], world.receptacles[target]))


def _thing_to_bring(world: World, state: HouseholdState, seen: frozenset[int]) -> int | None:
    """What is in the hand, or else the nearest wanted thing whose place is known."""
    wanted = world.objects_of(world.goal.object_kind)
    if state.held in wanted:
        return state.held
    delivered = _shared_target(world, state) if world.goal.kind == "two" else None
    known = [thing for thing in wanted if state.places[thing] in seen and state.places[thing] != delivered]
    return min(known, key=lambda thing: (state.places[thing] != state.location, thing), default=None)


def _shared_target(world: World, state: HouseholdState) -> int:
    """Where both of two things go: where one of them lies already, or else the first receptacle of the kind."""
    targets = world.receptacles_of(world.goal.receptacle_kind)
    wanted = world.objects_of(world.goal.object_kind)
    occupied = [target for target in targets if any(state.places[thing] == target for thing in wanted)]
    return (occupied or targets)[0]


def _nearest_way(world: World, state: HouseholdState, thing: int) -> tuple[int | None, int]:
    """(where the thing is treated, where it is put) in the fewest actions; of equals the first."""
    stations: list[int | None] = [None]
    if needs_treatment(world.goal, state, thing):
        stations = list(world.receptacles_of(STATION[world.goal.kind]))
    targets = world.receptacles_of(world.goal.receptacle_kind)
    ways = [(station, target) for station in stations for target in targets]
    return min(ways, key=lambda way: _length_of_putting(world, state, thing, *way))


def _at(world: World, state: HouseholdState, receptacle: int, action: Action) -> Action:
    name = world.receptacles[receptacle]
    if state.location != receptacle:
        return Action("go to", name)
    return Action("open", name) if closed(world, state, receptacle) else action


def _search(world: World, state: HouseholdState, seen: frozenset[int]) -> Action:
    if state.location >= 0 and state.location not in seen:
        return Action("open", world.receptacles[state.location])
    unseen = [name for number, name in enumerate(world.receptacles) if number not in seen]
    return Action("go to", unseen[0])
