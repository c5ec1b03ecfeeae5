"""household: a little house in text, in which things are found, treated and brought where they belong.

The worlds are in household_tasks, the rules in household_world, the planner in household_planner.
"""

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from engine.environments.contract import JudgeVerdict, Manner
from engine.environments.household_planner import distance, needs_search, next_action, seen_now
from engine.environments.household_tasks import world_of
from engine.environments.household_world import (
    NOTHING_HAPPENS,
    Action,
    HouseholdState,
    World,
    acted,
    admissible,
    first_state,
    reached,
)
from engine.environments.simulated import SimulatedEnvironment, Simulation
from engine.environments.tool_world import GIVES_UP_AT_ONCE, ActionResult
from engine.spec.environment import Household
from engine.spec.message import ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import Split

LONGEST_WANDER = 3
"""A demonstrator that guesses does at most this much before it gives up."""


ACT = ToolSchema.of_text("act", "command", "Does something in the house, e.g. go to fridge 1.")


class HouseholdEnvironment(SimulatedEnvironment[HouseholdState]):
    tool = ACT

    def __init__(self, environment: Household, dataset: Dataset) -> None:
        super().__init__(environment.levels, dataset)

    def simulation(self, split: Split, number: int, level: int) -> "HouseholdSimulation":
        return HouseholdSimulation(_world(self._dataset.seed, split, number, level))


# Groups of rollouts ask for one world many times; a world is drawn in well under a millisecond otherwise.
_world = lru_cache(maxsize=1024)(world_of)


class HouseholdSimulation(Simulation[HouseholdState]):
    tool = ACT

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def question(self) -> str:
        return self.world.question

    @property
    def first(self) -> HouseholdState:
        return first_state(self.world)

    def act(self, state: HouseholdState, command: str) -> ActionResult[HouseholdState]:
        found = acted(self.world, state, command)
        if found is None:
            return ActionResult(state, NOTHING_HAPPENS, error_class="illegal")
        after, output = found
        goal = reached(self.world, after)
        return ActionResult(after, output, done=goal, success=goal)

    def script(self, manner: Manner, rng: Random) -> list[str]:
        match manner:
            case "guess":
                return self._wander(rng)
            case "solve":
                return [command for _, command in self._solution()]
            case "repair":
                return self._with_a_slip(rng)

    def verdicts(self, commands: Sequence[str | None]) -> list[JudgeVerdict]:
        """Good: the goal comes nearer, or the agent looks where it had to look.  Everything else is bad."""
        state, seen, verdicts = self.first, frozenset[int](), list[JudgeVerdict]()
        for command in commands:
            outcome = ActionResult(state, "", error_class="illegal") if command is None else self.act(state, command)
            verdicts.append("good" if self._helped(state, outcome, seen) else "bad")
            state = outcome.state
            seen |= seen_now(self.world, state)
        return verdicts

    def _helped(self, before: HouseholdState, outcome: ActionResult[HouseholdState], seen: frozenset[int]) -> bool:
        after = outcome.state
        if distance(self.world, after) < distance(self.world, before):
            return True
        searching = needs_search(self.world, before, seen)
        approached = after.location != before.location and after.location not in seen
        return outcome.legal and searching and (approached or bool(seen_now(self.world, after) - seen))

    def _solution(self) -> list[tuple[HouseholdState, str]]:
        """Each command of a sensible agent, with the state before it."""
        state, seen, steps = self.first, frozenset[int](), list[tuple[HouseholdState, str]]()
        while not reached(self.world, state):
            command = str(next_action(self.world, state, seen))
            steps.append((state, command))
            state = self.act(state, command).state
            seen |= seen_now(self.world, state)
        return steps

    def _wander(self, rng: Random) -> list[str]:
        """Nothing, or anything that is admissible a few times."""
        state, commands = self.first, list[str]()
        if rng.random() < GIVES_UP_AT_ONCE:
            return commands
        for _ in range(rng.randint(1, LONGEST_WANDER)):
            commands.append(str(rng.choice(admissible(self.world, state))))
            state = self.act(state, commands[-1]).state
        return commands

    def _with_a_slip(self, rng: Random) -> list[str]:
        """The solution with one illegal action in it, after which it goes on as if nothing had happened."""
        solution = self._solution()
        place = rng.randrange(len(solution))
        commands = [command for _, command in solution]
        return [*commands[:place], self._slip(solution[place][0], rng), *commands[place:]]

    def _slip(self, state: HouseholdState, rng: Random) -> str:
        world = self.world
        thing, receptacle = rng.choice(world.objects), rng.choice(world.receptacles)
        kinds = [Action("take", thing, receptacle), Action("put", thing, receptacle), Action("open", receptacle)]
        rng.shuffle(kinds)
        legal = admissible(world, state)
        return str(next((kind for kind in kinds if kind not in legal), Action("go to", "sofa 9")))
