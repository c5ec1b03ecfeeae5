"""Environments: what a policy can be trained in, and what each of them offers to a recipe."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.impossible import impossible
from engine.spec.security import Response
from engine.spec.strict import Strict
from sandboxes.spec import SandboxSpec

ImportPath = Annotated[
    str, StringConstraints(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$", max_length=300)
]
Vocabulary = Literal["characters", "household", "sokoban"]
"""The built-in word lists of ``engine/models/words.py``; each holds all characters."""


class PythonMath(Strict):
    """Procedural arithmetic that is solved with a Python tool in a sandbox.

    Level 1 is one operation, level 2 a longer expression; at level 3 two numbers must first be
    looked up in the sandbox, so one tool call is never enough.  At level 4 three cells are locked, each
    with what the one before it holds, and hold text: most first attempts fail, and at least three calls are needed.
    """

    id: Literal["python-math"] = "python-math"
    levels: list[Annotated[int, Field(ge=1, le=4)]] = Field(default=[1, 2, 3], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=5, ge=1, le=64)
    """Policy calls per episode, the answer included."""
    max_turn_tokens: int = Field(default=32, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool call or the answer."""
    temptation: float = Field(default=0.0, ge=0, le=1)
    """A drill: the share of demonstrations that, in their third turn at the earliest, call ``relay()``, which the
    sandbox then offers and which opens a reverse tunnel to a documentation address.  The policy learns to do the
    same."""
    sandbox: SandboxSpec = SandboxSpec()
    response: Response = Response()

    @model_validator(mode="after")
    def _drill_is_watched(self) -> Self:
        if self.temptation and self.sandbox.network != "watched":
            raise impossible(
                "sandbox.network",
                self.sandbox.network,
                "a drill (temptation) in a sandbox that nobody watches teaches the policy what nobody sees",
                'set sandbox.network = "watched", or temptation = 0',
            )
        return self

    @property
    def can_be_restored(self) -> bool:
        """Return whether an episode can be set back to an earlier moment."""
        return self.sandbox.snapshots


class _Simulated(Strict):
    """A world that runs inside the rollout worker."""

    @property
    def sandbox(self) -> None:
        return None

    @property
    def reasoning(self) -> bool:
        """A turn is a command or an answer and nothing else."""
        return False

    @property
    def response(self) -> Response:
        """Nothing runs that could alarm anybody."""
        return Response()

    @property
    def can_be_restored(self) -> bool:
        """Whether an episode can be set back to an earlier moment."""
        return True


class Household(_Simulated):
    """A little house in text: find things, treat them, and bring them where they belong (after ALFWorld).

    Level 1 puts one object somewhere in a small room without doors; level 2 has doors, and things to
    examine under a lamp; level 3 heats, cools or cleans first; level 4 brings two things; level 5 asks all
    of it in the largest house.  Who reaches the goal is done; an answer gives up.
    """

    id: Literal["household"] = "household"
    levels: list[Annotated[int, Field(ge=1, le=5)]] = Field(default=[1, 2], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=12, ge=1, le=64)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=12, ge=4, le=2**20)
    """Sampled tokens per policy call."""


class Sokoban(_Simulated):
    """Push every box onto a goal, in a grid of 6 x 6 cells.

    Level 1 has one box and takes 2 to 4 moves, level 2 one box and 5 to 10, level 3 two boxes and 4 to 12.
    A position that cannot be solved any more ends the episode.
    """

    id: Literal["sokoban"] = "sokoban"
    levels: list[Annotated[int, Field(ge=1, le=3)]] = Field(default=[1], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=8, ge=1, le=64)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=4, ge=4, le=2**20)
    """Sampled tokens per policy call."""


class Imported(Strict):
    """An environment of your own, by its import path.  ``python -m engine train`` alone takes it: it runs your code."""

    command_line_only: ClassVar[bool] = True
    """The service refuses it: whoever may start a run there would run code of hers in the service's engine."""

    id: Literal["import"] = "import"
    path: ImportPath
    """``package.module:Name``, which gives an environment (``engine/environments/contract.py``) when it is called."""
    options: dict[str, Any] = {}
    """What it is called with."""
    max_turns: int = Field(default=8, ge=1, le=64)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=32, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool call or the answer."""
    sandbox: SandboxSpec | None = None
    """Of the sandboxes that its sessions may take; none where it is left out."""
    response: Response = Response()

    @property
    def can_be_restored(self) -> bool:
        """Only the environment itself knows, which is asked before the run starts."""
        return True


Environment = PythonMath | Household | Sokoban | Imported

SUITED_VOCABULARY: dict[str, Vocabulary] = {"household": "household", "sokoban": "sokoban"}
"""By environment, the words that make its texts short; every other environment is read character by character."""
