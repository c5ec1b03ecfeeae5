"""sokoban: push every box onto a goal.  The rules are in sokoban_world, the levels in sokoban_tasks."""

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from engine.environments.contract import JudgeVerdict, Manner
from engine.environments.simulated import SimulatedEnvironment, Simulation
from engine.environments.sokoban_tasks import grid_of
from engine.environments.sokoban_world import STEP, Room, SokobanState, distances, drawn, pushed, shortest, solved
from engine.environments.tool_world import GIVES_UP_AT_ONCE, ActionResult
from engine.spec.environment import Sokoban
from engine.spec.message import ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import Split

NOTHING_HAPPENS = "Nothing happens."
LONGEST_WANDER = 3
"""A demonstrator that guesses makes at most this many moves before it gives up."""


MOVE = ToolSchema.of_text("move", "direction", "Moves the player: up, down, left or right.")


class SokobanEnvironment(SimulatedEnvironment[SokobanState]):
    tool = MOVE

    def __init__(self, environment: Sokoban, dataset: Dataset) -> None:
        super().__init__(environment.levels, dataset)

    def simulation(self, split: Split, number: int, level: int) -> "SokobanSimulation":
        return SokobanSimulation(*_grid(self._dataset.seed, split, number, level))


# Groups of rollouts ask for one grid many times, and finding one takes milliseconds.
_grid = lru_cache(maxsize=4096)(grid_of)


class SokobanSimulation(Simulation[SokobanState]):
    tool = MOVE

    def __init__(self, room: Room, first: SokobanState) -> None:
        self.room, self._first = room, first

    @property
    def question(self) -> str:
        return drawn(self.room, self._first)

    @property
    def first(self) -> SokobanState:
        return self._first

    def act(self, state: SokobanState, command: str) -> ActionResult[SokobanState]:
        after = pushed(self.room, state, command)
        if after is None:
            return ActionResult(state, NOTHING_HAPPENS, error_class="illegal")
        success, lost = solved(self.room, after), after not in distances(self.room)
        return ActionResult(after, drawn(self.room, after), done=success or lost, success=success)

    def script(self, manner: Manner, rng: Random) -> list[str]:
        match manner:
            case "guess":
                return self._wander(rng)
            case "solve":
                return shortest(self.room, self._first)
            case "repair":
                return self._with_a_slip(rng)

    def verdicts(self, commands: Sequence[str | None]) -> list[JudgeVerdict]:
        """Good: the shortest solution is one move shorter.  Everything else is bad."""
        left, state, verdicts = distances(self.room), self._first, list[JudgeVerdict]()
        for command in commands:
            after = None if command is None else pushed(self.room, state, command)
            nearer = after is not None and state in left and left.get(after, left[state]) < left[state]
            verdicts.append("good" if nearer else "bad")
            state = after or state
        return verdicts

    def _wander(self, rng: Random) -> list[str]:
        """No move, or legal moves that go nowhere in particular."""
        state, moves = self._first, list[str]()
        if rng.random() < GIVES_UP_AT_ONCE:
            return moves
        for _ in range(rng.randint(1, LONGEST_WANDER)):
            moves.append(rng.choice([move for move in STEP if pushed(self.room, state, move) is not None]))
            state = self.act(state, moves[-1]).state
        return moves

    def _with_a_slip(self, rng: Random) -> list[str]:
        """The solution with a move in it that does not go; without one where every move goes."""
        moves = shortest(self.room, self._first)
        slips, state = list[tuple[int, str]](), self._first
        for place, move in enumerate(moves):
            slips += [(place, slip) for slip in STEP if pushed(self.room, state, slip) is None]
            state = self.act(state, move).state
        if not slips:
            return moves
        place, slip = rng.choice(slips)
        return [*moves[:place], slip, *moves[place:]]
