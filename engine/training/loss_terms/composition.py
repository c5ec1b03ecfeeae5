"""From a recipe to the losses of its updates: which terms, on which batches, in which order.

    on-policy   the step's rollouts: the objective, imitation of experts, the KL penalty     one batch an update
    pairs       the step's repairs: the preference loss          beside those, or one batch an update where it is alone
    replayed    what self-imitation kept of earlier steps: the replay loss        beside those, or in updates of its own

This is the one module of the training that reads what a recipe is made of.  The trainer takes what comes out of it, a
list of updates that are lists of parts, and the backend takes a batch and its terms.

Tokens that would collapse entropy (Clip-Cov, KL-Cov) are chosen on the whole batch of an update; the choice travels as
a column of the samples, which the objective's loss reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch

from engine.algorithms.losses import ExpertImitation, objective_for
from engine.algorithms.objectives import PolicyObjective
from engine.spec.objective import Clipped, Dpo, EvaluationOnly, Ipa, NoObjective, Preference
from engine.spec.recipe import Recipe
from engine.training import microbatch
from engine.training.batch import Sample, by_trajectory, regrouped
from engine.training.entropy import EntropyKeeper
from engine.training.loss_terms.interface import LossTerm, Part, PolicyOutputs
from engine.training.loss_terms.policy import ImitationLoss, KlPenalty, PolicyLoss, columns_of
from engine.training.loss_terms.preference import PreferenceLoss
from engine.training.loss_terms.replay import ReplayLoss, imitation_clips
from engine.training.microbatch import Batch, learned_length, microbatches, minibatches
from engine.training.mismatch import mismatch_bound
from engine.training.preferences import Pair
from engine.training.self_imitation import Replay, evenly

__all__ = ["Logprobs", "RecipeLosses", "Update"]

Update = Sequence[Part]
"""What one optimiser update descends on: the sum of the means of its parts."""
Terms = Sequence[LossTerm[PolicyOutputs]]
Logprobs = Callable[[Sequence[Sample]], list[list[float]]]
"""They are the present policy's, aligned with each sample's tokens."""


class Stream(Protocol):
    """What a step brings to learn from, and the terms of its loss."""

    terms: Terms
    takes_pairs: ClassVar[bool]
    """Whether its batches are made of the step's pairs; otherwise they are made of its samples."""

    def batches(self, samples: Sequence[Sample], pairs: Sequence[Pair], *, first_update: int) -> list[Batch]:
        """One for each optimiser update that has a token to learn from, the first of which has the given number."""
        ...


class RecipeLosses:
    """The losses of a run's updates.  What it keeps are the bounds of the covariances, once they are measured."""

    def __init__(
        self, recipe: Recipe, *, minibatch: int, longest_response_tokens: int, seed: int, stale: bool = False
    ) -> None:
        """``longest_response_tokens`` is the constant of the aggregation ``seq-mean-token-sum-norm``; ``stale``,
        whether rollouts may be of older policies than the one before the update."""
        self._recipe = recipe
        self._minibatch = minibatch
        self._replay_loss = (imitation_clips(recipe.objective), longest_response_tokens)
        on_policy = recipe.objective.covariance if isinstance(recipe.objective, Clipped) else None
        self._entropy = EntropyKeeper(on_policy, seed=seed)
        replayed = None if recipe.self_imitation is None else recipe.self_imitation.covariance
        self._replay_entropy = EntropyKeeper(replayed, seed=seed, stream=1)
        self._objective = _objective(recipe, longest_response_tokens, stale)
        self._stream = _stream(recipe, self._objective, self._entropy, minibatch, longest_response_tokens)
        self._preference = _preference_beside(recipe.preference)

    @property
    def terms(self) -> Terms:
        """Those whose metrics a step reports, also where there was nothing to learn."""
        return self._stream.terms if self._preference is None else [*self._stream.terms, self._preference]

    @property
    def needs_reference(self) -> bool:
        return any(term.needs_reference for term in self.terms)

    @property
    def takes_pairs(self) -> bool:
        """Return whether updates are made from a step's repairs too, or from them alone."""
        return self._stream.takes_pairs or self._preference is not None

    @property
    def reads_old_logprobs_first(self) -> bool:
        """Return whether something asks for old log-probs before an update: the mask of tokens on which trainer and
        generator disagree, the choice of tokens that would collapse entropy, what self-imitation keeps; or whether no
        update is made of samples, so that none would give them."""
        masks = mismatch_bound(self._recipe) is not None
        keeps = self._entropy.chooses or self._recipe.self_imitation is not None
        return masks or keeps or not isinstance(self._stream, OnPolicy)

    def masked_by_mismatch(self, samples: Sequence[Sample]) -> list[list[bool]]:
        """Return which tokens of credited samples the loss will leave out because trainer and generator disagree.

        Aligned with each sample's tokens.  Raises RuntimeError where the recipe has no loss on sampled tokens.
        """
        if self._objective is None:
            raise RuntimeError("this recipe has no loss on sampled tokens")
        rows = [[False] * len(sample) for sample in samples]
        cuts = microbatches(samples, device=torch.device("cpu"), max_tokens=microbatch.MICROBATCH_TOKENS)
        for batch in cuts:
            masked_BT = batch.mask_BT & ~self._objective.trained_BT(columns_of(batch))
            for i, masked_T in zip(batch.rows, masked_BT.tolist(), strict=True):
                count = min(len(masked_T), len(rows[i]))
                rows[i][:count] = masked_T[:count]
        return rows

    def updates(
        self,
        samples: Sequence[Sample],
        pairs: Sequence[Pair],
        replay: Replay,
        logprobs: Logprobs,
        *,
        first_update: int,
        observers: Terms = (),
    ) -> list[Update]:
        """A step's updates in their order; repairs stand beside them, and what is replayed beside or after them.

        ``observers`` look on at what is made of the samples, after the terms of the recipe.
        """
        weighed = with_trajectory_tokens(samples, self._trained_tokens)
        batches = self._stream.batches(weighed, pairs, first_update=first_update)
        updates: list[Update] = [[Part(batch, [*self._stream.terms, *observers])] for batch in batches]
        if self._preference is not None and pairs:
            updates = _beside(updates, self._preferred(self._preference, pairs, updates=len(updates)))
        if not replay.active:
            return updates
        beside = replay.mode == "sum" and len(batches) > 0
        again = self._replayed(replay, logprobs, updates=len(batches) if beside else None, first_update=first_update)
        return _beside(updates, again) if beside else [*updates, *([replayed] for replayed in again)]

    def _preferred(self, term: PreferenceLoss, pairs: Sequence[Pair], *, updates: int) -> list[Part]:
        """Split over so many updates; cut into minibatches where there are none, since all samples are masked."""
        cuts = evenly(pairs, updates) if updates else minibatches(pairs, self._minibatch)
        return [Part(cut, [term]) for cut in cuts]

    def _replayed(self, replay: Replay, logprobs: Logprobs, *, updates: int | None, first_update: int) -> list[Part]:
        """Split over so many updates, or cut into minibatches."""
        samples = with_trajectory_tokens(replay.samples, _sampled_tokens)
        now = logprobs(samples)
        self._replay_entropy.measure(samples, now)
        cuts = minibatches(samples, self._minibatch) if updates is None else _evenly(samples, updates)
        clips, longest = self._replay_loss
        term = ReplayLoss(clips, replay.strength, longest)
        return [
            Part(self._replay_entropy.chosen(cut, rows, update=first_update + i), [term])
            for i, (cut, rows) in enumerate(zip(cuts, regrouped(now, cuts), strict=True))
        ]

    def _trained_tokens(self, samples: Sequence[Sample]) -> list[int]:
        """How many tokens of each sample the objective learns: those that its mismatch mask leaves."""
        if self._objective is None:
            return _sampled_tokens(samples)
        masked = self.masked_by_mismatch(samples)
        return [count - sum(cut) for count, cut in zip(_sampled_tokens(samples), masked, strict=True)]

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {"entropy": self._entropy.state(), "replay_entropy": self._replay_entropy.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what ``state`` gave; a part of it that is missing or None changes nothing."""
        for name, keeper in (("entropy", self._entropy), ("replay_entropy", self._replay_entropy)):
            if state.get(name) is not None:
                keeper.load(state[name])


def _beside(updates: Sequence[Update], parts: Sequence[Part]) -> list[Update]:
    """Each part in the update of its place, or in one of its own where there are no updates."""
    if not updates:
        return [[part] for part in parts]
    return [[*update, part] for update, part in zip(updates, parts, strict=True)]


def _preference_beside(preference: Preference | None) -> PreferenceLoss | None:
    """None where the recipe has none, or gives it no weight."""
    if preference is None or preference.weight == 0:
        return None
    return PreferenceLoss(preference.beta, preference.weight)


def with_trajectory_tokens(
    samples: Sequence[Sample], trained_tokens: Callable[[Sequence[Sample]], list[int]]
) -> Sequence[Sample]:
    """Each sample with how many tokens are learned in all samples of its trajectory; ``trained_tokens`` counts its own.

    The very samples where every trajectory is one.
    """
    if all(sample.opens for sample in samples):
        return samples
    return [sample for part in by_trajectory(samples) for sample in _with_trajectory_tokens(part, trained_tokens)]


def _with_trajectory_tokens(
    samples: Sequence[Sample], trained_tokens: Callable[[Sequence[Sample]], list[int]]
) -> Sequence[Sample]:
    trained = sum(trained_tokens(samples))
    imitated = sum(int(sample.expert.sum()) for sample in samples if sample.expert is not None)
    return [replace(sample, trained_tokens=trained, imitated_tokens=imitated) for sample in samples]


def _sampled_tokens(samples: Sequence[Sample]) -> list[int]:
    return [int(sample.loss_mask.sum()) for sample in samples]


def _evenly(samples: Sequence[Sample], parts: int) -> list[list[Sample]]:
    """Cut by trajectory."""
    return [[sample for of_one in part for sample in of_one] for part in evenly(by_trajectory(samples), parts)]


def _objective(recipe: Recipe, longest: int, stale: bool) -> PolicyObjective | None:
    """None where the recipe has no loss on sampled tokens."""
    if isinstance(recipe.objective, Dpo | NoObjective | EvaluationOnly):
        return None
    return objective_for(
        recipe.objective,
        max_response_tokens=longest,
        mismatch=recipe.mismatch,
        boosted_clip_high=None if recipe.experience is None else recipe.experience.boosted_clip_high,
        stale=stale,
    )


def _stream(
    recipe: Recipe, objective: PolicyObjective | None, entropy: EntropyKeeper, minibatch: int, longest: int
) -> Stream:
    if isinstance(recipe.objective, Dpo):
        return Pairs([PreferenceLoss(recipe.objective.beta)], minibatch)
    if objective is None:
        return Nothing()
    return OnPolicy(_terms(recipe, objective, longest), minibatch, entropy)


def _terms(recipe: Recipe, objective: PolicyObjective, longest: int) -> Terms:
    """The terms on the policy's own rollouts.  One whose weight is 0 in the recipe is absent."""
    terms: list[LossTerm[PolicyOutputs]] = [PolicyLoss(objective)]
    if isinstance(recipe.objective, Ipa) and recipe.objective.imitation_weight > 0:
        terms.append(ImitationLoss(ExpertImitation(recipe.objective, longest)))
    if recipe.kl is not None and recipe.kl.beta > 0:
        assert not isinstance(recipe.objective, Dpo | NoObjective | EvaluationOnly)
        terms.append(KlPenalty(recipe.kl, objective, recipe.objective.aggregation, longest))
    return terms


@dataclass
class OnPolicy:
    """The step's rollouts, in their order."""

    terms: Terms
    minibatch: int
    entropy: EntropyKeeper
    takes_pairs: ClassVar[bool] = False

    def batches(self, samples: Sequence[Sample], pairs: Sequence[Pair], *, first_update: int) -> list[Batch]:
        self.entropy.measure(samples, [sample.old_logprobs for sample in samples])
        trained = [part for part in minibatches(samples, self.minibatch) if any(map(learned_length, part))]
        return [
            self.entropy.chosen(part, [sample.old_logprobs for sample in part], update=first_update + i)
            for i, part in enumerate(trained)
        ]


@dataclass
class Pairs:
    """The step's repairs: a corrected tool call and the failed one that it replaced."""

    terms: Terms
    minibatch: int
    takes_pairs: ClassVar[bool] = True

    def batches(self, samples: Sequence[Sample], pairs: Sequence[Pair], *, first_update: int) -> list[Batch]:
        return list(minibatches(pairs, self.minibatch))


class Nothing:
    """A recipe without reinforcement."""

    terms: Terms = ()
    takes_pairs: ClassVar[bool] = False

    def batches(self, samples: Sequence[Sample], pairs: Sequence[Pair], *, first_update: int) -> list[Batch]:
        return []
