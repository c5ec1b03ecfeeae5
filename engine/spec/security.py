"""What a run says, and hears, about its sandboxes: who did it, what happens then, what a reviewer decided."""

from typing import Annotated, Literal, Self

from pydantic import Field

from engine.spec.strict import Strict

QUARANTINED = "quarantined"
"""``Trajectory.masked_because`` until a reviewer has decided that it was benign."""


class Origin(Strict):
    """An origin is the turn of a trajectory whose tool call ran at that moment."""

    trajectory: str
    turn: int = Field(ge=0)
    """Counted as in ``Trajectory.turns``."""


MOST_TURN_CHARACTERS = 4000
"""This bounds each text of a ``TurnText``."""


class TurnText(Strict):
    """A turn that raised an alert, as far as it has come: its trajectory is known only when its step is over."""

    wrote: str = Field(max_length=MOST_TURN_CHARACTERS)
    """All that the policy wrote."""
    call: str = Field(max_length=MOST_TURN_CHARACTERS)
    """What the tool was asked to run."""
    output: str | None = Field(default=None, max_length=MOST_TURN_CHARACTERS)
    """What the tool answered; None while the call is under way."""
    error_class: str | None = Field(default=None, max_length=40)
    """It has the values of ``ToolCall.error_class``."""

    @classmethod
    def cut(cls, *, wrote: str, call: str, output: str | None = None, error_class: str | None = None) -> Self:
        """Texts that are too long lose their ends, and say so."""
        return cls(
            wrote=_cut(wrote), call=_cut(call), output=None if output is None else _cut(output), error_class=error_class
        )


def _cut(text: str) -> str:
    if len(text) <= MOST_TURN_CHARACTERS:
        return text
    mark = f"\n[cut: {len(text)} characters]"
    return text[: MOST_TURN_CHARACTERS - len(mark)] + mark


class Response(Strict):
    """What happens when a sandbox does something alarming."""

    quarantine: Literal["critical", "warning", "never"] = "critical"
    """From which severity on the sandbox is frozen, the episode ends, and its trajectory is kept out of training until
    a reviewer has decided.  Every alert is reported, whatever stands here."""
    pause: bool = False
    """Whether the run pauses as well.  A person resumes it."""
    keep_frozen_s: float = Field(default=300.0, ge=0, le=86400)
    """How long a frozen sandbox is kept for inspection, in seconds."""
    release_within_steps: int = Field(default=8, ge=0, le=1000)
    """A trajectory that is found benign is trained on if at most so many updates happened since it was sampled; a
    later review decision comes too late for training and is reported."""
    without: list[str] = []
    """Ids of rules that this environment does not want."""
    uploads: list[Annotated[str, Field(min_length=1, max_length=255)]] = []
    """Host names to which much may be sent."""
    protected: list[Annotated[str, Field(min_length=1, max_length=200)]] = []
    """Patterns of paths that judge the agent, beside those that every environment protects."""


ReviewVerdict = Literal["benign", "malicious"]


class ReviewDecision(Strict):
    """What a reviewer said about a quarantined trajectory.  A later review decision about the same one replaces it."""

    number: int = Field(ge=1)
    """1, 2, 3 ... within the run."""
    trajectory: str
    verdict: ReviewVerdict


SettledAs = Literal["trained-on", "masked", "incomparable", "too-late", "discarded"]
"""What became of a quarantined trajectory in training.

``trained-on``: found benign, and part of an update; ``masked``: found benign, and another reason kept it out of
that update; ``incomparable``: found benign, and too few of its group are left to compare it with; ``too-late``: decided
benign after more updates than ``Response.release_within_steps``; ``discarded``: not decided on until then, so that no
review decision brings it back."""
