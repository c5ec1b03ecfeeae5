"""How strongly a token is coloured, and by what.  The page has a colour for each class name made here."""

import math
from dataclasses import dataclass

from engine.spec.trajectory import Turn

COLOURS = {"advantage": "Advantage", "logprob": "Log-prob", "ratio": "Ratio", "none": "None"}
ADVANTAGE_STEP = 0.4
"""Advantages are shaded in five steps to each side, the last one from 1.8 on."""
LOGPROB_EDGES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""The edges of -log p in nats: 0.05 is a token that was nearly certain, 2 one that was a surprise."""
RATIO_EDGES = (0.001, 0.01, 0.05, 0.1, 0.2)
"""The edges of |log(p_trainer / p_sampler)|: how far trainer and sampler disagree about the same token."""


@dataclass(frozen=True)
class Token:
    text: str
    id: int
    logprob: float
    old_logprob: float | None
    advantage: float | None
    version: int

    @property
    def ratio(self) -> float | None:
        """p under the trainer / p when it was sampled."""
        return None if self.old_logprob is None else math.exp(min(50.0, self.old_logprob - self.logprob))

    @property
    def shown(self) -> str:
        """A line break needs a sign of its own to be pointed at."""
        return self.text.replace("\n", "↵\n")

    @property
    def is_special(self) -> bool:
        return len(self.text) > 2 and self.text.startswith("<") and self.text.endswith(">")

    @property
    def classes(self) -> str:
        names = [f"l{_above(LOGPROB_EDGES, -self.logprob)}"]
        if self.advantage is not None:
            depth = min(5, round(abs(self.advantage) / ADVANTAGE_STEP) or (self.advantage != 0))
            names.append(f"a{'p' if self.advantage > 0 else 'n'}{depth}" if depth else "a0")
        if self.old_logprob is not None:
            names.append(f"r{_above(RATIO_EDGES, abs(self.old_logprob - self.logprob))}")
        return " ".join(names + ["special"] * self.is_special)


def _above(edges: tuple[float, ...], value: float) -> int:
    return sum(value >= edge for edge in edges)


def tokens_of(turn: Turn) -> list[Token]:
    """Lists that are absent or shorter than the tokens leave their value unknown."""
    count = len(turn.token_ids)
    unknown: list[float | None] = [None] * count
    old = [*(turn.old_logprobs or []), *unknown][:count]
    advantages = [*(turn.advantages or []), *unknown][:count]
    return [
        Token(*values)
        for values in zip(
            turn.pieces, turn.token_ids, turn.logprobs, old, advantages, turn.policy_versions, strict=False
        )
    ]
