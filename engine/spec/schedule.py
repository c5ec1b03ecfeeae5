"""How much a step plays and trains, what of it overlaps, and how old a rollout may become."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from engine.spec.generation import NO_TRUNCATION, Distribution, Truncation
from engine.spec.impossible import Combination, impossible
from engine.spec.strict import MOST_STEPS, MOST_THINGS


class Schedule(Combination):
    steps: int = Field(default=40, ge=1, le=MOST_STEPS)
    """RL steps, each one batch of rollouts and one or more updates."""
    prompts_per_step: int = Field(default=32, ge=1, le=MOST_THINGS)
    group_size: int = Field(default=8, ge=1, le=MOST_THINGS)
    """Rollouts per prompt."""
    minibatch_trajectories: int = Field(default=256, ge=1, le=MOST_THINGS)
    """Trajectories per optimiser update; must divide prompts_per_step x group_size."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """At which training samples; evaluation has its own."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Training samples from the smallest set of likeliest tokens whose probability reaches this; 1: from all."""
    top_k: int = Field(default=0, ge=0, le=MOST_THINGS)
    """Training samples from so many of the likeliest tokens; 0: from all.  Taken before ``top_p``."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Training samples from tokens at least so many times as likely as the likeliest; 0: from all.  Taken last."""
    logprobs_at: Literal["one", "sampling", "truncated"] = "one"
    """The temperature of log-probs, and so of ratios, KL, entropy and the policy that is trained.  ``one``: 1, whatever
    is sampled at.  ``sampling``: logits are divided by ``temperature``, as verl does; supervised stages stay at 1.
    ``truncated``: the same, and over what ``top_k``, ``top_p`` and ``min_p`` keep, as it is sampled."""
    async_ratio: int = Field(default=0, ge=0, le=16)
    """How many versions old a rollout may be when it is trained on, counted from its first token.  0: generation and
    training take turns, and a run with ``threads = 1`` and without redundancy repeats exactly.  Above: they overlap
    (docs/staleness.md)."""
    weight_exchange: Literal["in-flight", "episode-borders"] = "in-flight"
    """When the generator takes new weights, above ``async_ratio`` 0.  ``in-flight``: at once, between two tokens; what
    is being played goes on with them.  ``episode-borders``: no episode begins until those that are being played have
    ended, so that each trajectory has one version."""
    redundant_members: int = Field(default=0, ge=0, le=1024)
    """Rollouts of a prompt that are started beyond ``group_size``; the first that come back are kept, the rest are
    ended.  Slow ones cost no time then, and short ones are favoured."""
    redundant_groups: int = Field(default=0, ge=0, le=MOST_THINGS)
    """Prompts that are in play beyond those of ``async_ratio + 1`` batches.  Each step may give up as many that are
    too slow; their prompts are played again once, and then waited for."""
    overdue: Literal["wait", "discard"] = "wait"
    """What is done with a group that would be older than ``async_ratio`` at the next step.  ``wait``: the step waits
    for it.  ``discard``: it is ended and its prompt is played again, once; then it is waited for."""
    multiplexing: bool = False
    """Above ``async_ratio`` 0, where generator and trainer share their devices: whether one of them at a time has them.
    While a batch is trained on the generator samples nothing; of several (``resources.generators``) those that share
    nothing go on, with what the others had begun.  Tools, judges and sandboxes go on.  Else all work at once, each
    slower."""
    multiplexing_hold_s: float = Field(default=1.0, ge=0, le=3600)
    """With ``multiplexing``: the devices change sides at most once in so many seconds."""
    checkpoint_every: int = Field(default=10, ge=1, le=MOST_STEPS)
    """Steps between checkpoints.  The last step always makes one."""
    keep_checkpoints: int = Field(default=3, ge=1, le=MOST_STEPS)
    stall_timeout_s: float = Field(default=300.0, gt=0, le=30 * 86400)
    """A phase that lasts longer is a stall: the attempt is ended and the reason names the phase."""
    max_attempts: int = Field(default=10, ge=1, le=1000)
    """How often the run is started at most, the first time included."""

    def refusals(self) -> Iterator[PydanticCustomError]:
        """Yield what of a schedule contradicts another field of it."""
        yield from self._redundancy_leaves_a_batch()
        yield from self._multiplexing_has_something_to_lay_into()

    def _redundancy_leaves_a_batch(self) -> Iterator[PydanticCustomError]:
        if self.redundant_groups > self.prompts_per_step:
            yield impossible(
                "redundant_groups",
                self.redundant_groups,
                f"a step that gives up more groups than the {self.prompts_per_step} it trains on could not train on "
                "them all once they have to be waited for",
                f"use at most {self.prompts_per_step}",
            )

    def _multiplexing_has_something_to_lay_into(self) -> Iterator[PydanticCustomError]:
        if self.multiplexing and not self.async_ratio:
            problem = "at schedule.async_ratio = 0 generation and training take turns anyway, step by step"
            yield impossible("multiplexing", True, problem, "use false, or an async_ratio of at least 1")
        if self.multiplexing and self.weight_exchange == "episode-borders":
            problem = (
                'with schedule.weight_exchange = "episode-borders" new weights wait for episodes that could not go on'
            )
            yield impossible("multiplexing", True, problem, 'use weight_exchange = "in-flight", or false')
        if self.multiplexing and self.multiplexing_hold_s >= self.stall_timeout_s:
            problem = f"a step that waits so long for devices is a stall (stall_timeout_s = {self.stall_timeout_s:g})"
            yield impossible("multiplexing_hold_s", self.multiplexing_hold_s, problem, "use less")

    @property
    def overlaps(self) -> bool:
        """Return whether groups are played one by one, beside the training; else a step plays its own, all together."""
        return bool(self.async_ratio or self.redundant_members or self.redundant_groups)

    @property
    def slots(self) -> int:
        """Groups that may be in play, ready or in training at once."""
        return (self.async_ratio + 1) * self.prompts_per_step + self.redundant_groups

    @property
    def logprob_temperature(self) -> float:
        """By which logits are divided before a log-prob is taken of what training samples."""
        return 1.0 if self.logprobs_at == "one" else self.temperature

    @property
    def truncation(self) -> Truncation:
        """The truncation of what training samples from."""
        return Truncation(top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)

    @property
    def logprobs_truncated(self) -> bool:
        """Return whether log-probs are those of what ``truncation`` keeps."""
        return self.logprobs_at == "truncated"

    @property
    def logprob_distribution(self) -> Distribution:
        """The distribution whose log-probs are taken of what training samples."""
        return Distribution(self.logprob_temperature, self.truncation if self.logprobs_truncated else NO_TRUNCATION)
