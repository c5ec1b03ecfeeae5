"""Environments: what a policy can be trained in, and what each of them offers to a recipe."""

from typing import Annotated, Literal

from pydantic import Field

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

EXAMPLE_QUESTIONS = {
    1: ("42*63=?", "623-161=?", "923+821=?"),
    2: ("(78+39)*(98-28)=?", "18*44+41*67=?", "(90+85)*57=?"),
    3: ("cell d*cell g+41=?", "cell d*cell a-57=?", "cell c*cell a+14=?"),
    4: ("cell d*cell f+cell a=?", "cell g*cell b-cell h=?", "cell a*cell d+cell b=?"),
}
"""Per level, the first training questions of the default dataset (of level 4: where it is the only one); likewise."""


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
    sandbox: SandboxSpec = SandboxSpec()

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
        return max(
            LONGEST_DEMONSTRATION_TOKENS[level] + added * LONGEST_DEMONSTRATION_TURNS[level] for level in self.levels
        )


HOUSEHOLD_PROMPT_TOKENS = {1: 18, 2: 21, 3: 22, 4: 25, 5: 31}
"""Per level of household; held by a test."""

HOUSEHOLD_DEMONSTRATION_TOKENS = {1: 165, 2: 310, 3: 390, 4: 490, 5: 600}
"""Likewise; a twentieth above the longest of 6,000."""


class Household(Strict):
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
    def sandbox(self) -> None:
        """It has none: this world runs inside the rollout worker."""
        return None

    @property
    def can_be_restored(self) -> bool:
        """Whether an episode can be set back to an earlier moment."""
        return True

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


class Sokoban(Strict):
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
    def sandbox(self) -> None:
        """It has none: this world runs inside the rollout worker."""
        return None

    @property
    def can_be_restored(self) -> bool:
        """Whether an episode can be set back to an earlier moment."""
        return True

    @property
    def longest_prompt_tokens(self) -> int:
        return SOKOBAN_PROMPT_TOKENS

    @property
    def longest_demonstration_tokens(self) -> int:
        return max(SOKOBAN_DEMONSTRATION_TOKENS[level] for level in self.levels)


Environment = PythonMath | Household | Sokoban
