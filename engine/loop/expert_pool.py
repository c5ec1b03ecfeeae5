"""Experts: trajectories that succeeded, inside which rollouts may begin (IPA; ALE, 3.2.4.4).

An expert is the policy's own latest success on a task or, where it has none, a teacher's (teacher.py) or the
environment's scripted solution.  A *prefix* of f means that its first f turns are replayed and the policy plays
the rest.  What is known of each task is kept in the run's state, so that a resumed run plans as an
unbroken one would: no draw, no clock.

Successes are tallied by what was replayed, not by how long it was: a new expert that begins like
the old one keeps the tallies of that beginning.
"""

import hashlib
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from engine.algorithms.rollback import is_crucial
from engine.spec.trajectory import Trajectory, Turn

TALLY_ROLLOUTS = 64
"""From here on a tally is halved before it grows, so that rollouts of a policy long gone fade."""


class Tally(BaseModel):
    """Rollouts from one prefix."""

    model_config = ConfigDict(extra="forbid")

    rollouts: int = 0
    successes: int = 0

    def add(self, *, rollouts: int, successes: int) -> None:
        if self.rollouts >= TALLY_ROLLOUTS:
            self.rollouts, self.successes = self.rollouts // 2, self.successes // 2
        self.rollouts += rollouts
        self.successes += successes


class Expert(BaseModel):
    """What is known about the starts of one task."""

    model_config = ConfigDict(extra="forbid")

    own: Trajectory | None = None
    """The policy's latest success; None: a teacher's or the scripted solution serves."""
    left: int = 1
    """Sequential rollback: how many of the expert's last turns the policy has to find by itself."""
    tallies: dict[str, Tally] = {}
    """The key is ``prefix_key``."""
    lost: bool = False
    """No rollout from it ever came back, so it is not used until there is another."""

    def take(self, success: Trajectory) -> None:
        """Make this the expert from now on."""
        self.own, self.lost = success, False
        keys = prefix_keys(success.turns)
        self.tallies = {key: tally for key, tally in self.tallies.items() if key in keys}

    def tally(self, replayed: Sequence[Turn]) -> Tally:
        """Return the tally of rollouts behind these turns; it is made if need be."""
        return self.tallies.setdefault(prefix_key(replayed), Tally())

    def crucial_turn(self, turns: Sequence[Turn], *, level: float) -> int:
        """The number of turns up to and including the last crucial one; 0 where none is known.

        A turn is crucial when success from behind it is significantly likelier than from before it.
        Where anchors left a stretch of turns between two tallied prefixes, its last turn stands for it.
        """
        tallied = [(prefix, self.tallies[key]) for prefix, key in enumerate(prefix_keys(turns)) if key in self.tallies]
        crucial = 0
        for (_, before), (prefix, behind) in zip(tallied, tallied[1:], strict=False):
            if is_crucial(
                successes_with=behind.successes,
                rollouts_with=behind.rollouts,
                successes_without=before.successes,
                rollouts_without=before.rollouts,
                level=level,
            ):
                crucial = prefix
        return crucial


class ExpertPool(BaseModel):
    """Experts by the number of their task; those that were touched last at the end."""

    model_config = ConfigDict(extra="forbid")

    tasks: dict[int, Expert] = {}

    def of(self, task: int) -> Expert:
        """The task's entry, made if need be, and from now on the latest."""
        expert = self.tasks.pop(task, None) or Expert()
        self.tasks[task] = expert
        return expert

    def cut(self, size: int) -> None:
        """Forget all but the latest ``size``."""
        for task in list(self.tasks)[: max(0, len(self.tasks) - size)]:
            del self.tasks[task]


def prefix_key(turns: Sequence[Turn]) -> str:
    """A digest of the tokens that are replayed."""
    return hashlib.blake2b(repr([turn.token_ids for turn in turns]).encode(), digest_size=8).hexdigest()


def prefix_keys(turns: Sequence[Turn]) -> list[str]:
    """Return the keys of the prefixes 0 .. K - 1."""
    return [prefix_key(turns[:prefix]) for prefix in range(len(turns))]


def can_be_expert(trajectory: Trajectory) -> bool:
    """It succeeded in one segment, and there is a turn to start behind: every turn but the last called a tool.

    Of several segments a prefix of turns would not be what the policy reads when it takes over.
    """
    return (
        trajectory.success
        and len(trajectory.segments) == 1
        and len(trajectory.turns) >= 2
        and all(turn.tool_calls for turn in trajectory.turns[:-1])
    )


def clumsiness(success: Trajectory) -> tuple[int, int, int]:
    """Return what is least for the best expert of several: failed calls, then turns, then its number among them."""
    return success.tool_errors, len(success.turns), success.member


def as_expert(success: Trajectory) -> Trajectory:
    """Without what belongs to the step that it was trained in, and without times, so that equal runs keep equals."""
    turns = [_as_expert_turn(turn) for turn in success.turns]
    bare: dict[str, object] = {"trained_at_step": None, "masked_because": None, "changes": [], "start": None}
    return success.with_turns(turns).model_copy(update=bare)


def _as_expert_turn(turn: Turn) -> Turn:
    return turn.untimed.model_copy(
        update={
            "advantages": None,
            "old_logprobs": None,
            "prefilled": False,
            "imitated": False,
            "masked_because": None,
            "verdict": None,
        }
    )
