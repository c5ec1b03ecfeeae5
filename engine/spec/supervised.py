"""The supervised stage before RL."""

from typing import Annotated

from pydantic import Field, StringConstraints

from engine.spec.strict import MOST_STEPS, MOST_THINGS, Strict

RelativePath = Annotated[str, StringConstraints(pattern=r"^\w[\w-]*(\.[\w-]+)*(/\w[\w-]*(\.[\w-]+)*)*$")]
"""Neither absolute nor upwards: no part begins with a dot."""


class ColdStart(Strict):
    """Supervised steps on demonstrations before RL.

    ``wrong_fraction`` of the scripted ones guess the answer without the tool.  A majority makes guessing
    the policy's most likely behaviour, which RL then has to change.
    """

    demonstrations: int = Field(default=12288, ge=1, le=MOST_THINGS)
    """Scripted ones.  Not used with ``recorded``."""
    wrong_fraction: float = Field(default=0.6, ge=0, le=1)
    """The share of demonstrations that answer without using the tool."""
    tool_error_fraction: float = Field(default=0.2, ge=0, le=1)
    """The share of the other demonstrations in which one tool call is broken and then repaired."""
    steps: int = Field(default=600, ge=0, le=MOST_STEPS)
    """0 leaves the cold start out."""
    batch_size: int = Field(default=64, ge=1, le=MOST_THINGS)
    """Demonstrations per supervised step."""
    learning_rate: float = Field(default=2e-3, gt=0, le=1)
    """Its peak: 5 % of the steps up to it, then half a cosine down to a tenth."""
    mask_errors: bool = False
    """Do not learn turns whose tool call failed: m_k = not Err(k) (ALE, eq. 1, 2)."""
    mask_irrelevant: bool = False
    """Do not learn redundant, near-duplicate, looping, pruned or compressing turns: Rel(k) (ALE, eq. 2)."""
    recorded: RelativePath | None = None
    """A file of recorded trajectories, one JSON document per line, to learn from instead of scripted ones.

    Relative to the data folder's ``trajectories``; of ``python -m engine train``, to the run file.
    """
