"""SPEAR's two buffers: what the policy earned lately, and its own good trajectories.  Plain data: no torch.

SPEAR, section 4.2 and algorithm 1.  ``state()`` is what a checkpoint keeps; ``load`` continues from it as if
nothing had happened.  A replayed payload is handed back as it was given.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, Generic, TypeVar

Payload = TypeVar("Payload")


class BaselineBuffer:
    """D_R: the mean rewards of the latest ``capacity`` groups, first in, first out."""

    def __init__(self, capacity: int) -> None:
        self._means: deque[float] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._means)

    def push(self, group_means: Iterable[float]) -> None:
        self._means.extend(group_means)

    def median(self) -> float | None:
        """P50 (of an even number: halfway between the middle two); None while empty."""
        return median(self._means) if self._means else None

    def state(self) -> list[float]:
        return list(self._means)

    def load(self, state: list[float]) -> None:
        """Take over a state; of one longer than the capacity the latest entries remain."""
        self._means = deque(state, maxlen=self._means.maxlen)


@dataclass(frozen=True)
class Replayed(Generic[Payload]):
    """A trajectory worth imitating, with what it earned when it was sampled."""

    payload: Payload
    """The trajectory with its behaviour log-probs; this module never looks inside."""
    reward: float
    advantage: float
    """A, relative to its own group."""
    step: int


class ReplayBuffer(Generic[Payload]):
    """D: trajectories with A > 0, collected until there are ``capacity`` of them and then used at once.

    The step that fills it may overfill it: what was sampled together is used together.
    Capacity 0 is off: nothing is kept and it is never full.
    """

    def __init__(self, capacity: int, *, max_age_steps: int = 10) -> None:
        self._capacity = capacity
        self._max_age_steps = max_age_steps
        self._entries: list[Replayed[Payload]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        return 0 < self._capacity <= len(self._entries)

    def push(self, entries: Iterable[Replayed[Payload]], *, step: int) -> None:
        """Add those with A > 0 and let go of those that are too old."""
        if self._capacity:
            self._entries.extend(entry for entry in entries if entry.advantage > 0)
        self.let_go(step=step)

    def let_go(self, *, step: int) -> None:
        """Let go of those that were sampled more than ``max_age_steps`` before ``step``."""
        self._entries = [entry for entry in self._entries if step - entry.step <= self._max_age_steps]

    def take(self) -> list[Replayed[Payload]]:
        """Everything, in the order of arrival; the buffer is empty afterwards."""
        taken, self._entries = self._entries, []
        return taken

    def state(self) -> list[dict[str, Any]]:
        return [
            {"payload": entry.payload, "reward": entry.reward, "advantage": entry.advantage, "step": entry.step}
            for entry in self._entries
        ]

    def load(self, state: list[dict[str, Any]]) -> None:
        self._entries = [Replayed(**entry) for entry in state]


def recalibrated(entries: Iterable[Replayed[Payload]], baseline: float | None) -> list[tuple[Replayed[Payload], float]]:
    """The entries with A > 0 and A~ = R - P50(D_R) > 0, each with its A~ (eq. 2, 3).

    Without a baseline, which is a baseline buffer of size 0, A~ is A.
    """
    scored = [(entry, entry.advantage if baseline is None else entry.reward - baseline) for entry in entries]
    return [(entry, advantage) for entry, advantage in scored if entry.advantage > 0 and advantage > 0]
