"""What an episode asks of the policy, and what it gets back.

Rollouts and generators may not import each other; this is the language between them.  Token ids
only: text is for people, and nothing here is ever tokenised a second time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which tokens may be sampled at all: top-k, then top-p of what that leaves, then min-p, all after the temperature.

    ``engine/algorithms/truncation.py`` defines them to the last token.  Raises ValueError for what makes no sense.
    """

    top_k: int = 0
    """The so many likeliest; 0: all."""
    top_p: float = 1.0
    """The smallest set of likeliest tokens whose probability reaches it; 1: all."""
    min_p: float = 0.0
    """Those at least so many times as likely as the likeliest; 0: all."""

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k}: must be 0 (off) or greater")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}: must be greater than 0 and at most 1 (off)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p = {self.min_p}: must be from 0 (off) to 1")


NO_TRUNCATION = Truncation()


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution whose log-probs are taken: softmax(logits / ``temperature``), brought to a sum of 1 over what is
    kept."""

    temperature: float = 1.0
    truncation: Truncation = NO_TRUNCATION


MODELS_OWN = Distribution()
"""What the model says, at temperature 1 and over the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn of one session.

    A *session* is one episode's place in the KV cache.  ``new_ids`` are the tokens that the policy
    has not seen yet in this session (the prompt, or the tool's output); everything before them is
    already in the cache.
    """

    session: str
    new_ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: frozenset[int]
    temperature: float
    """0 means greedy."""
    seed: int
    """Draws of this turn depend on this number and nothing else, so neither batch order nor timing changes them."""
    forced_ids: tuple[int, ...] = ()
    """Where given, nothing is sampled: these follow ``new_ids`` as if they had been, and the answer is they, with the
    log-prob that each has here.  ``max_new_tokens`` and ``stop_ids`` then mean nothing."""
    logprob_temperature: float = 1.0
    """At which the log-probs of the answer are taken, whatever ``temperature`` is."""
    truncation: Truncation = NO_TRUNCATION
    """The truncation of the distribution at ``temperature``; it changes nothing of a greedy turn."""
    logprobs_truncated: bool = False
    """Whether log-probs are those of what ``truncation`` keeps, brought to a sum of 1, and not of the whole vocabulary.
    With ``logprob_temperature`` equal to ``temperature``, as it then must be, they are those of the very distribution
    that is sampled from.  A forced token that would have been cut counts as kept."""
    drawn: int = 0
    """So many of the draws of ``seed`` this turn has used already, in a generator that it had to leave; those tokens
    are the last of ``new_ids``."""
    continues: bool = False
    """Whether the session must be known: UnknownSession else.  So asks who can tell another generator the whole of
    it."""


class UnknownSession(ValueError):
    """The generator knows no such session, or no longer."""


class TurnMoved(Exception):
    """The generator gives its place to others: the turn goes on elsewhere, after what it has sampled here.

    Only who asked several generators for one place sees it (engine/cluster/generator_fleet.py).
    """

    def __init__(
        self,
        token_ids: tuple[int, ...],
        logprobs: tuple[float, ...],
        policy_versions: tuple[int, ...],
        is_vacant: bool,
    ) -> None:
        """``is_vacant``: the generator takes no turn at present; else it only had no slot for this one."""
        super().__init__(token_ids, logprobs, policy_versions, is_vacant)
        self.token_ids, self.logprobs, self.policy_versions = token_ids, logprobs, policy_versions
        self.is_vacant = is_vacant


@dataclass(frozen=True, slots=True)
class Generated:
    """The sampled tokens (the stop token included) with the log-prob that each had when it was sampled.

    Log-probs are those of the distribution at the request's ``logprob_temperature``, truncated if it says so, in nats.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    """The policy version that sampled each token."""
    stopped_by: Literal["stop", "length", "context"]
    """A stop token; ``max_new_tokens`` reached; or the session's context is full."""
    began_at: float | None = None
    """When an episode asked for it, in Unix seconds by the clock of its process.  None: no episode did."""
    seconds: float | None = None
    """How long the episode waited for it, queues and exchanges of weights included; None where ``began_at`` is."""


class TextGenerator(Protocol):
    """The part of a generator (engine/inference/interface.py) that an episode sees.

    So look a generator and a rollout worker's way to one in another process.
    """

    async def generate(self, request: GenerateRequest) -> Generated: ...

    async def rewind(self, session: str, tokens: int) -> None:
        """Forget all but the first ``tokens`` tokens of the session, keeping their place in the KV cache.

        The session must have no turn pending.  Raises UnknownSession, and ValueError if it has fewer tokens.
        """
        ...

    async def release(self, session: str) -> None:
        """Give the session's KV slot back.  Releasing an unknown session is fine."""
        ...


OnToken = Callable[[int, float], None]
"""Called with each sampled token and its log-prob, in order, on the event loop of whoever asked."""


@runtime_checkable
class StreamingGenerator(Protocol):
    """A generator that tells tokens as it samples them, to a person who reads along."""

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        """``generate``; every token has been told when this returns."""
        ...
