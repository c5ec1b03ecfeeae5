"""What the environments share whose world is a pure function: a session without a box, and the form of a turn.

A world's state is immutable, so a snapshot is the state itself and costs nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Self, TypeVar

from engine.environments.contract import Boxes, Manner, Script, ScriptedCall, Verdict
from engine.environments.tasks import SplitTasks, task_id, task_number
from engine.models.tokenizer import tokenizer_for
from engine.rollout import chat
from engine.rollout.chat import Answer, Call
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task, ToolCall, Turn
from sandboxes.interface import ExecResult

StateT = TypeVar("StateT")
GIVES_UP_AT_ONCE = 0.75
"""The share of demonstrators that guess who do nothing at all before they give up."""
ILLEGAL = "Illegal"
"""The name that stands for a refused action where a box would name its exception."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[StateT]):
    """What an action leads to."""

    state: StateT
    output: str
    legal: bool = True
    done: bool = False
    success: bool = False

    @property
    def result(self) -> ExecResult:
        """As a box would tell it."""
        if self.legal:
            return ExecResult("ok", self.output, "", 0, seconds=0.0)
        return ExecResult("error", self.output, "", 1, seconds=0.0, exception=ILLEGAL)


class Simulation(ABC, Generic[StateT]):
    """One task's world."""

    @property
    @abstractmethod
    def question(self) -> str:
        """What the policy is told."""

    @property
    @abstractmethod
    def first(self) -> StateT: ...

    @abstractmethod
    def act(self, state: StateT, command: str) -> Outcome[StateT]:
        """Pure: equal arguments, equal outcomes."""

    @abstractmethod
    def script(self, manner: Manner, rng: Random) -> list[str]:
        """The commands of a demonstrator; one that gives up adds nothing for it."""

    @abstractmethod
    def verdicts(self, commands: Sequence[str | None]) -> list[Verdict]:
        """Of each command (None: the turn was no command), played in order from the first state."""


class SimulatedSession(Generic[StateT]):
    """A ToolSession over a Simulation."""

    def __init__(self, name: str, simulation: Simulation[StateT]) -> None:
        self._name, self._simulation = name, simulation
        self._now: Outcome[StateT] = Outcome(simulation.first, "")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    @property
    def done(self) -> bool:
        return self._now.done

    @property
    def success(self) -> bool:
        return self._now.success

    async def call(self, call: Call) -> ToolCall:
        self._now = self._simulation.act(self._now.state, call.code)
        return tool_call(self._name, call, self._now.result)

    async def snapshot(self) -> object:
        return self._now

    async def restore(self, snapshot: object) -> None:
        if not isinstance(snapshot, Outcome):
            raise ValueError("not a snapshot of this session")
        self._now = snapshot

    async def drop(self, snapshot: object) -> None:
        return None


class SimulatedEnvironment(ABC, Generic[StateT]):
    """An ``Environment`` whose tasks are told apart by number and level.  Stateless."""

    name: str
    """Of the tool, in the record of a call."""

    def __init__(self, environment_id: str, levels: Sequence[int], dataset: Dataset) -> None:
        self._levels, self._dataset = levels, dataset
        self._tokenizer = tokenizer_for(environment_id)

    @abstractmethod
    def simulation(self, split: Split, number: int, level: int) -> Simulation[StateT]:
        """The world of a task."""

    @property
    def stop_ids(self) -> frozenset[int]:
        return chat.stop_ids(self._tokenizer)

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

    def prompt_ids(self, task: Task, lessons: Sequence[str] = ()) -> list[int]:
        return chat.prompt_ids(self._tokenizer, task.question, lessons)

    def experience_span(self, lessons: Sequence[str]) -> tuple[int, int]:
        return chat.experience_span(self._tokenizer, lessons)

    def parse(self, token_ids: Sequence[int]) -> Call | Answer | None:
        return chat.parse_turn(self._tokenizer, token_ids)

    def session(self, task: Task, boxes: Boxes) -> SimulatedSession[StateT]:
        return SimulatedSession(self.name, self._simulation_of(task))

    def observation_ids(self, call: ToolCall) -> list[int]:
        return chat.observation_ids(self._tokenizer, call.output)

    def text_of(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids)

    def pieces_of(self, token_ids: Sequence[int]) -> list[str]:
        return self._tokenizer.pieces(token_ids)

    def score(self, task: Task, answer: str) -> bool:
        """An answer gives up."""
        return False

    def script(self, task: Task, manner: Manner, rng: Random) -> Script:
        simulation = self._simulation_of(task)
        steps: Script = []
        state = simulation.first
        for command in simulation.script(manner, rng):
            outcome = simulation.act(state, command)
            steps.append(ScriptedCall(Call(command), outcome.result, done=outcome.done, success=outcome.success))
            state = outcome.state
            if outcome.done:
                return steps
        return [*steps, Answer("done")]

    def turn_ids(self, turn: Call | Answer) -> list[int]:
        return chat.turn_ids(self._tokenizer, turn)

    def tool_call(self, call: Call, result: ExecResult) -> ToolCall:
        return tool_call(self.name, call, result)

    def verdicts(self, task: Task, turns: Sequence[Turn]) -> list[Verdict]:
        commands = [None if turn.tool_call is None else turn.tool_call.arguments for turn in turns]
        return self._simulation_of(task).verdicts(commands)

    def _simulation_of(self, task: Task) -> Simulation[StateT]:
        return self.simulation(task.split, task_number(task), task.level)


def tool_call(name: str, call: Call, result: ExecResult) -> ToolCall:
    legal = result.outcome == "ok"
    return ToolCall(
        name=name,
        arguments=call.code,
        output=result.stdout,
        status="ok" if legal else "error",
        error_class=None if legal else "illegal",
        seconds=result.seconds,
    )
