"""The worker that owns the weights: what a recipe says about learning, put together.

    credit   advantages per token, lessons out, log-probs of the frozen policy      changes nothing that is saved
    update   the policy's updates with what is replayed; pairs; the critic          changes everything that is saved

A checkpoint may be written between the two and must then hold the state of the step before, so ``credit`` keeps
nothing: buffers are filled, and the critic learns, in ``update``.

A plain class without asyncio or Ray: an actor or a thread calls it, one call at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from engine.failures import NO_GPU, RunFailed
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from engine.training.advantages import TurnAdvantages, critic_targets, token_advantages
from engine.training.batch import Sample, per_turn, sample_from_trajectory
from engine.training.critic import Critic, critic_for, with_targets
from engine.training.experience import strip_experience
from engine.training.imitation import imitates, with_imitation_where_none_succeeded
from engine.training.mismatch import mismatch_bound, with_mismatch_told
from engine.training.preferences import pairs_of
from engine.training.recordings import BadRecording, recorded_trajectories, recordings_folder
from engine.training.self_imitation import NO_REPLAY, SelfImitator
from engine.training.supervised import with_turn_masks
from engine.training.trainer import Trainer


class Learner:
    """``scripted`` are the environment's own demonstrations, for a cold start without recorded ones.

    ``recordings`` is the folder below which recorded trajectories lie, by default that of the environment.

    Raises BadRecording if the recipe names some that cannot be learned from, RunFailed if the device is missing.
    """

    def __init__(
        self, spec: RunSpec, scripted: Callable[[], Iterator[Trajectory]], recordings: Path | None = None
    ) -> None:
        if spec.resources.device == "cuda" and not torch.cuda.is_available():
            raise RunFailed(NO_GPU)
        self._spec = spec
        self._scripted = scripted
        self._recorded = recorded_trajectories(spec, recordings or recordings_folder())
        if self._recorded and not any(sample.learned_length for sample in self._shown()):
            raise BadRecording(f"{len(self._recorded)} recorded trajectories, all of whose turns are masked")
        self._trainer = Trainer(spec)
        self._critic = critic_for(spec, self._trainer.backend.value_network)
        imitation = spec.recipe.self_imitation
        self._imitator = None if imitation is None else SelfImitator(imitation)

    def cold_start(self, first: int, last: int) -> float:
        """Supervised steps ``first`` .. ``last`` (from 1); the mean loss."""
        history = self._trainer.cold_start(self._supervised, steps=last - first + 1, first_step=first - 1)
        return fmean(metrics["loss"] for metrics in history)

    def credit(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """The groups of one step, with advantages and the frozen policy's log-probs, turn by turn.

        Experience that is stripped, and tokens that the mismatch mask will keep out of ``update``, are reported.
        """
        if not rollouts_in(groups):
            return []
        recipe = self._spec.recipe
        self._trainer.use_threads()
        if imitates(recipe):
            groups = with_imitation_where_none_succeeded(groups)
        advantages = token_advantages(
            recipe.credit,
            groups,
            step=groups[0].plan.step,
            values=None if self._critic is None else self._critic.values,
            success_reward=recipe.reward.correct,
        )
        credited = iter(
            self._credited([_with_advantages(*pair) for pair in zip(rollouts_in(groups), advantages, strict=True)])
        )
        return [group.with_rollouts(islice(credited, len(group.rollouts))) for group in groups]

    def _credited(self, credited: list[Trajectory]) -> list[Trajectory]:
        recipe = self._spec.recipe
        if recipe.experience is not None:
            training, vocabulary = recipe.experience.training, self._spec.model.vocabulary
            credited = [strip_experience(one, training, vocabulary=vocabulary) for one in credited]
        samples = [self._sample(one) for one in credited]
        old_logprobs = self._trainer.old_logprobs(samples)
        credited = [_with_old_logprobs(*one) for one in zip(credited, old_logprobs, strict=True)]
        bound = mismatch_bound(recipe)
        if bound is None:
            return credited
        cut = self._trainer.cut_by_mismatch(
            [sample.with_old_logprobs(values) for sample, values in zip(samples, old_logprobs, strict=True)]
        )
        return [with_mismatch_told(*one, bound=bound) for one in zip(credited, cut, strict=True)]

    def update(self, groups: Sequence[RolloutGroup], released: Sequence[Trajectory] = ()) -> dict[str, float]:
        """One step's updates from credited groups and from ``released`` rollouts of earlier steps.

        Metrics: those of the trainer; with a critic ``critic/...``; with self-imitation ``sil/...``.  A step in which
        nothing is left to learn makes no update and says so: ``updates`` is 0.
        Raises NonFiniteGradient, which another attempt would meet again.
        """
        trajectories = [*rollouts_in(groups), *released]
        samples = [self._sample(trajectory) for trajectory in trajectories]
        replay, replay_metrics = NO_REPLAY, {}
        if self._imitator is not None and trajectories:
            # What is released is of an earlier step.
            step = max(trajectory.sampled_for_step for trajectory in trajectories)
            replay, values = self._imitator.next_replay(groups, trajectories, samples, step=step)
            replay_metrics = {f"sil/{name}": value for name, value in values.items()}
        targets = [] if self._critic is None else self._critic_targets(self._critic, trajectories)
        pairs = pairs_of(trajectories, self._spec.model.vocabulary) if self._trainer.takes_pairs else []
        metrics = self._trainer.update(samples, replay, pairs=pairs)
        if self._critic is not None and any(sample.learned_length for sample in samples):
            metrics |= {f"critic/{name}": value for name, value in self._critic.update(targets).items()}
        return metrics | replay_metrics

    def weights(self) -> dict[str, Tensor]:
        return self._trainer.backend.weights()

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

    def demonstrations(self) -> Iterator[Trajectory]:
        """What the cold start learns from, recorded or scripted, with the turns marked that it does not learn."""
        recipe = self._spec.recipe
        assert recipe.cold_start is not None, "the loop asks for a cold start only if the recipe has one"
        shown = self._recorded or self._scripted()
        return (with_turn_masks(one, recipe.cold_start) for one in shown)

    def _shown(self) -> Iterator[Sample]:
        return (sample_from_trajectory(one) for one in self.demonstrations())

    @cached_property
    def _supervised(self) -> list[Sample]:
        """Without those of which every turn is masked."""
        return [sample for sample in self._shown() if sample.learned_length]

    # ---- how the recipe looks at a trajectory ----

    def _sample(self, trajectory: Trajectory) -> Sample:
        return sample_from_trajectory(trajectory, imitation=imitates(self._spec.recipe))

    def _critic_targets(self, critic: Critic, trajectories: Sequence[Trajectory]) -> list[Sample]:
        """Trajectories that are trained on, with what the critic says of them and what it should have said."""
        self._trainer.use_threads()
        trained = [trajectory for trajectory in trajectories if trajectory.masked_because is None]
        rows = zip(*critic_targets(critic.credit, trained, critic.values), strict=True)
        return [with_targets(sample, values, returns) for sample, values, returns in rows]


def _with_advantages(trajectory: Trajectory, advantages: TurnAdvantages) -> Trajectory:
    turns = [
        turn.model_copy(update={"advantages": values})
        for turn, values in zip(trajectory.turns, advantages, strict=True)
    ]
    return trajectory.model_copy(update={"turns": turns})


def _with_old_logprobs(trajectory: Trajectory, old_logprobs: Sequence[float]) -> Trajectory:
    turns = [
        turn.model_copy(update={"old_logprobs": values})
        for turn, values in zip(trajectory.turns, per_turn(old_logprobs, trajectory), strict=True)
    ]
    return trajectory.model_copy(update={"turns": turns})
