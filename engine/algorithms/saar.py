"""Similarity-Aware Adaptive Rollback: how a failed tool call and its correction become one clean turn.

CLEANER, section 4.  Token ids in, token ids out: nothing is tokenised again, and no torch is needed, so
that a rollout worker can use it.  Sampling corrections, running them and undoing them is the episode's work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import blake2b
from typing import Literal

Repair = Literal["shallow", "deep"]


@dataclass(frozen=True)
class SampledTurn:
    """A turn as sampled: its reasoning, then from ``call_at`` on the tool call with its markers."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Given the context in which it was sampled."""
    call_at: int

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids) or not 0 <= self.call_at < len(self.token_ids):
            raise ValueError("a turn has a log-prob for each token and a call that begins inside it")


@dataclass(frozen=True)
class PurifiedTurn:
    """The turn that takes the place of the failed one and of all attempts to repair it."""

    token_ids: list[int]
    logprobs: list[float | None]
    """None where the token was sampled in another context than the one it now has: to be recomputed under
    the purified prefix before any ratio is formed."""
    removed_ids: list[int]
    """Tokens of the failed turn that are no longer there."""
    repair: Repair
    similarity: float


def similarity(failed_code: str, corrected_code: str) -> float:
    """Sim(c_t, c'_t) in [0, 1], difflib's ratio with its defaults as in the paper (4.2); not symmetric."""
    return SequenceMatcher(None, failed_code, corrected_code).ratio()


def repair_for(similarity: float, *, threshold: float = 0.5) -> Repair:
    """Shallow where Sim >= gamma: the reasoning was sound and the code was not.  Deep otherwise (4.2)."""
    return "shallow" if similarity >= threshold else "deep"


def purified_turn(
    failed: SampledTurn, correction: SampledTurn, *, similarity: float, threshold: float = 0.5
) -> PurifiedTurn:
    """(r_final, c'_t): the failed turn's reasoning (shallow) or the correction's (deep), then its call (eq. 7).

    ``failed`` is the turn that was sampled at h_t, also when a later attempt brought the correction.  Of the
    log-probs only those of a kept reasoning still hold: its context is h_t as before.
    """
    repair = repair_for(similarity, threshold=threshold)
    kept = failed.call_at if repair == "shallow" else 0
    grafted = list(correction.token_ids[correction.call_at if repair == "shallow" else 0 :])
    return PurifiedTurn(
        token_ids=[*failed.token_ids[:kept], *grafted],
        logprobs=[*failed.logprobs[:kept], *[None] * len(grafted)],
        removed_ids=list(failed.token_ids[kept:]),
        repair=repair,
        similarity=similarity,
    )


def purifies(seed: int, *, rho: float) -> bool:
    """Return whether SAAR works on the trajectory with this seed: with probability rho, the same each time (4.3).

    rho 1 is always and rho 0 never.  The draw is a hash of the seed, independent of what sampling draws from it.
    """
    digest = blake2b(str(seed).encode(), digest_size=8, person=b"saar-mixing").digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53 < rho
