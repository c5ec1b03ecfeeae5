"""What a benchmark measured, and what may be concluded from it.

One *run* is one fresh process: warm-up steps that nobody counts, then timed steps.  A *pair* is a
run of Palestra and the run of the peer right after it.  Machines drift, so only ratios inside a
pair are compared; they are given as median, minimum and maximum over the pairs.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.workload import Setting

PHASES = ("rollout", "score", "update")


@dataclass(frozen=True)
class Step:
    """One batch: rollouts, their scoring and credit, one or more updates.  Times in seconds."""

    seconds: float
    """From the end of the step before to the end of this one: nothing in between is left out."""
    rollout: float
    """Sampling and tools."""
    score: float
    """Rewards, advantages, and log-probs under the policy before the update."""
    update: float
    """Loss, gradients, optimizer, and handing the new weights to the sampler."""
    cpu: float
    """Processor time of the process in all its threads and of its decoders, its sandboxes left out.  Says little about
    waiting, but a busy machine disturbs it less than the clock."""
    trajectories: int
    turns: int
    sampled_tokens: int
    purified: int = 0
    """Failed calls that SAAR dealt with."""
    replayed: int = 0
    """Trajectories that self-imitation put into the updates once more."""


@dataclass(frozen=True)
class Run:
    """What one process reports."""

    subject: str
    steps: list[Step]
    """The timed ones."""
    versions: dict[str, str]
    threads: int
    others_share: float = 0.0
    """The share of the time of the cores that the run was pinned to: what went to anybody else's processes."""

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def trajectories_per_s(self) -> float:
        return sum(step.trajectories for step in self.steps) / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return sum(step.sampled_tokens for step in self.steps) / self.seconds

    @property
    def tokens_per_trajectory(self) -> float:
        return sum(step.sampled_tokens for step in self.steps) / sum(step.trajectories for step in self.steps)

    @property
    def turns_per_trajectory(self) -> float:
        return sum(step.turns for step in self.steps) / sum(step.trajectories for step in self.steps)

    def shares(self) -> dict[str, float]:
        """Return the shares of the whole time, per phase; ``other`` is what no phase claims (data loading, logging,
        ...)."""
        shares = {phase: sum(getattr(step, phase) for step in self.steps) / self.seconds for phase in PHASES}
        return shares | {"other": 1.0 - sum(shares.values())}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Run":
        content = json.loads(path.read_text())
        return cls(**content | {"steps": [Step(**step) for step in content["steps"]]})


@dataclass(frozen=True)
class Comparison:
    """All pairs of one setting.  ``ours[i]`` and ``theirs[i]`` ran one after the other."""

    setting: Setting
    ours: list[Run]
    theirs: list[Run]
    set_aside: list[tuple[Run, Run]] = field(default_factory=list)
    """Pairs that other processes disturbed, measured again and left out; their outcome had no part in that."""

    def ratios(self) -> list[float]:
        """Our trajectories per second over theirs, pair by pair; above 1 we are faster."""
        return [
            mine.trajectories_per_s / peer.trajectories_per_s for mine, peer in zip(self.ours, self.theirs, strict=True)
        ]

    def cost_ratios(self, part: str) -> list[float]:
        """Their seconds per trajectory in ``part`` (a phase, or ``cpu``) over ours, pair by pair."""
        return [
            seconds_per_trajectory(peer, part) / seconds_per_trajectory(mine, part)
            for mine, peer in zip(self.ours, self.theirs, strict=True)
        ]

    def others_share(self) -> float:
        """Return that of the run that was disturbed the most."""
        return max(run.others_share for run in [*self.ours, *self.theirs])


def seconds_per_trajectory(run: Run, part: str) -> float:
    seconds: float = sum(getattr(step, part) for step in run.steps)
    return seconds / sum(step.trajectories for step in run.steps)
