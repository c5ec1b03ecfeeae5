"""An environment whose tools take long, and now and then very long: ``path = "benchmarks.slow_tools:SlowTools"``.

Each call sleeps by a Pareto law with tail index 1.5, from 50 ms to 20 s: its mean is 0.15 s, and the longest of a
hundred calls is about two seconds.  Nothing leaves the process.  The task itself is easy (fetch both pages before
giving up), so that a small policy learns it in a few steps and what is compared is the waiting.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

from engine.environments.contract import JudgeVerdict, Manner, Observation, Sandboxes
from engine.environments.simulated import SimulatedEnvironment, Simulation
from engine.environments.tool_world import ActionResult, SimulatedSession
from engine.spec.message import AssistantMessage, ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task

TAIL_INDEX = 1.5
SHORTEST_S = 0.05
LONGEST_S = 20.0
PAGES = "ab"
FETCH = ToolSchema.of_text("fetch", "page", "Fetches a page, which may take long.")


def pareto_seconds(uniform: float) -> float:
    """The time that a call takes, for a number between 0 (the longest) and 1 (the shortest)."""
    floor = (SHORTEST_S / LONGEST_S) ** TAIL_INDEX
    return SHORTEST_S * float(max(uniform, floor) ** (-1 / TAIL_INDEX))


class Pages(Simulation[int]):
    """The state is how many pages were fetched; they have to be fetched in their order."""

    tool = FETCH

    @property
    def question(self) -> str:
        return PAGES

    @property
    def first(self) -> int:
        return 0

    def act(self, state: int, command: str) -> ActionResult[int]:
        if command != PAGES[state]:
            return ActionResult(state, "no", error_class=None if command in PAGES else "illegal")
        done = state + 1 == len(PAGES)
        return ActionResult(state + 1, "ok", done=done, success=done)

    def script(self, manner: Manner, rng: Random) -> list[str]:
        """Who guesses fetches some page, and gives up."""
        if manner == "guess":
            return [rng.choice(PAGES)]
        wrong = [rng.choice("xyz")] if manner == "repair" else []
        return [*wrong, *PAGES]

    def verdicts(self, commands: Sequence[str | None]) -> list[JudgeVerdict]:
        state, judged = 0, list[JudgeVerdict]()
        for command in commands:
            after = state if command is None else self.act(state, command).state
            judged.append("good" if after > state else "bad")
            state = min(after, len(PAGES) - 1)
        return judged


class SlowSession(SimulatedSession[int]):
    def __init__(self, simulation: Pages, sleeps: Random | None) -> None:
        """``sleeps`` draws how long each turn takes; None: it takes no time."""
        super().__init__(simulation)
        self._sleeps = sleeps

    async def act(self, message: AssistantMessage) -> Observation:
        took_s = 0.0
        if message.requests and self._sleeps is not None:
            took_s = pareto_seconds(self._sleeps.random())
            await asyncio.sleep(took_s)
        observation = await super().act(message)
        calls = [call.model_copy(update={"seconds": took_s}) for call in observation.calls]
        return Observation(tuple(calls), observation.messages, observation.done)


class SlowTools(SimulatedEnvironment[int]):
    """Sleeps in training only, so that an evaluation costs nothing.

    How long a turn takes hangs on ``seed``, its task, which try at the task it is, and its number: runs with equal
    seeds meet equal latencies.  Counting the tries is all that it keeps between episodes.
    """

    tool = FETCH

    def __init__(self, tasks: int = 20_000, seed: int = 0) -> None:
        super().__init__([1], Dataset(train_tasks=tasks, heldout_tasks=200, seed=seed))
        self._tries: Counter[str] = Counter()

    def simulation(self, split: Split, number: int, level: int) -> Pages:
        return Pages()

    def session(self, task: Task, sandboxes: Sandboxes) -> SlowSession:
        number = self._tries[task.id]
        self._tries[task.id] += 1
        sleeps = Random(f"{self._dataset.seed} {task.id} {number}") if task.split == "train" else None
        return SlowSession(Pages(), sleeps)
