"""Environments: what a policy can be trained in, and what each of them offers to a recipe."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.spec.impossible import impossible
from engine.spec.security import Response
from engine.spec.strict import Strict
from sandboxes.spec import SandboxSpec

LONGEST_PROMPT_TOKENS = {1: 12, 2: 20, 3: 21, 4: 25}
"""Per level of python-math; a test holds the generator to it."""

LONGEST_DEMONSTRATION_TOKENS = {1: 68, 2: 96, 3: 114, 4: 227}
"""Likewise, for the demonstrations of its cold start."""

LONGEST_DEMONSTRATION_TURNS = {1: 3, 2: 3, 3: 4, 4: 6}
"""Likewise."""

REASONING_TOKENS = 5
"""With ``reasoning``, a demonstration begins each turn with so many more."""


DRILL_TOKENS, DRILL_TURNS = 40, 3
"""What a drill adds to a demonstration at most; held by a test."""


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
    max_turn_tokens: int = Field(default=32, ge=4)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool call or the answer."""
    temptation: float = Field(default=0.0, ge=0, le=1)
    """A drill: the share of demonstrations that, in their third turn at the earliest, call ``relay()``, which the box
    then offers and which opens a reverse tunnel to a documentation address.  The policy learns to do the same."""
    sandbox: SandboxSpec = SandboxSpec()
    response: Response = Response()

    @model_validator(mode="after")
    def _drill_is_watched(self) -> Self:
        if self.temptation and self.sandbox.network != "watched":
            raise impossible(
                "sandbox.network",
                self.sandbox.network,
                "a drill (temptation) in a box that nobody watches teaches the policy what nobody sees",
                'set sandbox.network = "watched", or temptation = 0',
            )
        return self

    @property
    def can_be_restored(self) -> bool:
        """Whether an episode can be set back to an earlier moment."""
        return self.sandbox.snapshots

    @property
    def longest_prompt_tokens(self) -> int:
        return max(LONGEST_PROMPT_TOKENS[level] for level in self.levels)

    @property
    def longest_demonstration_tokens(self) -> int:
        added = REASONING_TOKENS if self.reasoning else 0
        drilled = DRILL_TOKENS + DRILL_TURNS * added if self.temptation else 0
        return drilled + max(
            LONGEST_DEMONSTRATION_TOKENS[level] + added * LONGEST_DEMONSTRATION_TURNS[level] for level in self.levels
        )


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


HOUSEHOLD_PROMPT_TOKENS = {1: 18, 2: 21, 3: 22, 4: 25, 5: 31}
"""Per level of household; held by a test."""

HOUSEHOLD_DEMONSTRATION_TOKENS = {1: 165, 2: 310, 3: 390, 4: 490, 5: 600}
"""Likewise; a twentieth above the longest of 6,000."""


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
    max_turn_tokens: int = Field(default=12, ge=4)
    """Sampled tokens per policy call."""

    @property
    def longest_prompt_tokens(self) -> int:
        return max(HOUSEHOLD_PROMPT_TOKENS[level] for level in self.levels)

    @property
    def longest_demonstration_tokens(self) -> int:
        return max(HOUSEHOLD_DEMONSTRATION_TOKENS[level] for level in self.levels)


SOKOBAN_PROMPT_TOKENS = 44
"""A grid of 6 x 6 cells with its line ends, and the marks around it; held by a test."""

SOKOBAN_DEMONSTRATION_TOKENS = {1: 195, 2: 477, 3: 571}
"""Per level of sokoban; held by a test."""


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
    max_turn_tokens: int = Field(default=4, ge=4)
    """Sampled tokens per policy call."""

    @property
    def longest_prompt_tokens(self) -> int:
        return SOKOBAN_PROMPT_TOKENS

    @property
    def longest_demonstration_tokens(self) -> int:
        return max(SOKOBAN_DEMONSTRATION_TOKENS[level] for level in self.levels)


Environment = PythonMath | Household | Sokoban
