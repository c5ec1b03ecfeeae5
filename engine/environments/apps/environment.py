"""apps: errands in six apps whose functions are documented; their databases say whether an errand was done.

The databases are in database, the functions in functions, the tools in phone, the errands in errands.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from random import Random
from typing import Any

from engine.environments.apps.agent import Agent
from engine.environments.apps.database import Database, difference
from engine.environments.apps.errands import Problem, problem_of
from engine.environments.apps.phone import TOOLS
from engine.environments.contract import JudgeVerdict, Manner
from engine.environments.tool_world import GIVES_UP_AT_ONCE, ActionResult, ToolEnvironment, ToolSimulation
from engine.spec.environment import Apps
from engine.spec.message import AssistantMessage, ToolRequest, ToolSchema, text_of_arguments
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task, ToolCall

CHECKS = "checks"
"""What an episode that does not succeed may be paid."""


class AppsEnvironment(ToolEnvironment[Database]):
    def __init__(self, environment: Apps, dataset: Dataset) -> None:
        super().__init__(environment.levels, dataset)
        self._partial_credit = environment.partial_credit

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return TOOLS

    def simulation(self, split: Split, number: int, level: int) -> "AppsSimulation":
        return AppsSimulation(_problem(self._dataset.seed, split, number, level), self._partial_credit)


# Groups of rollouts ask for one errand many times.
_problem = lru_cache(maxsize=1024)(problem_of)


class AppsSimulation(ToolSimulation[Database]):
    def __init__(self, problem: Problem, partial_credit: bool) -> None:
        self.problem, self._partial_credit = problem, partial_credit

    @cached_property
    def _agent(self) -> Agent:
        """One that has done the errand."""
        return self.problem.run()

    @property
    def question(self) -> str:
        return self.problem.text

    @property
    def answer(self) -> str:
        """What was asked, or the calls of a way to do it."""
        return self._agent.answer or "; ".join(request.text for request in self._agent.requests)

    @property
    def first(self) -> Database:
        return self.problem.start

    def called(self, state: Database, request: ToolRequest) -> ActionResult[Database]:
        return self.problem.phone.called(state, request)

    def answered(self, state: Database, answer: str) -> ActionResult[Database]:
        """The errand is done if what had to change has changed, nothing else has, and what was asked is answered."""
        missing, collateral = self._deviations(state)
        asked = self._agent.answer
        wrong = asked is not None and answer.strip() != asked
        checks, failed = self._changes_due.total() + (asked is not None), missing + wrong
        success = not failed and not collateral
        partial = {CHECKS: 0.0 if collateral else 1 - failed / checks} if self._partial_credit and not success else {}
        return ActionResult(state, "", done=True, success=success, components=partial)

    def messages(self, manner: Manner, rng: Random) -> list[AssistantMessage]:
        way = self._agent.messages
        match manner:
            case "guess":
                return self._hasty(rng)
            case "solve":
                return way
            case "repair":
                place = rng.randrange(len(way))
                return [*way[:place], self._slip(rng), *way[place:]]

    def judged(self, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """Good: a step of the way for the first time, a change that brings the errand nearer, and the end when it is
        done."""
        judged, due, now = list[JudgeVerdict](), self._steps_due, self.first
        for of_turn in self.replayed(calls):
            good = False
            for before, request, result in of_turn:
                step, now = _step(request), result.state
                good |= result.legal and (step in due or self._distance(now) < self._distance(before))
                due = due - {step} if result.legal else due
            judged.append("good" if good else "bad")
        if judged and answer is not None and not calls[-1] and self.answered(now, answer).success:
            judged[-1] = "good"
        return judged

    @cached_property
    def _steps_due(self) -> frozenset[str]:
        """The calls of the way that change nothing, and reading the documentation of what it calls."""
        requests = self._agent.requests
        apis = {str(request.arguments["api"]) for request in requests}
        documents = {_step(ToolRequest("read_doc", {"api": api})) for api in apis}
        lists = {_step(ToolRequest("list_apis", {"app": api.partition(".")[0]})) for api in apis}
        reading = {_step(request) for request, changes in zip(requests, self._changing, strict=True) if not changes}
        return frozenset(documents | lists | reading | {_step(ToolRequest("list_apis", {}))})

    @cached_property
    def _changing(self) -> list[bool]:
        """Tell for each call of the way whether it changed a table."""
        now, changing = self.first, list[bool]()
        for request in self._agent.requests:
            before, now = now, self.called(now, request).state
            changing.append(before.tables != now.tables)
        return changing

    @cached_property
    def _changes_due(self) -> Counter[tuple[Any, ...]]:
        return difference(self.first.tables, self._agent.database.tables)

    def _deviations(self, state: Database) -> tuple[int, int]:
        """(changes that are missing, changes that nobody asked for)"""
        made = difference(self.first.tables, state.tables)
        return (self._changes_due - made).total(), (made - self._changes_due).total()

    def _distance(self, state: Database) -> int:
        return sum(self._deviations(state))

    def _hasty(self, rng: Random) -> list[AssistantMessage]:
        """Nothing, or a number, as if all were done; at times after the first call."""
        requests = self._agent.requests
        answer = AssistantMessage(str(rng.randint(11, 98)) if rng.random() < 0.5 else "done")
        return [answer] if rng.random() < GIVES_UP_AT_ONCE else [AssistantMessage(requests=(requests[0],)), answer]

    def _slip(self, rng: Random) -> AssistantMessage:
        """A call with a token that no app gave, or of a function that is not there."""
        app, verb = str(rng.choice(self._agent.requests).arguments["api"]).split(".")
        if rng.random() < 0.5:
            return AssistantMessage.calling("call", {"api": f"{app}.find", "arguments": {}})
        return AssistantMessage.calling("call", {"api": f"{app}.{verb}", "arguments": {"token": "0"}})


def _step(request: ToolRequest) -> str:
    """A call without its token, as text."""
    arguments = dict(request.arguments)
    if isinstance(inner := arguments.get("arguments"), dict):
        arguments["arguments"] = {name: inner[name] for name in sorted(inner) if name != "token"}
    return f"{request.name} {text_of_arguments(arguments)}"
