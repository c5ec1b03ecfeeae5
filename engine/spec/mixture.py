"""Several environments at once: a run whose tasks are drawn from them by weight.

What reads a run's environment asks ``parts_of`` for what is played, and need not know whether it is one or several.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.environment import SUITED_VOCABULARY, Environment, PythonMath, Terminal, terminal_in
from engine.spec.impossible import impossible
from engine.spec.security import Response
from engine.spec.strict import LARGEST_NUMBER, Strict
from sandboxes.spec import SandboxSpec

MOST_PARTS = 16


class MixturePart(Strict):
    """One of the environments: its tools, limits, sandboxes and scores are its own."""

    name: Annotated[str, StringConstraints(max_length=40)]
    """By which its numbers and its trajectories are known: small letters, digits and ``-``."""
    weight: float = Field(default=1.0, gt=0, le=LARGEST_NUMBER)
    """Tasks are drawn from it in proportion to this."""
    environment: Annotated[Environment, Field(discriminator="id")] = PythonMath()
    """What it plays: any environment but another mixture."""

    @model_validator(mode="after")
    def _name_is_plain(self) -> Self:
        if re.fullmatch(r"[a-z0-9][a-z0-9-]*", self.name) is None:
            problem = "it stands in the names of metrics and in addresses"
            raise impossible("name", self.name, problem, 'use small letters, digits and "-", e.g. "short-sums"')
        return self


class Mixture(Strict):
    """Several environments at once.  Each task is of one of them, drawn by weight; a group is of one task.

    The n-th task that is drawn of a part is the part's own n-th, so a part that has fewer begins again.
    """

    id: Literal["mixture"] = "mixture"
    parts: list[MixturePart] = Field(max_length=MOST_PARTS)
    """The environments, each with a name and a weight."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """The seed of the draw alone: runs with equal parts and equal seeds see the parts in the same order."""

    @model_validator(mode="after")
    def _there_are_several(self) -> Self:
        if len(self.parts) < 2:
            problem = f"{len(self.parts)} is no number of parts to draw from"
            raise impossible("parts", len(self.parts), problem, "name two, or let its environment be that of the run")
        return self

    @model_validator(mode="after")
    def _names_stand_once(self) -> Self:
        names = [part.name for part in self.parts]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise impossible(f"parts.{number}.name", name, "another part has this name", "give it another name")
        return self

    @model_validator(mode="after")
    def _releases_are_of_one_age(self) -> Self:
        """The quarantine is the run's, and its steps are those of all parts."""
        ages = {
            number: part.environment.response.release_within_steps
            for number, part in enumerate(self.parts)
            if part.environment.sandbox is not None
        }
        first = next(iter(ages.values()), 0)
        for number, age in ages.items():
            if age != first:
                field = f"parts.{number}.environment.response.release_within_steps"
                raise impossible(field, age, f"another part has {first}", "use one number in all parts")
        return self

    @property
    def max_turns(self) -> int:
        """The limit of the part that allows most."""
        return max(part.environment.max_turns for part in self.parts)

    @property
    def max_turn_tokens(self) -> int:
        """The limit of the part that allows most."""
        return max(part.environment.max_turn_tokens for part in self.parts)

    @property
    def reasoning(self) -> bool:
        """Whether a turn of some part may begin with plain text of its own."""
        return any(part.environment.reasoning for part in self.parts)

    @property
    def response(self) -> Response:
        """The response of the first part with sandboxes: what concerns the run is equal in all of them."""
        sandboxed = (part.environment.response for part in self.parts if part.environment.sandbox is not None)
        return next(sandboxed, Response())

    @property
    def can_be_restored(self) -> bool:
        """Whether every part's episodes can be set back to an earlier moment."""
        return all(part.environment.can_be_restored for part in self.parts)

    @property
    def takes_dataset(self) -> bool:
        """Whether the tasks of some part are rows of the run's dataset."""
        return any(getattr(part.environment, "takes_dataset", False) for part in self.parts)

    @property
    def reward_components(self) -> set[str] | None:
        """What some part may pay beside the recipe's own components; None where a part does not know."""
        paid: list[set[str] | None] = [getattr(part.environment, "reward_components", None) for part in self.parts]
        known = [names for names in paid if names is not None]
        return set[str]().union(*known) if len(known) == len(paid) else None


RunEnvironment = Environment | Mixture
"""What a run may be trained in."""


@dataclass(frozen=True, slots=True)
class PlayedPart:
    """An environment that a run plays."""

    name: str | None
    """None where the run has no parts."""
    weight: float
    field: str
    """Where in the run's document it stands."""
    environment: Environment


def parts_of(environment: RunEnvironment) -> list[PlayedPart]:
    """Return what is played: the parts of a mixture, or the environment alone."""
    if not isinstance(environment, Mixture):
        return [PlayedPart(None, 1.0, "environment", environment)]
    return [
        PlayedPart(part.name, part.weight, f"environment.parts.{number}.environment", part.environment)
        for number, part in enumerate(environment.parts)
    ]


def with_each(environment: RunEnvironment, change: Callable[[str, Environment], Environment]) -> RunEnvironment:
    """Return it with ``change(field, environment)`` in the place of what is played."""
    if not isinstance(environment, Mixture):
        return change("environment", environment)
    changed = [
        part.model_copy(update={"environment": change(played.field, part.environment)})
        for part, played in zip(environment.parts, parts_of(environment), strict=True)
    ]
    return environment.model_copy(update={"parts": changed})


def alone(environment: RunEnvironment) -> Environment:
    """Return the environment of a run without parts.  Raises ValueError for one with parts."""
    if isinstance(environment, Mixture):
        raise ValueError(f"an environment of {len(environment.parts)} parts is no single one")
    return environment


def sandboxes_of(environment: RunEnvironment) -> list[SandboxSpec]:
    """Return the sandboxes of all parts that take some."""
    return [part.environment.sandbox for part in parts_of(environment) if part.environment.sandbox is not None]


def terminals_of(environment: RunEnvironment) -> list[tuple[str, Terminal]]:
    """Return the terminal tasks that a run plays, each with the field in which they stand."""
    found = [(part.field, terminal_in(part.environment)) for part in parts_of(environment)]
    return [(field + at.removeprefix("environment"), terminal) for field, (at, terminal) in _there(found)]


def _there(found: Sequence[tuple[str, tuple[str, Terminal] | None]]) -> list[tuple[str, tuple[str, Terminal]]]:
    return [(field, terminal) for field, terminal in found if terminal is not None]


def suited_vocabulary(environment: Any) -> str:
    """Return the words of an environment, as a document or a model has it; of several parts, what suits them all."""
    if isinstance(environment, Mixture):
        return _shared([suited_vocabulary(part.environment) for part in environment.parts])
    if isinstance(environment, Mapping) and environment.get("id") == "mixture":
        rows = environment.get("parts")
        parts = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list | tuple) else []
        return _shared([suited_vocabulary(row.get("environment")) for row in parts])
    kind = environment.get("id") if isinstance(environment, Mapping) else getattr(environment, "id", None)
    return SUITED_VOCABULARY.get(kind, "characters") if isinstance(kind, str) else "characters"


def _shared(suited: Sequence[str]) -> str:
    """The only list of words among them: each holds all characters."""
    words = set(suited) - {"characters"}
    return words.pop() if len(words) == 1 else "characters"
