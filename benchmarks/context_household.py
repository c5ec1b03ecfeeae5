"""A demonstrator of household that says what it thinks, and folds its search once it has what it looked for."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

from benchmarks.context_material import Demonstration, folding, shape
from engine.environments.contract import Demonstrator, Environment, Manner, ScriptedTurn
from engine.seeds import derived_seed
from engine.spec.message import AssistantMessage

COUNT = 1000
GUESSES = 0.25
"""The share of demonstrations that give up, which RL has to change."""


class HouseholdDomain:
    shape = shape(width=192, head=64)

    def write_tasks(self, folder: Path) -> None:
        """The worlds follow from their numbers."""

    def demonstrations(self, environment: Environment) -> Sequence[Demonstration]:
        return [self._demonstration(environment, number) for number in range(COUNT)]

    def _demonstration(self, environment: Environment, number: int) -> Demonstration:
        rng = Random(derived_seed("contexts", "household", number))
        task = environment.tasks("train")[number]
        manner: Manner = "guess" if rng.random() < GUESSES else "solve"
        script = cast(Demonstrator, environment).script(task, manner, rng)
        wanted = re.findall(r"task: put (\w+) in ", task.question)[0]
        turns = [_turn(script.turns, place, wanted, solves=manner == "solve") for place in range(len(script.turns))]
        return Demonstration(number, tuple(turns), tuple(_managed(turns)), succeeds=script.rewards.success)


def _turn(turns: Sequence[ScriptedTurn], place: int, wanted: str, *, solves: bool) -> AssistantMessage:
    message = turns[place].message
    if message.answers:
        return replace(message, reasoning="I give up.")
    if not solves:
        return replace(message, reasoning="I try something.")
    return replace(message, reasoning=_thought(turns, place, wanted))


def _thought(turns: Sequence[ScriptedTurn], place: int, wanted: str) -> str:
    """What a sensible agent thinks before its turn: what it found, and what it wants next."""
    words = turns[place].message.requests[0].text.split()
    match words:
        case ["go", "to", *where] if any("take" in turn.message.requests[0].text for turn in turns[:place]):
            return f"I have {wanted}, it goes to {' '.join(where)}."
        case ["go", "to", *where]:
            return f"I look for {wanted} in {' '.join(where)}."
        case ["take", kind, number, *_]:
            return f"Here is {kind} {number}."
        case _:
            return f"I put {wanted} here."


def _managed(turns: Sequence[AssistantMessage]) -> list[AssistantMessage]:
    """The turn behind the one that takes the thing folds the search."""
    managed = list(turns)
    for place, message in enumerate(turns[:-1]):
        words = message.requests[0].text.split() if message.requests else []
        if words[:1] == ["take"] and message.reasoning.startswith("Here"):
            managed[place + 1] = folding(turns[place + 1], place + 1, f"I took {words[1]} {words[2]}.")
    return managed
