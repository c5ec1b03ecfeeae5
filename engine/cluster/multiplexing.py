"""Which GPUs train and which play rollouts, moment by moment: a policy without a clock, a thread or Ray.

    all play ──── a batch is ready, and the last move is long enough ago ───► a fixed subset trains, the others play
       ▲                                                                                      │
       └── the trainer is idle, and the next batch is far off or late ◄───────────────────────┘

Demand for rollouts is highest right after new weights and falls to a few stragglers; training comes in bursts.  So the
burst is laid into the valley (train-rollout multiplexing of ROLL, 2.1.4).  Two things keep it from flapping: no two
moves are closer than ``hold_s``, and the batch at which GPUs go back is smaller than the one at which they come.

What it promises, while it is asked at least every ``t`` seconds (tests/engine/cluster/test_multiplexing.py):

* between two moves lie ``hold_s`` or more;
* a batch that is ready waits for GPUs at most ``hold_s + t``;
* GPUs of an idle trainer without a batch play again after at most ``max(hold_s, patience_s) + t``;
* ``total - trainer`` GPUs play at any time.

Where all of them change sides (``trainer = total``) nobody plays while they train, so an idle trainer has nothing to be
patient for: ``patience_s`` must be 0.
"""

from dataclasses import dataclass
from typing import Literal

Move = Literal["shrink", "expand"]
"""What rollouts do: they give the trainer its GPUs, or take them back."""


@dataclass(frozen=True)
class Demand:
    """What there is to do at a moment, counted in trajectories."""

    at_s: float
    ready: int
    """Finished, and fresh enough to be trained on."""
    in_flight: int
    """Being played, those that wait for a place in a generator included."""
    training: bool
    """Whether the trainer is at work; it is never interrupted."""
    may_train: bool = True
    """Whether ``ready`` holds a batch that may be taken: it may not while a trajectory that must be in it is played."""


@dataclass(frozen=True)
class Multiplexing:
    """How GPUs are divided.  Raises ValueError for what cannot be divided so."""

    total: int
    trainer: int
    """GPUs that train, when any do."""
    batch: int
    """Trajectories of a training step."""
    hold_s: float = 5.0
    """Between two moves, at the least: several times what a move costs."""
    keep_at: float = 0.75
    """An idle trainer keeps its GPUs while this share of a batch is ready, and as much is in flight as it lacks."""
    patience_s: float = 10.0
    """It keeps them so long, and no longer."""

    def __post_init__(self) -> None:
        most = self.total if self.patience_s == 0 else self.total - 1
        if not 0 < self.trainer <= most:
            raise ValueError(
                f"trainer = {self.trainer} of {self.total} GPUs: at least one must train, and one play while a trainer"
                f" is idle for patience_s = {self.patience_s}; use 1 to {most}, or patience_s = 0"
            )
        if self.batch < 1:
            raise ValueError(f"batch = {self.batch}: a step trains on something; use at least 1")
        if min(self.hold_s, self.patience_s) < 0 or not 0 < self.keep_at <= 1:
            raise ValueError(
                f"hold_s = {self.hold_s}, patience_s = {self.patience_s}, keep_at = {self.keep_at}: "
                "use times of 0 or more, and a share above 0 and up to 1"
            )


class Multiplexer:
    """Follows what was decided so far.  In the beginning all GPUs play."""

    def __init__(self, settings: Multiplexing, *, at_s: float = 0.0) -> None:
        self._settings = settings
        self._shrunk = False
        self._moved_s = at_s - settings.hold_s
        self._idle_since_s: float | None = None

    @property
    def rollout_gpus(self) -> int:
        return self._settings.total - self.trainer_gpus

    @property
    def trainer_gpus(self) -> int:
        """0 while all play."""
        return self._settings.trainer if self._shrunk else 0

    def next_look_s(self, demand: Demand) -> float | None:
        """When to ask again if nothing happens before; None: not before something happens."""
        if self._shrunk and not demand.training and self._idle_since_s is not None:
            return max(self._moved_s + self._settings.hold_s, self._idle_since_s + self._settings.patience_s)
        if not self._shrunk and self._batch_is_ready(demand):
            return self._moved_s + self._settings.hold_s
        return None

    def decide(self, demand: Demand) -> Move | None:
        """What changes now.  Moments must not go backwards."""
        self._note_idleness(demand)
        if demand.at_s < self._moved_s + self._settings.hold_s:
            return None
        if not self._shrunk and self._batch_is_ready(demand):
            return self._moved("shrink", demand)
        if self._shrunk and self._is_wanted_back(demand):
            return self._moved("expand", demand)
        return None

    def expand_now(self, at_s: float) -> None:
        """Rollouts take their GPUs back, whatever the policy would say: the trainer is not going to work."""
        if self._shrunk:
            self._shrunk, self._moved_s, self._idle_since_s = False, at_s, None

    def _note_idleness(self, demand: Demand) -> None:
        is_idle = self._shrunk and not demand.training and not self._batch_is_ready(demand)
        if not is_idle:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = demand.at_s

    def _batch_is_ready(self, demand: Demand) -> bool:
        return demand.may_train and demand.ready >= self._settings.batch

    def _is_wanted_back(self, demand: Demand) -> bool:
        if self._idle_since_s is None:
            return False
        lacking = self._settings.batch - demand.ready
        is_near = demand.ready >= self._settings.keep_at * self._settings.batch and demand.in_flight >= lacking
        return not is_near or demand.at_s >= self._idle_since_s + self._settings.patience_s

    def _moved(self, move: Move, demand: Demand) -> Move:
        self._shrunk = move == "shrink"
        self._moved_s = demand.at_s
        self._idle_since_s = None
        return move
