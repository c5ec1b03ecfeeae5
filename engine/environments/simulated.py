"""Worlds with one tool that takes a command: household, sokoban, and what they add to a world of calls."""

from abc import abstractmethod
from collections.abc import Sequence
from random import Random

from engine.environments.contract import JudgeVerdict, Manner
from engine.environments.tool_world import ActionResult, StateT, ToolEnvironment, ToolSimulation, reached_world
from engine.spec.message import AssistantMessage, ToolRequest, ToolSchema
from engine.spec.trajectory import Task, ToolCall


class Simulation(ToolSimulation[StateT]):
    """One task's world, in which every turn is a command.  An answer gives up."""

    tool: ToolSchema
    """The only one; its argument is a command."""

    @abstractmethod
    def act(self, state: StateT, command: str) -> ActionResult[StateT]:
        """Pure: equal arguments, equal results."""

    @abstractmethod
    def script(self, manner: Manner, rng: Random) -> list[str]:
        """The commands of a demonstrator; one that gives up adds nothing for it."""

    @abstractmethod
    def verdicts(self, commands: Sequence[str | None]) -> list[JudgeVerdict]:
        """The verdict of each command (None: the turn was no command), played in order from the first state."""

    @property
    def answer(self) -> str:
        return "; ".join(self.script("solve", Random(0)))

    def called(self, state: StateT, request: ToolRequest) -> ActionResult[StateT]:
        return self.act(state, request.text)

    def messages(self, manner: Manner, rng: Random) -> list[AssistantMessage]:
        argument = self.tool.only_text_argument
        assert argument is not None, "the tool of a simulated world takes a command"
        return [AssistantMessage.calling(self.tool.name, {argument: command}) for command in self.script(manner, rng)]

    def judged(self, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """A call that never reached the world is no command."""
        commands: list[list[str | None]] = [
            [call.text if reached_world(call) else None for call in of_turn] or [None] for of_turn in calls
        ]
        judged = iter(self.verdicts([command for of_turn in commands for command in of_turn]))
        return ["good" if "good" in [next(judged) for _ in of_turn] else "bad" for of_turn in commands]


class SimulatedEnvironment(ToolEnvironment[StateT]):
    """The environment of such worlds."""

    tool: ToolSchema
    """That of its simulations."""

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return (self.tool,)
