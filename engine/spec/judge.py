"""Who judges the turns of a trajectory."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from engine.spec.strict import MOST_THINGS, Strict

HTTP_ADDRESS = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!\"$->@-~]*)?$"
"""A name or a number, a port, and a path of printable ASCII without ? and #."""


InFailures = Literal["contribution", "correction"]


class RuleJudge(Strict):
    """The environment's own rules, which know the truth; no model, no cost, no error."""

    kind: Literal["rules"] = "rules"


class ChatEndpoint(Strict):
    """A language model behind any OpenAI-compatible endpoint."""

    endpoint: Annotated[str, StringConstraints(pattern=HTTP_ADDRESS)]
    """Base address, e.g. ``http://127.0.0.1:30000/v1``; without a user, because it is told in messages."""
    model: str = Field(min_length=1)
    """The model's name there."""
    api_key_variable: Annotated[str, StringConstraints(pattern=r"^PALESTRA_JUDGE_[A-Z0-9_]+$")] | None = None
    """Environment variable of the engine that holds the key.  Only names that begin with PALESTRA_JUDGE_ are read."""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """It bounds one request."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    """Requests at once."""
    retries: int = Field(default=3, ge=0, le=20)
    """Further tries after a failed one, with growing pauses."""
    max_tokens: int = Field(default=1024, ge=16, le=MOST_THINGS)
    """Room for the judge's own words."""


class LlmJudge(ChatEndpoint):
    """A language model behind any OpenAI-compatible endpoint; one call per trajectory (AgentEvolver, 5.2).

    After the last try that fails the group's verdicts are neutral.
    """

    kind: Literal["llm"] = "llm"
    in_failures: InFailures = "contribution"
    """What earns GOOD in a trajectory whose reward is 0 or less.  ``contribution``: whatever brought the solution
    nearer, as in a success.  ``correction``: only what corrected or mitigated an error (AgentEvolver, figure 8)."""


Judge = RuleJudge | LlmJudge
