"""The little house of household: its things, its rules and what they look like.

Pure: a ``HouseholdState`` is immutable and ``acted`` gives the next one, so a state is its own snapshot.
After TextWorld's embodied tasks (ALFWorld, arXiv:2010.03768) with the actions of SPEAR, A.2; moving
between two receptacles takes one step, and a hand holds one object.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

GoalKind = Literal["put", "heat", "cool", "clean", "two", "examine"]

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave"})
EDIBLE = frozenset({"apple", "egg", "tomato", "potato", "bread"})
TREATABLE = {
    "heat": EDIBLE | {"mug", "plate"},
    "cool": EDIBLE | {"mug", "plate", "pan"},
    "clean": EDIBLE - {"bread"} | {"mug", "plate", "pan", "soap"},
}
STATION = {"heat": "microwave", "cool": "fridge", "clean": "sinkbasin"}
ADJECTIVE = {"heat": "hot", "cool": "cool", "clean": "clean"}
LAMP = "desklamp"
HELD = -1
NOWHERE = -1
"""Where an agent is at first: in the middle of the room, at no receptacle."""
SHOWN_ACTIONS = 6
"""An observation names at most this many admissible actions."""
NOTHING_HAPPENS = "Nothing happens."


@dataclass(frozen=True, slots=True)
class Goal:
    kind: GoalKind
    object_kind: str
    receptacle_kind: str | None
    """It must end there; None for ``examine``."""

    def __str__(self) -> str:
        match self.kind:
            case "examine":
                return f"examine {self.object_kind} under {LAMP}"
            case "two":
                return f"put two {self.object_kind} in {self.receptacle_kind}"
            case "put":
                return f"put {self.object_kind} in {self.receptacle_kind}"
            case kind:
                return f"put {ADJECTIVE[kind]} {self.object_kind} in {self.receptacle_kind}"


@dataclass(frozen=True, slots=True)
class World:
    """What never changes in an episode.  Things are told by their place in these tuples."""

    receptacles: tuple[str, ...]
    """Names such as ``cabinet 2``."""
    objects: tuple[str, ...]
    places: tuple[int, ...]
    """The receptacle of each object at first."""
    goal: Goal

    @property
    def question(self) -> str:
        """Return what the policy is told: the receptacles and the goal, not what lies where."""
        return f"You see {', '.join(self.receptacles)}. Your task: {self.goal}."

    @property
    def layout(self) -> str:
        """Everything, for the split's hash."""
        things = (f"{name}@{self.receptacles[place]}" for name, place in zip(self.objects, self.places, strict=True))
        return f"{self.question} {' '.join(things)}"

    def receptacles_of(self, kind: str | None) -> list[int]:
        return [number for number, name in enumerate(self.receptacles) if kind_of(name) == kind]

    def objects_of(self, kind: str) -> list[int]:
        return [number for number, name in enumerate(self.objects) if kind_of(name) == kind]


@dataclass(frozen=True, slots=True)
class HouseholdState:
    location: int
    places: tuple[int, ...]
    """The receptacle of each object, or ``HELD``."""
    opened: frozenset[int] = frozenset()
    treated: frozenset[tuple[int, str]] = frozenset()
    """(object, adjective): ``hot`` and ``cool`` exclude each other."""
    lit: bool = False

    @property
    def held(self) -> int | None:
        return self.places.index(HELD) if HELD in self.places else None


@dataclass(frozen=True, slots=True)
class Action:
    verb: str
    thing: str = ""
    """An object; of ``go to``, ``open``, ``close`` a receptacle."""
    receptacle: str = ""

    def __str__(self) -> str:
        joined = {"take": "from", "put": "in"}.get(self.verb, "with")
        return f"{self.verb} {self.thing}" + (f" {joined} {self.receptacle}" if self.receptacle else "")


_NAME = r"([a-z]+ \d)"
_FORMS = [
    (re.compile(rf"(go to|open|close|use|examine) {_NAME}"), None),
    (re.compile(rf"(take) {_NAME} from {_NAME}"), "take"),
    (re.compile(rf"(put|move) {_NAME} (?:in|on|to) {_NAME}"), "put"),
    (re.compile(rf"(heat|cool|clean) {_NAME} with {_NAME}"), None),
    (re.compile(r"(inventory|look)"), None),
]


def action_in(command: str) -> Action | None:
    """The command as an action, or None if it has none of the forms."""
    for form, verb in _FORMS:
        if (found := form.fullmatch(command)) is not None:
            return Action(verb or found[1], *found.groups()[1:])
    return None


def kind_of(name: str) -> str:
    return name.rpartition(" ")[0]


def first_state(world: World) -> HouseholdState:
    return HouseholdState(NOWHERE, world.places)


def closed(world: World, state: HouseholdState, receptacle: int) -> bool:
    return kind_of(world.receptacles[receptacle]) in OPENABLE and receptacle not in state.opened


def lamp_of(world: World) -> int | None:
    return next(iter(world.objects_of(LAMP)), None)


def reached(world: World, state: HouseholdState) -> bool:
    """Return whether the goal holds."""
    goal, wanted = world.goal, world.objects_of(world.goal.object_kind)
    if goal.kind == "examine":
        lamp = lamp_of(world)
        return lamp is not None and state.lit and state.held in wanted and state.places[lamp] == state.location
    ready = [thing for thing in wanted if not needs_treatment(goal, state, thing)]
    needed = 2 if goal.kind == "two" else 1
    return any(
        sum(state.places[thing] == target for thing in ready) >= needed
        for target in world.receptacles_of(goal.receptacle_kind)
    )


def needs_treatment(goal: Goal, state: HouseholdState, thing: int) -> bool:
    return goal.kind in ADJECTIVE and (thing, ADJECTIVE[goal.kind]) not in state.treated


def admissible(world: World, state: HouseholdState) -> list[Action]:
    """Return what would change something here and now, going elsewhere last."""
    return [*_local(world, state), *_moves(world, state)]


def acted(world: World, state: HouseholdState, command: str) -> tuple[HouseholdState, str] | None:
    """The next state and what is seen, or None: the command is not admissible and nothing happens."""
    action = action_in(command)
    if action is None:
        return None
    if action.verb in ("inventory", "look", "examine"):
        seen = _looked(world, state, action)
        return None if seen is None else (state, seen)
    if action not in admissible(world, state):
        return None
    after = _changed(world, state, action)
    return after, _effect(action) + scene(world, after)


def scene(world: World, state: HouseholdState) -> str:
    """Return what stands, lies and can be done where the agent is."""
    if state.location == NOWHERE:
        return f"You see {', '.join(world.receptacles)}."
    name = world.receptacles[state.location]
    if closed(world, state, state.location):
        seen = f"{name} is closed"
    else:
        here = [world.objects[thing] for thing, place in enumerate(state.places) if place == state.location]
        seen = f"In {name}: {', '.join(here) or 'nothing'}"
    can = "; ".join(str(action) for action in _local(world, state)[:SHOWN_ACTIONS])
    return f"{seen}. You can: {can}" if can else f"{seen}."


def _local(world: World, state: HouseholdState) -> list[Action]:
    if state.location == NOWHERE:
        return []
    return list(_local_actions(world, state))


def _local_actions(world: World, state: HouseholdState) -> Iterator[Action]:
    here, name = state.location, world.receptacles[state.location]
    shut, held = closed(world, state, here), state.held
    if held is not None:
        thing = world.objects[held]
        for verb, station in STATION.items():
            fits = kind_of(name) == station and kind_of(thing) in TREATABLE[verb]
            if fits and (held, ADJECTIVE[verb]) not in state.treated:
                yield Action(verb, thing, name)
        if not shut:
            yield Action("put", thing, name)
    for number, place in enumerate(state.places if not shut else ()):
        if place != here:
            continue
        if kind_of(world.objects[number]) == LAMP:
            yield Action("use", world.objects[number])
        elif held is None:
            yield Action("take", world.objects[number], name)
    if kind_of(name) in OPENABLE:
        yield Action("open" if shut else "close", name)


def _moves(world: World, state: HouseholdState) -> list[Action]:
    return [Action("go to", name) for number, name in enumerate(world.receptacles) if number != state.location]


def _changed(world: World, state: HouseholdState, action: Action) -> HouseholdState:
    """Return the state after an admissible action."""
    match action.verb:
        case "go to":
            return replace(state, location=world.receptacles.index(action.thing))
        case "open":
            return replace(state, opened=state.opened | {state.location})
        case "close":
            return replace(state, opened=state.opened - {state.location})
        case "use":
            return replace(state, lit=not state.lit)
        case "take" | "put":
            thing = world.objects.index(action.thing)
            place = HELD if action.verb == "take" else state.location
            return replace(state, places=(*state.places[:thing], place, *state.places[thing + 1 :]))
        case verb:
            thing = world.objects.index(action.thing)
            undone = {"heat": {(thing, "cool")}, "cool": {(thing, "hot")}}.get(verb, set())
            return replace(state, treated=(state.treated - undone) | {(thing, ADJECTIVE[verb])})


def _effect(action: Action) -> str:
    return "" if action.verb == "go to" else f"You {action}. "


def _looked(world: World, state: HouseholdState, action: Action) -> str | None:
    match action.verb:
        case "look":
            return scene(world, state)
        case "inventory":
            return f"You carry {_described(world, state, state.held) if state.held is not None else 'nothing'}."
    if action.thing in world.receptacles and world.receptacles.index(action.thing) == state.location:
        return scene(world, state)
    if action.thing not in world.objects:
        return None
    thing = world.objects.index(action.thing)
    place = state.places[thing]
    visible = place == HELD or (place == state.location and not closed(world, state, place))
    return f"You see {_described(world, state, thing)}." if visible else None


def _described(world: World, state: HouseholdState, thing: int) -> str:
    adjectives = sorted(adjective for treated, adjective in state.treated if treated == thing)
    return " ".join([*adjectives, world.objects[thing]])
