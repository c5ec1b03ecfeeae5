"""One token per row from logits and uniforms.  Shapes: S slots, B rows of a block of them, V vocabulary."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.algorithms.truncation import lowest_kept, without_the_cut
from engine.spec.generation import NO_TRUNCATION, GenerateRequest


def turn_uniforms(seed: int, count: int) -> np.ndarray:
    """The draws in [0, 1) of one turn: number n belongs to its n-th token, whatever happens around it."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


NOT_FORCED = -1


class Draws:
    """How the next token of each slot is drawn.  Slots that nobody has set give a token that means nothing."""

    def __init__(self, slots: int) -> None:
        self.temperature_S, self.uniform_S = np.ones(slots, dtype=np.float32), np.zeros(slots)
        self.logprob_temperature_S = np.ones(slots, dtype=np.float32)
        self.forced_S = np.full(slots, NOT_FORCED)
        self.top_k_S, self.top_p_S, self.min_p_S = np.zeros(slots, dtype=np.int64), np.ones(slots), np.zeros(slots)
        self.logprobs_truncated_S = np.zeros(slots, dtype=np.bool_)
        self._forces = self._truncates = self._heats = self._logprobs_heat = self._takes_likeliest = False
        """Whether any slot has its token given, truncates, has another temperature than 1, or one of 0."""

    def put(self, slot: int, request: GenerateRequest, *, uniform: float, forced: int) -> None:
        """``forced`` is the token to take, or NOT_FORCED."""
        self.uniform_S[slot] = uniform
        if request.temperature != 1:
            self._heats = True
            self._takes_likeliest |= request.temperature == 0
            self.temperature_S[slot] = request.temperature
        if request.logprob_temperature != 1:
            self._logprobs_heat = True
            self.logprob_temperature_S[slot] = request.logprob_temperature
        if forced != NOT_FORCED:
            self._forces = True
            self.forced_S[slot] = forced
        truncation = request.truncation
        if truncation is not NO_TRUNCATION and truncation != NO_TRUNCATION:
            self._truncates = True
            self.top_k_S[slot], self.top_p_S[slot] = truncation.top_k, truncation.top_p
            self.min_p_S[slot] = truncation.min_p
            self.logprobs_truncated_S[slot] = request.logprobs_truncated

    def block(self, rows: slice, device: torch.device) -> "BlockDraws":
        """What these rows ask for; what none of them asks for is left out, which changes no bit."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[rows]).to(device)

        truncates = self._truncates and bool(
            self.top_k_S[rows].any() or (self.top_p_S[rows] < 1).any() or self.min_p_S[rows].any()
        )
        return BlockDraws(
            uniform_B=tensor(self.uniform_S),
            temperature_B=tensor(self.temperature_S) if self._heats else None,
            logprob_temperature_B=tensor(self.logprob_temperature_S) if self._logprobs_heat else None,
            forced_B=tensor(self.forced_S) if self._forces else None,
            takes_likeliest=self._takes_likeliest,
            truncation=BlockTruncation(
                *map(tensor, (self.top_k_S, self.top_p_S, self.min_p_S, self.logprobs_truncated_S))
            )
            if truncates
            else None,
        )


@dataclass(frozen=True, slots=True)
class BlockTruncation:
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    logprobs_B: Tensor
    """Whether a row's log-prob is that of what is kept."""


@dataclass(frozen=True, slots=True)
class BlockDraws:
    uniform_B: Tensor
    temperature_B: Tensor | None
    """This and the next one are None where all rows have a temperature of 1."""
    logprob_temperature_B: Tensor | None
    forced_B: Tensor | None
    """None where every token is drawn."""
    takes_likeliest: bool
    """Whether a row may have a temperature of 0."""
    truncation: BlockTruncation | None
    """None where no row truncates."""


def sample(logits_BV: Tensor, draws: BlockDraws) -> tuple[Tensor, Tensor]:
    """Token ids [B] and their log-probs [B], of softmax(logits / ``logprob_temperature``), truncated where asked for.

    A temperature of 0 takes the likeliest token.  Otherwise the token is where the cumulative
    softmax(logits / temperature), over what is kept, first exceeds the uniform: what has probability 0 is never drawn.
    Where ``forced_B`` is a token, that one is taken.  A row whose logits are not finite gets a log-prob of NaN.
    """
    scaled_BV = logits_BV
    if draws.temperature_B is not None:
        scaled_BV = logits_BV / torch.where(draws.temperature_B == 0, 1.0, draws.temperature_B).unsqueeze(1)
    probs_BV, floor_B1 = torch.softmax(scaled_BV, dim=-1), None
    if (truncation := draws.truncation) is not None:
        floor_B1 = lowest_kept(scaled_BV, truncation.top_k_B, truncation.top_p_B, truncation.min_p_B)
        probs_BV = probs_BV.masked_fill(scaled_BV < floor_B1, 0.0)
    cumulative_BV = probs_BV.double().cumsum(-1)
    # u < 1 in float64 keeps u * total below total, so the search always ends at a token.
    threshold_B1 = (draws.uniform_B * cumulative_BV[:, -1]).unsqueeze(1)
    drawn_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True).squeeze(1)
    del probs_BV, cumulative_BV
    # Only a row of NaN finds no token; any will do, for its log-prob is NaN.
    token_B = drawn_B.clamp(max=logits_BV.shape[-1] - 1)
    if draws.takes_likeliest and draws.temperature_B is not None:
        token_B = torch.where(draws.temperature_B == 0, logits_BV.argmax(-1), token_B)
    if draws.forced_B is not None:
        token_B = torch.where(draws.forced_B == NOT_FORCED, token_B, draws.forced_B)
    at_BV = logits_BV
    if draws.logprob_temperature_B is not None:
        at_BV = logits_BV / draws.logprob_temperature_B.unsqueeze(1)
    if truncation is not None and floor_B1 is not None:
        cut_BV = without_the_cut(at_BV, floor_B1, token_B)
        at_BV = torch.where(truncation.logprobs_B.unsqueeze(1), cut_BV, at_BV)
    logp_BV = torch.log_softmax(at_BV, dim=-1)
    return token_B, logp_BV.gather(1, token_B.unsqueeze(1)).squeeze(1)
