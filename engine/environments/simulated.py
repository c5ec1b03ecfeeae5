"""What the environments share whose world is a pure function: sessions without a sandbox, and one tool of text.

A world's state is immutable, so a snapshot is the state itself and costs nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Self, TypeVar

from engine.environments.contract import JudgeVerdict, Manner, Observation, Rewards, Sandboxes, Script, ScriptedTurn
from engine.environments.tasks import SplitTasks, task_id, task_number
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task, ToolCall

StateT = TypeVar("StateT")
GIVES_UP_AT_ONCE = 0.75
"""The share of demonstrators that guess who do nothing at all before they give up."""

OVER = "the task is over"


@dataclass(frozen=True, slots=True)
class ActionResult(Generic[StateT]):
    """What an action leads to."""

    state: StateT
    output: str
    legal: bool = True
    done: bool = False
    success: bool = False


class Simulation(ABC, Generic[StateT]):
    """One task's world."""

    @property
    @abstractmethod
    def question(self) -> str:
        """Return what the policy is told."""

    @property
    @abstractmethod
    def first(self) -> StateT: ...

    @abstractmethod
    def act(self, state: StateT, command: str) -> ActionResult[StateT]:
        """Pure: equal arguments, equal outcomes."""

    @abstractmethod
    def script(self, manner: Manner, rng: Random) -> list[str]:
        """The commands of a demonstrator; one that gives up adds nothing for it."""

    @abstractmethod
    def verdicts(self, commands: Sequence[str | None]) -> list[JudgeVerdict]:
        """Of each command (None: the turn was no command), played in order from the first state."""


class SimulatedSession(Generic[StateT]):
    """A Session over a Simulation; its snapshots are outcomes."""

    def __init__(self, tool: ToolSchema, simulation: Simulation[StateT]) -> None:
        self._tool, self._simulation = tool, simulation
        self._now: ActionResult[StateT] = ActionResult(simulation.first, "")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    async def reset(self) -> list[Message]:
        return [_opening(self._simulation)]

    async def act(self, message: AssistantMessage) -> Observation:
        """An answer gives up."""
        if message.answers:
            return Observation(done=True)
        return Observation.of([self._done(request) for request in message.requests], done=self._now.done)

    def _done(self, request: ToolRequest) -> ToolCall:
        """A call behind the one that ended the episode changes nothing any more."""
        if self._now.done:
            return ToolCall.of(request, OVER, error_class="illegal", seconds=0.0)
        self._now = self._simulation.act(self._now.state, request.text)
        return _record(request, self._now)

    async def score(self) -> Rewards:
        return _rewards(self._now)

    async def snapshot(self) -> object:
        return self._now

    async def restore(self, snapshot: object) -> None:
        if not isinstance(snapshot, ActionResult):
            raise ValueError("not a snapshot of this session")
        self._now = snapshot

    async def drop(self, snapshot: object) -> None:
        return None


class SimulatedEnvironment(ABC, Generic[StateT]):
    """An ``Environment`` whose tasks are told apart by number and level.  Stateless."""

    tool: ToolSchema
    """The only one; its argument is a command."""
    restorable = True

    def __init__(self, levels: Sequence[int], dataset: Dataset) -> None:
        self._levels, self._dataset = levels, dataset

    @abstractmethod
    def simulation(self, split: Split, number: int, level: int) -> Simulation[StateT]:
        """The world of a task."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return SplitTasks(self._dataset, split, self.task)

    def task(self, split: Split, number: int) -> Task:
        """Its ``answer`` is a way to the goal, for people."""
        level = self._levels[number % len(self._levels)]
        simulation = self.simulation(split, number, level)
        return Task(
            id=task_id(split, number),
            split=split,
            level=level,
            question=simulation.question,
            answer="; ".join(simulation.script("solve", Random(0))),
        )

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return (self.tool,)

    def session(self, task: Task, sandboxes: Sandboxes) -> SimulatedSession[StateT]:
        return SimulatedSession(self.tool, self._simulation_of(task))

    def script(self, task: Task, manner: Manner, rng: Random) -> Script:
        """The commands up to the end of the world; a demonstrator that does not reach it answers ``done``."""
        simulation = self._simulation_of(task)
        now: ActionResult[StateT] = ActionResult(simulation.first, "")
        turns: list[ScriptedTurn] = []
        for command in simulation.script(manner, rng):
            now = simulation.act(now.state, command)
            message = AssistantMessage.calling(self.tool.name, {self.argument: command})
            turns.append(ScriptedTurn(message, Observation.of([_record(message.requests[0], now)], done=now.done)))
            if now.done:
                break
        if not now.done:
            turns.append(ScriptedTurn(AssistantMessage("done"), Observation(done=True)))
        return Script((_opening(simulation),), tuple(turns), _rewards(now))

    def verdicts(self, task: Task, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """A turn is good if one of its calls is."""
        commands: list[list[str | None]] = [[call.text for call in of_turn] or [None] for of_turn in calls]
        judged = iter(self._simulation_of(task).verdicts([command for of_turn in commands for command in of_turn]))
        return ["good" if "good" in [next(judged) for _ in of_turn] else "bad" for of_turn in commands]

    @property
    def argument(self) -> str:
        name = self.tool.only_text_argument
        assert name is not None, "the tool of a simulated world takes a command"
        return name

    def _simulation_of(self, task: Task) -> Simulation[StateT]:
        return self.simulation(task.split, task_number(task), task.level)


def _opening(simulation: Simulation[StateT]) -> Message:
    return Message("user", simulation.question)


def _rewards(now: ActionResult[StateT]) -> Rewards:
    return Rewards(success=now.done and now.success)


def _record(request: ToolRequest, outcome: ActionResult[StateT]) -> ToolCall:
    """A command that is not admitted is a failed call."""
    return ToolCall.of(request, outcome.output, error_class=None if outcome.legal else "illegal", seconds=0.0)
