"""What the environments share whose world is a pure function of calls and answers: sessions without a sandbox.

A world's state is immutable, so a snapshot is the state itself and costs nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, Self, TypeVar

from engine.environments.contract import JudgeVerdict, Manner, Observation, Rewards, Sandboxes, Script, ScriptedTurn
from engine.environments.tasks import SplitTasks, task_id, task_number
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import ErrorClass, Split, Task, ToolCall

StateT = TypeVar("StateT")
GIVES_UP_AT_ONCE = 0.75
"""The share of demonstrators that guess who do nothing at all before they give up."""

OVER = "the task is over"


@dataclass(frozen=True, slots=True)
class ActionResult(Generic[StateT]):
    """What a call or an answer leads to."""

    state: StateT
    output: str
    error_class: ErrorClass | None = None
    """Why the call failed; None where it worked."""
    done: bool = False
    success: bool = False
    components: Mapping[str, float] = field(default_factory=dict)
    """What the episode is paid beside its success, where this ends it."""

    @property
    def legal(self) -> bool:
        return self.error_class is None


class ToolSimulation(ABC, Generic[StateT]):
    """One task's world."""

    @property
    @abstractmethod
    def question(self) -> str:
        """Return what the policy reads first."""

    @property
    @abstractmethod
    def answer(self) -> str:
        """Return a way to the goal, or what is asked for: for people, never for the policy."""

    @property
    @abstractmethod
    def first(self) -> StateT: ...

    @abstractmethod
    def called(self, state: StateT, request: ToolRequest) -> ActionResult[StateT]:
        """Pure: equal arguments, equal results.  The arguments fit the tool's schema."""

    def answered(self, state: StateT, answer: str) -> ActionResult[StateT]:
        """What an answer leads to.  Where nothing is asked it gives up."""
        return ActionResult(state, "", done=True)

    @abstractmethod
    def messages(self, manner: Manner, rng: Random) -> list[AssistantMessage]:
        """The turns of a demonstrator; one that gives up adds nothing for it."""

    @abstractmethod
    def judged(self, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """The verdict of each turn, played in order from the first state.  A turn without calls is the answer, or
        nothing."""

    def replayed(
        self, calls: Sequence[Sequence[ToolCall]]
    ) -> Iterator[list[tuple[StateT, ToolRequest, ActionResult[StateT]]]]:
        """The calls of each turn: the state before each, the call, and what it leads to."""
        now: ActionResult[StateT] = ActionResult(self.first, "")
        for of_turn in calls:
            played = []
            for call in of_turn:
                if now.done or call.written is not None or not reached_world(call):
                    continue
                before, request = now.state, ToolRequest(call.name, call.arguments)
                now = self.called(before, request)
                played.append((before, request, now))
            yield played


def reached_world(call: ToolCall) -> bool:
    """Whether the call was made: one of no tool, or whose arguments fit none, is refused before the world sees it."""
    return call.error_class not in ("unknown-tool", "arguments")


class SimulatedSession(Generic[StateT]):
    """A Session over a simulation; its snapshots are results."""

    def __init__(self, simulation: ToolSimulation[StateT]) -> None:
        self._simulation = simulation
        self._now: ActionResult[StateT] = ActionResult(simulation.first, "")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    async def reset(self) -> list[Message]:
        return [_opening(self._simulation)]

    async def act(self, message: AssistantMessage) -> Observation:
        if message.answers:
            self._now = self._simulation.answered(self._now.state, message.content)
            return Observation(done=True)
        return Observation.of([self._made(request) for request in message.requests], done=self._now.done)

    def _made(self, request: ToolRequest) -> ToolCall:
        """A call behind the one that ended the episode changes nothing any more."""
        if self._now.done:
            return ToolCall.of(request, OVER, error_class="illegal", seconds=0.0)
        self._now = self._simulation.called(self._now.state, request)
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


class ToolEnvironment(ABC, Generic[StateT]):
    """An ``Environment`` whose tasks are known by number and level.  Stateless."""

    restorable = True

    def __init__(self, levels: Sequence[int], dataset: Dataset) -> None:
        self._levels, self._dataset = levels, dataset

    @abstractmethod
    def simulation(self, split: Split, number: int, level: int) -> ToolSimulation[StateT]:
        """The world of a task."""

    @abstractmethod
    def tools(self, task: Task) -> Sequence[ToolSchema]: ...

    def tasks(self, split: Split) -> Sequence[Task]:
        return SplitTasks(self._dataset, split, self.task)

    def task(self, split: Split, number: int) -> Task:
        level = self._levels[number % len(self._levels)]
        simulation = self.simulation(split, number, level)
        return Task(
            id=task_id(split, number),
            split=split,
            level=level,
            question=simulation.question,
            answer=simulation.answer,
        )

    def session(self, task: Task, sandboxes: Sandboxes) -> SimulatedSession[StateT]:
        return SimulatedSession(self._simulation_of(task))

    def script(self, task: Task, manner: Manner, rng: Random) -> Script:
        """The turns up to the end of the world; a demonstrator that does not reach it answers ``done``."""
        simulation = self._simulation_of(task)
        now: ActionResult[StateT] = ActionResult(simulation.first, "")
        turns: list[ScriptedTurn] = []
        for message in [*simulation.messages(manner, rng), AssistantMessage("done")]:
            if message.answers:
                now = simulation.answered(now.state, message.content)
                turns.append(ScriptedTurn(message, Observation(done=True)))
                break
            records = []
            for request in message.requests:
                now = simulation.called(now.state, request)
                records.append(_record(request, now))
            turns.append(ScriptedTurn(message, Observation.of(records, done=now.done)))
            if now.done:
                break
        return Script((_opening(simulation),), tuple(turns), _rewards(now))

    def verdicts(self, task: Task, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """A turn is good if one of its calls is."""
        return self._simulation_of(task).judged(calls, answer)

    def _simulation_of(self, task: Task) -> ToolSimulation[StateT]:
        return self.simulation(task.split, task_number(task), task.level)


def _opening(simulation: ToolSimulation[StateT]) -> Message:
    return Message("user", simulation.question)


def _rewards(now: ActionResult[StateT]) -> Rewards:
    if not now.done:
        return Rewards(success=False)
    return Rewards(now.success, dict(now.components))


def _record(request: ToolRequest, result: ActionResult[StateT]) -> ToolCall:
    return ToolCall.of(request, result.output, error_class=result.error_class, seconds=0.0)
