"""The worker that owns the weights: what a recipe says about learning, put together.

    credit   advantages per token, experience out, log-probs of the frozen policy   changes nothing that is saved
             unless the update's own forward pass gives these
    update   the policy's updates with what is replayed; pairs; the critic          changes everything that is saved

``credit`` makes samples of the trajectories and keeps them, in memory only, until the step's ``update``, which names
them by the trajectories' ids.  A checkpoint may be written between the two and must then hold the state of the step
before: buffers are filled, and the critic learns, in ``update``.

A plain class without asyncio or Ray: an actor or a thread calls it, one call at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from engine.models.vocabulary import Tokens
from engine.models.weights import StateDict, WeightSource
from engine.spec.recipe import Recipe
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.trajectory import Trajectory
from engine.training.advantages import token_advantages
from engine.training.batch import Sample, per_turn, regrouped, samples_from_trajectory, unmasked_samples
from engine.training.columns import CreditColumns, Updated, UpdateRequest, column, with_columns
from engine.training.critic import Critic, with_targets
from engine.training.estimators.critic import targets_of
from engine.training.estimators.interface import Occasion, TurnAdvantages
from engine.training.experience import stripped_because
from engine.training.imitation import imitates
from engine.training.mismatch import mismatch_bound
from engine.training.preferences import Pair, pairs_of
from engine.training.self_imitation import NO_REPLAY, SelfImitator
from engine.training.stages import FilesRead, StageBegun, SupervisedStages
from engine.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class CreditedRollout:
    """What is kept of a rollout from its credit to the update."""

    step: int
    """The first step that could train on it, which is the one that does unless it was played or held for longer."""
    reward: float
    columns: CreditColumns
    samples: Sequence[Sample]
    """The samples of its segments, with advantages and old log-probs, and unmasked: what masks it may still be
    decided."""
    as_sampled: Sequence[Sample]
    """What a critic learns from; empty where the recipe has none."""
    pairs: Sequence[Pair]
    """Where the recipe learns from pairs, those in the rollout."""
    scored_at: np.ndarray | None = None
    """int64: where each token of the columns stands in the samples, one behind the other.  None: the old log-probs are
    known; otherwise the update gives them."""


class Learner:
    """``stages`` are those before RL, with their data.  ``sends_adapter``: the generator has the model's own weights.

    ``tokens`` are those of the policy's vocabulary; ``threads`` compute tensors beside the trainer's backend.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokens: Tokens,
        trainer: Trainer,
        critic: Critic | None,
        *,
        stages: SupervisedStages,
        threads: int,
        sends_adapter: bool = False,
    ) -> None:
        self._sends_adapter = sends_adapter
        self._recipe = recipe
        self._tokens = tokens
        self._trainer = trainer
        self._critic = critic
        self.stages = stages
        self._threads = threads
        imitation = recipe.self_imitation
        self._imitator = None if imitation is None else SelfImitator(imitation)
        self._credited: dict[str, CreditedRollout] = {}
        """By the trajectory's id, from ``credit`` to the step's ``update``."""

    def read_on(self) -> FilesRead:
        """Read the files of supervised stages a little further."""
        return self.stages.read_on()

    def stage(self, number: int) -> StageBegun:
        """Make what stage ``number``, from 0, learns."""
        return StageBegun(self.stages.batches(number).steps, self.stages.counts(number))

    def supervised(self, number: int, first: int, last: int) -> dict[str, float]:
        """Steps ``first`` .. ``last`` (from 1) of stage ``number``: their mean loss, and ``validation_loss`` if due."""
        batches = self.stages.batches(number)
        history = self._trainer.supervised(batches, steps=last - first + 1, first_step=first - 1)
        metrics = {"loss": fmean(metrics["loss"] for metrics in history)}
        if batches.validation_due(last):
            metrics["validation_loss"] = self._trainer.validation_loss(batches)
        return metrics

    def credit(
        self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup] = (), *, step: int
    ) -> dict[str, CreditColumns]:
        """Return what credit says of the rollouts of ``step``, and of groups with ``released`` ones of earlier steps.

        The answer is by the trajectories' ids.  Samples of all of them are kept for ``update``; those of a step before
        are forgotten.  A released group is compared within itself and, where credit whitens, beside the step with which
        it is trained: whitened alone, a rollout that failed would be half good.  It was sampled by an earlier policy,
        whose log-probs are its old ones.
        """
        self._credited = self._credit_together(groups, step, is_whole_step=not released)
        beside = groups if self._recipe.credit.whitens_a_step() else ()
        for group in released:
            together = self._credit_together([group, *beside], step, is_whole_step=False)
            for rollout in group.rollouts:
                self._credited[rollout.id] = _with_logprobs_as_sampled(together[rollout.id], rollout)
        return {trajectory_id: credited.columns for trajectory_id, credited in self._credited.items()}

    def update(self, request: UpdateRequest) -> Updated:
        """One step's updates from the rollouts that were credited for it.

        Metrics: those of the trainer; with a critic ``critic/...``; with self-imitation ``sil/...``.  A step in which
        nothing is left to learn makes no update and says so: ``updates`` is 0.
        Raises NonFiniteGradient, which another attempt would meet again, and KeyError for a rollout without credit.
        """
        rollouts = [self._credited[decision.trajectory] for decision in request.rollouts]
        reasons = [decision.masked_because for decision in request.rollouts]
        trained = [rollout for rollout, reason in zip(rollouts, reasons, strict=True) if reason is None]
        self._credited = {}
        masked = [
            [sample.masked(reason) for sample in rollout.samples]
            for rollout, reason in zip(rollouts, reasons, strict=True)
        ]
        samples = [sample for of_rollout in masked for sample in of_rollout]
        replay, replay_metrics = NO_REPLAY, {}
        if self._imitator is not None:
            replay, values = self._imitator.next_replay(request.group_means, rollouts, masked, step=request.step)
            replay_metrics = {f"sil/{name}": value for name, value in values.items()}
        targets = [] if self._critic is None else self._critic_targets(self._critic, trained)
        pairs = [pair for rollout in trained for pair in rollout.pairs]
        old_logprobs: dict[str, np.ndarray] = {}
        if any(rollout.scored_at is not None for rollout in rollouts):
            metrics, rows = self._trainer.scored_update(samples, pairs=pairs)
            ids = [decision.trajectory for decision in request.rollouts]
            old_logprobs = dict(zip(ids, _columns_scored(rollouts, rows), strict=True))
        else:
            metrics = self._trainer.update(samples, replay, pairs=pairs)
        if self._critic is not None and any(sample.learned_length for sample in samples):
            metrics |= {f"critic/{name}": value for name, value in self._critic.update(targets).items()}
        return Updated(metrics | replay_metrics, old_logprobs)

    def weights(self) -> WeightSource:
        """What the generator gets of the policy's weights: all of them, or the adapter alone."""
        backend = self._trainer.backend
        return backend.adapter() if self._sends_adapter else StateDict(backend.weights())

    def save(self, folder: Path) -> None:
        """A checkpoint's part of the learner: weights, optimisers, buffers, critic, reference, counters."""
        beside = {}
        if self._critic is not None and (critic := self._critic.state()) is not None:
            beside["critic"] = critic
        if self._imitator is not None:
            beside["self_imitation"] = self._imitator.state()
        self._trainer.save(folder, beside=beside)

    def load(self, folder: Path) -> None:
        beside = self._trainer.load(folder)
        if self._critic is not None:
            self._critic.load(beside.get("critic"))
        if self._imitator is not None and "self_imitation" in beside:
            self._imitator.load(beside["self_imitation"])

    # ---- from groups to columns and samples ----

    def _credit_together(
        self, groups: Sequence[RolloutGroup], step: int, *, is_whole_step: bool
    ) -> dict[str, CreditedRollout]:
        """All rollouts of the groups by their ids, in order.

        ``is_whole_step``: nothing else is trained on in the step.
        """
        if not rollouts_in(groups):
            return {}
        recipe = self._recipe
        torch.set_num_threads(self._threads)
        advantages = token_advantages(
            recipe.credit,
            groups,
            Occasion(
                step,
                values=None if self._critic is None else self._critic.values,
                success_reward=recipe.reward.correct,
            ),
        )
        without_success = [not group.successes for group in groups for _ in group.rollouts]
        columns = [
            self._columns_of(rollout, values, imitates_all=failed and imitates(recipe))
            for rollout, values, failed in zip(rollouts_in(groups), advantages, without_success, strict=True)
        ]
        rollouts = [
            with_columns(rollout, credit, text_of=self._tokens.decode)
            for rollout, credit in zip(rollouts_in(groups), columns, strict=True)
        ]
        samples = [unmasked_samples(rollout, imitation=imitates(recipe)) for rollout in rollouts]
        masked = [
            sample.masked(rollout.masked_because)
            for rollout, of_rollout in zip(rollouts, samples, strict=True)
            for sample in of_rollout
        ]
        if is_whole_step and self._trainer.scores_in_update(masked):
            return {
                rollout.id: self._to_be_scored(rollout, credit, of_rollout)
                for rollout, credit, of_rollout in zip(rollouts, columns, samples, strict=True)
            }
        old_logprobs = self._trainer.old_logprobs(masked)
        cut = self._mismatch_masked(masked, old_logprobs)
        return {
            credit[0].id: self._credited_rollout(*credit)
            for credit in zip(
                rollouts, columns, samples, regrouped(old_logprobs, samples), regrouped(cut, samples), strict=True
            )
        }

    def _columns_of(self, rollout: Trajectory, advantages: TurnAdvantages, *, imitates_all: bool) -> CreditColumns:
        """What is known before the policy is asked."""
        values, experience = column(advantages, np.float64), self._recipe.experience
        training = "keep" if experience is None else experience.training
        return CreditColumns(
            advantages=values,
            old_logprobs=None,
            imitates_all=imitates_all,
            stripped_because=stripped_because(rollout, values.tolist(), training),
        )

    def _mismatch_masked(
        self, samples: Sequence[Sample], old_logprobs: Sequence[Sequence[float]]
    ) -> Sequence[Sequence[bool]]:
        """Which tokens of each sample the mismatch mask keeps out of the update."""
        if mismatch_bound(self._recipe) is None:
            return [[False] * len(sample) for sample in samples]
        return self._trainer.cut_by_mismatch(
            [sample.with_old_logprobs(values) for sample, values in zip(samples, old_logprobs, strict=True)]
        )

    def _to_be_scored(self, rollout: Trajectory, columns: CreditColumns, samples: Sequence[Sample]) -> CreditedRollout:
        """The old log-probs come with the update."""
        places = regrouped(range(sum(map(len, samples))), [range(len(sample)) for sample in samples])
        return replace(self._kept(rollout, columns, samples), scored_at=column(per_turn(places, rollout), np.int64))

    def _credited_rollout(
        self,
        rollout: Trajectory,
        columns: CreditColumns,
        samples: Sequence[Sample],
        old_logprobs: Sequence[Sequence[float]],
        mismatch_masked: Sequence[Sequence[bool]],
    ) -> CreditedRollout:
        """``old_logprobs`` and ``mismatch_masked`` are aligned with the samples."""
        columns = replace(columns, old_logprobs=column(per_turn(old_logprobs, rollout), np.float32))
        if any(map(any, mismatch_masked)):
            masked = column(per_turn(mismatch_masked, rollout), np.bool_)
            columns = replace(columns, mismatch_masked=masked, mismatch_bound=mismatch_bound(self._recipe))
        scored = [sample.with_old_logprobs(values) for sample, values in zip(samples, old_logprobs, strict=True)]
        return self._kept(rollout, columns, scored)

    def _kept(self, rollout: Trajectory, columns: CreditColumns, samples: Sequence[Sample]) -> CreditedRollout:
        return CreditedRollout(
            step=rollout.sampled_for_step,
            reward=rollout.reward,
            columns=columns,
            samples=samples,
            as_sampled=[] if self._critic is None else samples_from_trajectory(rollout, as_sampled=True),
            pairs=self._pairs_in(rollout),
        )

    def _pairs_in(self, rollout: Trajectory) -> list[Pair]:
        """Whether the rollout is masked or not; none where the recipe does not learn from pairs."""
        if not self._trainer.takes_pairs:
            return []
        return pairs_of([rollout.model_copy(update={"masked_because": None})], self._tokens.tool_open)

    def _critic_targets(self, critic: Critic, trained: Sequence[CreditedRollout]) -> list[Sample]:
        """Rollouts that are trained on, with what the critic says of them and what it should have said."""
        torch.set_num_threads(self._threads)
        rollouts, rewards = [rollout.as_sampled for rollout in trained], [rollout.reward for rollout in trained]
        samples = [sample for of_rollout in rollouts for sample in of_rollout]
        values, returns = targets_of(critic.credit, rollouts, rewards, critic.values)
        return [with_targets(*targets) for targets in zip(samples, values, returns, strict=True)]


def _columns_scored(rollouts: Sequence[CreditedRollout], rows: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """The old log-probs of the rollouts' columns, from those of all their samples."""
    columns = []
    for rollout, of_samples in zip(rollouts, regrouped(rows, [rollout.samples for rollout in rollouts]), strict=True):
        assert rollout.scored_at is not None, "a step is scored as a whole or not at all"
        columns.append(np.concatenate([[], *of_samples], dtype=np.float32)[rollout.scored_at])
    return columns


def _with_logprobs_as_sampled(credited: CreditedRollout, rollout: Trajectory) -> CreditedRollout:
    """Return the sample with the log-probs of the policy that sampled it as the old ones: nothing mismatches them."""
    old_logprobs = column((turn.logprobs for turn in rollout.turns), np.float32)
    return replace(
        credited,
        columns=replace(credited.columns, old_logprobs=old_logprobs, mismatch_masked=None, mismatch_bound=None),
        samples=[sample.with_old_logprobs(sample.rollout_logprobs) for sample in credited.samples],
    )
