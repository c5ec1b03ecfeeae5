"""Who judges the turns of a trajectory."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from engine.spec.impossible import impossible
from engine.spec.server_url import server_at
from engine.spec.strict import MOST_THINGS, Strict

HTTP_ADDRESS = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!\"$->@-~]*)?$"
"""A name or a number, a port, and a path of printable ASCII without ? and #."""

OF_THE_RUN = "resources.judge"
"""In place of an address: the servers that the run starts for its judge."""


def _has_a_server(endpoint: str) -> str:
    try:
        if endpoint != OF_THE_RUN:
            server_at(endpoint)
    except ValueError as error:
        remedy = "give it as http://host:port, with a path if it has one"
        raise impossible("", endpoint, f"is no address of an endpoint: it {error}", remedy) from None
    return endpoint


Endpoint = Annotated[
    str, StringConstraints(pattern=rf"^resources\.judge$|{HTTP_ADDRESS}"), AfterValidator(_has_a_server)
]
InFailures = Literal["contribution", "correction"]


class RuleJudge(Strict):
    """The environment's own rules, which know the truth; no model, no cost, no error."""

    kind: Literal["rules"] = "rules"


class ChatEndpoint(Strict):
    """A language model behind any OpenAI-compatible endpoint."""

    endpoint: Endpoint
    """Base address, e.g. ``http://127.0.0.1:30000/v1``; without a user, because it is told in messages.  Or
    ``resources.judge``: the servers that the run starts for it."""
    model: str = Field(min_length=1)
    """The model's name there; any, of ``resources.judge``."""
    api_key_variable: Annotated[str, StringConstraints(pattern=r"^PALESTRA_JUDGE_[A-Z0-9_]+$")] | None = None
    """Environment variable of the engine that holds the key, as ``URL=KEY`` with spaces between: it is sent to its own
    address alone.  (A key without an address is for the command line.)  Only names that begin with PALESTRA_JUDGE_ are
    read."""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """It bounds one request; waiting for servers of ``resources.judge`` that start again is not among it."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    """Requests at once."""
    retries: int = Field(default=3, ge=0, le=20)
    """Further tries after a failed one, with growing pauses."""
    max_tokens: int = Field(default=1024, ge=16, le=MOST_THINGS)
    """Room for the judge's own words."""

    @property
    def is_of_the_run(self) -> bool:
        """Return whether the run starts who is asked."""
        return self.endpoint == OF_THE_RUN


class LlmJudge(ChatEndpoint):
    """A language model behind any OpenAI-compatible endpoint; one call per trajectory (AgentEvolver, 5.2).

    After the last try that fails the group's verdicts are neutral.
    """

    kind: Literal["llm"] = "llm"
    in_failures: InFailures = "contribution"
    """What earns GOOD in a trajectory whose reward is 0 or less.  ``contribution``: whatever brought the solution
    nearer, as in a success.  ``correction``: only what corrected or mitigated an error (AgentEvolver, figure 8)."""


Judge = RuleJudge | LlmJudge
