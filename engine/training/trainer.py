"""Updates of the policy: supervised stages, then reinforcement learning.

    samples of a step ──RecipeLosses──► updates, each of one part or more ──backend──► gradient ─► step

The trainer decides when weights move and how far: minibatches, learning rates, metrics.  It makes no rollout,
reads no reward and knows no loss; which losses a recipe has is decided in ``loss_terms/composition.py``, and where the
weights live is the backend's business.

It keeps no random state: the batches of a stage follow from (seed, step).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from engine.algorithms.schedules import linear_warmup
from engine.spec import files_of_0_2
from engine.spec.mixture import RunEnvironment, parts_of
from engine.spec.recipe import Recipe
from engine.spec.schedule import Schedule
from engine.training.backends.interface import TrainerBackend
from engine.training.batch import Sample
from engine.training.loss_terms.composition import RecipeLosses, Update
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.loss_terms.own_logprobs import OwnLogprobs, aligned
from engine.training.microbatch import minibatches
from engine.training.preferences import Pair
from engine.training.self_imitation import NO_REPLAY, Replay
from engine.training.stages import StageBatches

__all__ = ["Trainer"]

Phase = Literal["supervised", "reinforcement"]
Observations = defaultdict[int, list[Any]]
"""What each loss term has observed in a step, by the term's identity."""


class Trainer:
    """The stages of a run's training, and their counters.

    ``longest_response_tokens`` is what the policy can write in one episode at most.
    """

    def __init__(
        self,
        backend: TrainerBackend,
        recipe: Recipe,
        schedule: Schedule,
        *,
        longest_response_tokens: int,
        seed: int,
        drops: bool = False,
    ) -> None:
        """``drops``: an update's forward pass drops something, so that its log-probs are not the policy's."""
        self.backend = backend
        self._recipe = recipe
        self._minibatch = schedule.minibatch_trajectories
        self._distribution = schedule.logprob_distribution
        self._seed = seed
        self._losses = RecipeLosses(
            recipe,
            minibatch=self._minibatch,
            longest_response_tokens=longest_response_tokens,
            seed=seed,
            stale=schedule.async_ratio > 0,
        )
        self._scores_in_updates = not drops and not self._losses.reads_old_logprobs_first
        self._stage: Phase = "supervised"
        self._updates = 0

    @property
    def updates(self) -> int:
        """Optimiser updates since reinforcement learning began."""
        return self._updates

    # ---- supervised stages ----

    def supervised(
        self,
        batches: StageBatches,
        *,
        steps: int,
        first_step: int,
        on_progress: Callable[[int, dict[str, float]], None] | None = None,
    ) -> list[dict[str, float]]:
        """Steps ``first_step`` .. ``first_step + steps - 1`` of a stage's masked maximum likelihood; metrics of each.

        All segments of a trajectory are learned in the same step.  A stage begins with an optimiser that has no past.
        The batch of a step depends on (stage, seed, step) only and the learning rate on the step, so slices in a row
        equal one long call.  Metrics: loss (nats per token), grad_norm, learning_rate, tokens.
        """
        if self._stage != "supervised":
            raise RuntimeError("supervised stages come before reinforcement learning")
        history = []
        for step in range(first_step, first_step + steps):
            if step == 0:
                self.backend.renew_optimizer(weight_decay=batches.stage.weight_decay)
            metrics = self._supervised_step(
                batches.samples(step), batches.learning_rate(step), weight_decay=batches.weight_decay(step)
            )
            history.append(metrics)
            if on_progress is not None:
                on_progress(step, metrics)
        return history

    def validation_loss(self, batches: StageBatches) -> float:
        """The mean loss of the examples that a stage keeps out of training, in nats per token."""
        nats, tokens = 0.0, 0
        for samples in batches.validation_samples():
            for sample, row in zip(samples, self.backend.logprobs(samples), strict=True):
                nats -= sum(row)
                tokens += int(sample.loss_mask.sum())
        return nats / tokens

    def _supervised_step(
        self, samples: Sequence[Sample], learning_rate: float, *, weight_decay: float | None
    ) -> dict[str, float]:
        loss = self.backend.forward_backward(samples, [LikelihoodLoss()])
        if weight_decay is not None:
            self.backend.set_weight_decay(weight_decay)
        grad_norm = self.backend.step(learning_rate=learning_rate, grad_clip=self._recipe.optimizer.grad_clip)
        return {"loss": loss.mean, "grad_norm": grad_norm, "learning_rate": learning_rate, "tokens": loss.weight}

    # ---- reinforcement learning ----

    def old_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Log-probs under the present weights, aligned with each sample's tokens; 0 outside its mask.

        Cut into the same minibatches and micro-batches as ``update``, so the first ratios there are exactly 1.
        """
        return [
            row
            for part in minibatches(samples, self._minibatch)
            for row in self.backend.logprobs(part, distribution=self._distribution)
        ]

    def scores_in_update(self, samples: Sequence[Sample]) -> bool:
        """Return whether a step of these samples needs no ``old_logprobs``: ``scored_update`` takes them from itself.

        So it is where the step makes one optimiser update of them, nothing asks for their old log-probs before, and the
        update's forward pass computes what a separate one would.
        """
        return self._scores_in_updates and len(minibatches(samples, self._minibatch)) == 1

    def cut_by_mismatch(self, samples: Sequence[Sample]) -> list[list[bool]]:
        """Return which tokens the mismatch mask will keep out of ``update``, aligned with each sample's tokens."""
        return self._losses.masked_by_mismatch(samples)

    @property
    def takes_pairs(self) -> bool:
        """Return whether ``update`` learns from pairs, alone or beside samples."""
        return self._losses.takes_pairs

    def update(
        self, samples: Sequence[Sample], replay: Replay = NO_REPLAY, *, pairs: Sequence[Pair] = ()
    ) -> dict[str, float]:
        """One pass over a step's samples, or pairs, in their order, one optimiser update per minibatch of the schedule.

        What is replayed is split over the same updates and added to their loss, or follows in updates of its
        own.  A minibatch all of whose tokens the objective has masked makes no update, and so does a step from which
        nothing can be learned: then ``updates`` is 0.

        Metrics: updates; loss and grad_norm (means over the updates), learning_rate (the last), where there is one;
        those of the recipe's loss terms.  Raises NonFiniteGradient.
        """
        updates = self._losses.updates(samples, pairs, replay, self.old_logprobs, first_update=self._updates)
        return self._made(updates, defaultdict(list))

    def scored_update(
        self, samples: Sequence[Sample], *, pairs: Sequence[Pair] = ()
    ) -> tuple[dict[str, float], list[list[float]]]:
        """The one update of samples for which ``scores_in_update`` holds; its metrics, and the samples' old log-probs.

        What ``old_logprobs`` and then ``update`` would make of them, to the last bit, in one forward pass.
        """
        scores, observations = OwnLogprobs(), Observations(list)
        numbered = [replace(sample, unscored=number) for number, sample in enumerate(samples)]
        updates = self._losses.updates(
            numbered, pairs, NO_REPLAY, self.old_logprobs, first_update=self._updates, observers=[scores]
        )
        metrics = self._made(updates, observations)
        return metrics, aligned(samples, observations[id(scores)])

    def _made(self, updates: Sequence[Update], observations: Observations) -> dict[str, float]:
        """Make the updates of a step; ``observations`` takes in what their terms observe."""
        if updates:
            self.begin_reinforcement()
        reports = [self._optimiser_update(update, observations) for update in updates]
        metrics: dict[str, float] = {}
        for term in self._losses.terms:
            metrics |= term.metrics(observations[id(term)])
        made = [report for report in reports if report is not None]
        if not made:
            return {"updates": 0.0, **metrics}
        means = {name: fmean(report[name] for report in made) for name in ("loss", "grad_norm")}
        return {"updates": float(len(made)), **means, "learning_rate": made[-1]["learning_rate"], **metrics}

    def begin_reinforcement(self) -> None:
        """Begin RL, once.  The optimiser starts fresh: moments of supervised steps say nothing about rewards.

        The reference, if a loss needs one, is the policy of this moment.
        """
        if self._stage == "supervised":
            self._stage = "reinforcement"
            self.backend.renew_optimizer(weight_decay=self._recipe.optimizer.weight_decay)
            if self._losses.needs_reference:
                self.backend.freeze_reference()

    def _optimiser_update(self, update: Update, observations: Observations) -> dict[str, float] | None:
        """Descend on the sum of the parts' means; None where nothing is left to learn."""
        losses = []
        for part in update:
            loss = self.backend.forward_backward(part.batch, part.terms, distribution=self._distribution)
            losses.append(loss)
            for term, observed in zip(part.terms, loss.observations, strict=True):
                observations[id(term)] += observed
        if not any(loss.weight > 0 for loss in losses):
            return None
        optimizer = self._recipe.optimizer
        learning_rate = optimizer.learning_rate * linear_warmup(self._updates, optimizer.warmup_steps)
        grad_norm = self.backend.step(learning_rate=learning_rate, grad_clip=optimizer.grad_clip)
        self._updates += 1
        return {"loss": sum(loss.mean for loss in losses), "grad_norm": grad_norm, "learning_rate": learning_rate}

    # ---- weights and state ----

    def save(self, folder: Path, *, beside: Mapping[str, Any] | None = None) -> None:
        """Write a folder with weights, optimiser, reference, counters, and ``beside``.

        All or nothing.  Raises OSError, also if ``folder`` exists and is not empty.
        """
        counters = {"stage": self._stage, "updates": self._updates}
        self.backend.save(folder, {**counters, **self._losses.state(), "beside": dict(beside or {})})

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what ``save`` wrote; what follows is bit-identical to never having stopped.

        The answer is what was saved ``beside`` it.  Raises DamagedFile.
        """
        state = self.backend.load(folder)
        self._stage, self._updates = files_of_0_2.training_stage(state["stage"]), state["updates"]
        self._losses.load(state)
        beside: dict[str, Any] = state.get("beside", {})
        return beside


def longest_response_tokens(environment: RunEnvironment, *, context_tokens: int) -> int:
    """Return what a policy with such a context can write in one episode at most."""
    longest = max(part.environment.max_turns * part.environment.max_turn_tokens for part in parts_of(environment))
    return min(context_tokens, longest)
