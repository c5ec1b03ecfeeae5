"""What a run says, and hears, about its sandboxes: who did it, what happens then, what a reviewer ruled."""

from typing import Annotated, Literal

from pydantic import Field

from engine.spec.strict import Strict

QUARANTINED = "quarantined"
"""``Trajectory.masked_because`` until a reviewer has ruled that it was benign."""


class Place(Strict):
    """Whose doing it was: the turn of a trajectory, whose tool call ran at that moment."""

    trajectory: str
    turn: int = Field(ge=0)
    """Counted as in ``Trajectory.turns``."""


class Response(Strict):
    """What happens when a sandbox does something alarming."""

    quarantine: Literal["critical", "warning", "never"] = "critical"
    """From which severity on the box is frozen, the episode ends, and its trajectory is kept out of training until a
    reviewer has ruled.  Every alert is told, whatever stands here."""
    pause: bool = False
    """Whether the run pauses as well.  A person resumes it."""
    keep_frozen_s: float = Field(default=300.0, ge=0, le=86400)
    """How long a frozen box is kept for inspection, in seconds."""
    release_within_steps: int = Field(default=8, ge=0, le=1000)
    """A trajectory that is ruled benign is trained on if at most so many updates happened since it was sampled; a
    later ruling comes too late for training and is told."""
    without: list[str] = []
    """Ids of rules that this environment does not want."""
    uploads: list[Annotated[str, Field(min_length=1, max_length=255)]] = []
    """Host names to which much may be sent."""
    protected: list[Annotated[str, Field(min_length=1, max_length=200)]] = []
    """Patterns of paths that judge the agent, beside those that every environment protects."""


Verdict = Literal["benign", "malicious"]


class Ruling(Strict):
    """What a reviewer said about a quarantined trajectory.  A later ruling about the same one replaces it."""

    number: int = Field(ge=1)
    """1, 2, 3 ... within the run."""
    trajectory: str
    verdict: Verdict
