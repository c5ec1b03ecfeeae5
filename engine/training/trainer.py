"""Updates of the policy: the supervised cold start, then reinforcement learning.

Algorithm-blind: it sees token ids, masks, log-probs, per-token advantages and a loss that gives
``(sum, weight)``.  It makes no rollout and reads no reward.

On the CPU with one thread, equal calls give bit-identical weights.  It keeps no random state: initial
weights come from the run's seed, the cold start's batches from (seed, step).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.algorithms.chunks import chunk_numbers
from engine.algorithms.losses import objective_for, uses_chunks
from engine.algorithms.objectives import PolicyObjective, PolicyTokens
from engine.algorithms.schedules import linear_warmup, warmup_then_cosine
from engine.durable import read_back, whole_folder, written
from engine.models.qwen3 import Qwen3, save_pretrained
from engine.models.tokenizer import tokenizer_for
from engine.spec.objective import Dpo
from engine.spec.run import RunSpec
from engine.spec.supervised import ColdStart
from engine.training.batch import Sample
from engine.training.entropy import EntropyKeeper
from engine.training.gradients import adamw, descend, divide
from engine.training.metrics import UpdateMetrics
from engine.training.microbatch import Cut, MicroBatch
from engine.training.policy import token_logprobs
from engine.training.preferences import Pair, PreferenceMetrics, pair_batches, preference_loss
from engine.training.reference import frozen_copy, needs_reference, penalises
from engine.training.self_imitation import NO_REPLAY, Replay, add_imitation_gradient, evenly, imitation_clips
from engine.training.supervised import batch_of_step

__all__ = ["NothingToTrain", "Trainer"]

COLD_START_WARMUP = 0.05
"""Share of the cold start's steps over which its learning rate rises."""
COLD_START_FLOOR = 0.1
"""Share of its peak at which the cold start's learning rate ends."""

Stage = Literal["cold-start", "reinforcement"]
Imitated = tuple[Sequence[Sample], float]
"""Imitated samples and the strength of their loss."""


class NothingToTrain(ValueError):
    """No sample of the batch has a token to learn from."""


class Trainer:
    """The weights, their optimiser and their counters.

    ``resources.threads`` is set at every call: torch keeps it partly per thread and partly per process,
    where a generator may have set its own.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.use_threads()
        recipe = spec.recipe
        self._cut = Cut(spec)
        self.model = Qwen3(spec.model, len(tokenizer_for(spec.environment.id)), seed=spec.seed).to(self._cut.device)
        self._stage: Stage = "cold-start"
        self._optimizer = adamw(self.model.parameters())
        self._updates = 0
        self._policy_objective = _objective(spec)
        self._uses_chunks = uses_chunks(recipe.objective, recipe.mismatch)
        self._temperature = spec.schedule.logprob_temperature
        self._penalised = penalises(recipe)
        self._reference: Qwen3 | None = None
        again = None if recipe.self_imitation is None else recipe.self_imitation.covariance
        self._entropy = EntropyKeeper(getattr(recipe.objective, "covariance", None), seed=spec.seed)
        self._replay_entropy = EntropyKeeper(again, seed=spec.seed, stream=1)

    @property
    def updates(self) -> int:
        """Optimiser updates since reinforcement learning began."""
        return self._updates

    # ---- supervised cold start ----

    def cold_start(
        self,
        samples: Sequence[Sample],
        *,
        steps: int,
        first_step: int,
        on_progress: Callable[[int, dict[str, float]], None] | None = None,
    ) -> list[dict[str, float]]:
        """Steps ``first_step`` .. ``first_step + steps - 1`` of masked maximum likelihood; the metrics of each.

        The batch of a step depends on (seed, step) only and the learning rate on the step, so slices in
        a row equal one long call.  Metrics: loss (nats per token), grad_norm, learning_rate, tokens.
        """
        self.use_threads()
        if self._stage != "cold-start":
            raise RuntimeError("the cold start comes before reinforcement learning")
        history = []
        for step in range(first_step, first_step + steps):
            picked = batch_of_step(len(samples), step, size=self._cold_start.batch_size, seed=self._spec.seed)
            metrics = self._supervised_step([samples[i] for i in picked], step)
            history.append(metrics)
            if on_progress is not None:
                on_progress(step, metrics)
        return history

    def _supervised_step(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        recipe = self._cold_start
        total, weight = 0.0, sum(int(sample.loss_mask.sum()) for sample in samples)
        for batch in self._cut.microbatches(samples):
            logp_BT, _ = token_logprobs(self.model, batch.token_ids_BT, batch.mask_BT)
            loss = -logp_BT.sum()
            loss.backward()
            total += loss.item()
        warmup = int(COLD_START_WARMUP * recipe.steps)
        factor = warmup_then_cosine(step, recipe.steps, warmup_updates=warmup, floor=COLD_START_FLOOR)
        parameters = list(self.model.parameters())
        divide(parameters, weight)
        grad_norm = descend(
            parameters,
            self._optimizer,
            learning_rate=recipe.learning_rate * factor,
            grad_clip=self._spec.recipe.optimizer.grad_clip,
        )
        return {
            "loss": total / weight,
            "grad_norm": grad_norm,
            "learning_rate": recipe.learning_rate * factor,
            "tokens": float(weight),
        }

    # ---- reinforcement learning ----

    @torch.no_grad()
    def old_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Log-probs under the present weights, aligned with each sample's tokens; 0 outside its mask.

        Cut into the same minibatches and micro-batches as ``update``, so the first ratios there are exactly 1.
        """
        self.use_threads()
        answers: list[list[float]] = []
        for minibatch in self._cut.minibatches(samples):
            rows = [[0.0] * len(sample) for sample in minibatch]
            for batch in self._cut.microbatches(minibatch):
                logp_BT, _ = self._logprobs(self.model, batch)
                _put_back(rows, batch, logp_BT.where(batch.mask_BT, 0.0))
            answers += rows
        return answers

    def cut_by_mismatch(self, samples: Sequence[Sample]) -> list[list[bool]]:
        """Which tokens the mismatch mask will keep out of ``update``, aligned with each sample's tokens."""
        rows = [[False] * len(sample) for sample in samples]
        for batch in self._cut.microbatches(samples):
            trained_BT = self._objective.trained_BT(self._tokens(batch, batch.old_logp_BT))
            _put_back(rows, batch, batch.mask_BT & ~trained_BT)
        return rows

    def update(self, samples: Sequence[Sample], replay: Replay = NO_REPLAY) -> dict[str, float]:
        """One pass over the samples in their order, one optimiser update per minibatch of the schedule.

        What is replayed is split over the same updates and added to their loss, or follows in updates of its
        own.  A minibatch all of whose tokens the objective has masked makes no update.

        Metrics: updates; loss and grad_norm (means over the updates), learning_rate (the last); over the sampled
        tokens those of ``UpdateMetrics``.  Raises NothingToTrain if every token is masked and nothing is
        replayed, and NonFiniteGradient.
        """
        self.use_threads()
        trained = [part for part in self._cut.minibatches(samples) if any(one.learned_length for one in part)]
        if not trained and not replay.active:
            raise NothingToTrain(f"none of {len(samples)} samples has a token to learn from")
        self.begin_reinforcement()
        self._entropy.measure(samples, [sample.old_logprobs for sample in samples])
        beside, after = self._divided(replay, len(trained))
        metrics = UpdateMetrics()
        reports = [self._policy_step(*one, metrics) for one in zip(trained, beside, strict=True)]
        reports += [self._policy_step((), part, metrics) for part in after]
        made = [report for report in reports if report is not None]
        if not made:
            return {"updates": 0.0, **metrics.values()}
        means = {name: fmean(report[name] for report in made) for name in ("loss", "grad_norm")}
        learning_rate = made[-1]["learning_rate"]
        return {"updates": float(len(made)), **means, "learning_rate": learning_rate, **metrics.values()}

    def prefer(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """DPO: one pass over the pairs, one optimiser update per minibatch of as many pairs as it has trajectories.

        Metrics: updates, loss, grad_norm, learning_rate as in ``update``, and those of ``PreferenceMetrics``.
        Without a pair nothing is updated.  Raises NonFiniteGradient.
        """
        self.use_threads()
        self.begin_reinforcement()
        metrics = PreferenceMetrics()
        made = [self._preference_step(minibatch, metrics) for minibatch in self._cut.minibatches(pairs)]
        if not made:
            return {"updates": 0.0, **metrics.values()}
        means = {name: fmean(report[name] for report in made) for name in ("loss", "grad_norm")}
        learning_rate = made[-1]["learning_rate"]
        return {"updates": float(len(made)), **means, "learning_rate": learning_rate, **metrics.values()}

    def begin_reinforcement(self) -> None:
        """Once.  The optimiser starts fresh: moments of the cold start say nothing about rewards.

        The reference, if the recipe has one, is the policy of this moment.
        """
        if self._stage == "cold-start":
            self._stage = "reinforcement"
            weight_decay = self._spec.recipe.optimizer.weight_decay
            self._optimizer = adamw(self.model.parameters(), weight_decay=weight_decay)
            if needs_reference(self._spec.recipe):
                self._reference = frozen_copy(self.model)

    def _policy_step(
        self, samples: Sequence[Sample], replayed: tuple[Sequence[Sample], float], metrics: UpdateMetrics
    ) -> dict[str, float] | None:
        """One optimiser update; None where nothing is left to learn."""
        parameters = list(self.model.parameters())
        total, weight = self._add_policy_gradient(samples, metrics)
        if weight > 0:
            divide(parameters, weight)
        else:
            self._optimizer.zero_grad(set_to_none=True)
        again, strength = replayed
        if not again and weight == 0:
            return None
        loss = total / weight if weight > 0 else 0.0
        if again:
            loss += self._add_imitation_gradient(again, strength)
        return {"loss": loss} | self._descend()

    def _add_policy_gradient(self, samples: Sequence[Sample], metrics: UpdateMetrics) -> tuple[float, float]:
        """Sum and weight of the loss; the gradient of the sum is added to the parameters'."""
        old_logprobs = [sample.old_logprobs for sample in samples]
        total, weight = 0.0, 0.0
        for batch in self._cut.microbatches(self._entropy.chosen(samples, old_logprobs, update=self._updates)):
            logp_BT, entropy_N = self._logprobs(self.model, batch)
            tokens = self._tokens(batch, logp_BT)
            if self._penalised:
                tokens = replace(tokens, logp_reference_BT=self._reference_logp_BT(batch))
            loss_sum, loss_weight = self._objective.loss(tokens)
            loss_sum.backward()
            total, weight = total + loss_sum.item(), weight + loss_weight.item()
            metrics.add(self._objective, tokens, entropy_N[batch.mask_BT[batch.scored_BT]])
        return total, weight

    def _tokens(self, batch: MicroBatch, logp_BT: Tensor) -> PolicyTokens:
        return PolicyTokens(
            logp_BT=logp_BT,
            logp_old_BT=batch.old_logp_BT,
            advantages_BT=batch.advantages_BT,
            mask_BT=batch.mask_BT,
            logp_rollout_BT=batch.rollout_logp_BT,
            chunk_BT=chunk_numbers(batch.scored_BT) if self._uses_chunks else None,
            expert_BT=batch.expert_BT,
            boosted_BT=batch.boosted_BT,
            kept_BT=batch.kept_BT,
            penalised_BT=batch.penalised_BT,
        )

    def _divided(self, replay: Replay, updates: int) -> tuple[list[Imitated], list[Imitated]]:
        """What is replayed beside each of the ``updates``, and what in updates of its own."""
        nothing: list[Imitated] = [((), 0.0)] * updates
        if not replay.active:
            return nothing, []
        now = self.old_logprobs(replay.samples)
        self._replay_entropy.measure(replay.samples, now)
        pairs = list(zip(replay.samples, now, strict=True))
        beside = replay.mode == "sum" and updates > 0
        parts = evenly(pairs, updates) if beside else self._cut.minibatches(pairs)
        chosen = [
            (
                self._replay_entropy.chosen([s for s, _ in part], [row for _, row in part], update=self._updates + i),
                replay.strength,
            )
            for i, part in enumerate(parts)
        ]
        return (chosen, []) if beside else (nothing, chosen)

    def _add_imitation_gradient(self, samples: Sequence[Sample], strength: float) -> float:
        return add_imitation_gradient(
            self.model,
            self._cut.microbatches(samples),
            imitation_clips(self._spec.recipe.objective),
            strength=strength,
            max_response_tokens=_max_response_tokens(self._spec),
            temperature=self._temperature,
        )

    def _preference_step(self, pairs: Sequence[Pair], metrics: PreferenceMetrics) -> dict[str, float]:
        objective = self._spec.recipe.objective
        assert isinstance(objective, Dpo)
        total, weight = 0.0, 0.0
        for batch in pair_batches(pairs, self._cut):
            logp_BT, _ = token_logprobs(self.model, batch.token_ids_BT, batch.mask_BT)
            loss_sum, loss_weight, margin_N = preference_loss(
                logp_BT, self._reference_logp_BT(batch), batch.mask_BT, beta=objective.beta
            )
            loss_sum.backward()
            total, weight = total + loss_sum.item(), weight + loss_weight.item()
            metrics.add(margin_N)
        divide(list(self.model.parameters()), weight)
        return {"loss": total / weight} | self._descend()

    @torch.no_grad()
    def _reference_logp_BT(self, batch: MicroBatch) -> Tensor:
        assert self._reference is not None
        return self._logprobs(self._reference, batch)[0]

    def _logprobs(self, model: Qwen3, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Of policy and reference alike, at the temperature at which the generator took those of the rollouts."""
        return token_logprobs(model, batch.token_ids_BT, batch.scored_BT, temperature=self._temperature)

    def _descend(self) -> dict[str, float]:
        optimizer = self._spec.recipe.optimizer
        learning_rate = optimizer.learning_rate * linear_warmup(self._updates, optimizer.warmup_steps)
        grad_norm = descend(
            list(self.model.parameters()),
            self._optimizer,
            learning_rate=learning_rate,
            grad_clip=optimizer.grad_clip,
        )
        self._updates += 1
        return {"grad_norm": grad_norm, "learning_rate": learning_rate}

    # ---- weights and state ----

    def weights(self) -> dict[str, Tensor]:
        """Copies on the CPU, by their Hugging Face names."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.model.state_dict().items()}

    def save(self, folder: Path, *, beside: Mapping[str, Any] | None = None) -> None:
        """Write ``model/`` (loadable by transformers) and ``trainer.pt`` (everything else, and ``beside``).

        All or nothing.  Raises OSError, also if ``folder`` exists and is not empty.
        """
        with whole_folder(folder) as partial:
            with written(folder / "model"):
                save_pretrained(self.model, partial / "model", tokenizer_for(self._spec.environment.id))
            # Through a file of Python's, whose errors say what happened; torch's own say "iostream error".
            with written(folder / "trainer.pt"), (partial / "trainer.pt").open("wb") as file:
                torch.save(self._state() | {"beside": dict(beside or {})}, file)

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what ``save`` wrote; what follows is bit-identical to never having stopped.

        The answer is what was saved ``beside`` it.  Raises DamagedFile.
        """
        self.use_threads()
        device = self._cut.device
        weights, rest = Path(folder) / "model" / "model.safetensors", Path(folder) / "trainer.pt"
        with read_back(weights):
            self.model.load_state_dict(load_file(weights, device=str(device)))
        with read_back(rest):
            state: dict[str, Any] = torch.load(rest, map_location=device, weights_only=True)
        self._stage, self._updates = state["stage"], state["updates"]
        self._optimizer = adamw(self.model.parameters())
        self._optimizer.load_state_dict(state["optimizer"])
        self._reference = None
        if state.get("reference") is not None:
            self._reference = frozen_copy(self.model)
            self._reference.load_state_dict(state["reference"])
        if state.get("entropy") is not None:
            self._entropy.load(state["entropy"])
        if state.get("replay_entropy") is not None:
            self._replay_entropy.load(state["replay_entropy"])
        beside: dict[str, Any] = state.get("beside", {})
        return beside

    def _state(self) -> dict[str, Any]:
        return {
            "stage": self._stage,
            "updates": self._updates,
            "optimizer": self._optimizer.state_dict(),
            "reference": None if self._reference is None else self._reference.state_dict(),
            "entropy": self._entropy.state(),
            "replay_entropy": self._replay_entropy.state(),
        }

    # ---- shared ----

    @property
    def _cold_start(self) -> ColdStart:
        if self._spec.recipe.cold_start is None:
            raise RuntimeError("this recipe has no cold start")
        return self._spec.recipe.cold_start

    def use_threads(self) -> None:
        torch.set_num_threads(self._spec.resources.threads)

    @property
    def _objective(self) -> PolicyObjective:
        if self._policy_objective is None:
            raise RuntimeError(f"the objective {self._spec.recipe.objective.kind} has no loss on sampled tokens")
        return self._policy_objective


def _put_back(rows: list[list[Any]], batch: MicroBatch, values_BT: Tensor) -> None:
    """Values of a micro-batch to the samples they belong to, without the padding."""
    for i, values_T in zip(batch.rows, values_BT.tolist(), strict=True):
        count = min(len(values_T), len(rows[i]))
        rows[i][:count] = values_T[:count]


def _objective(spec: RunSpec) -> PolicyObjective | None:
    recipe = spec.recipe
    if recipe.objective.kind in ("dpo", "none"):
        return None
    return objective_for(
        recipe.objective,
        max_response_tokens=_max_response_tokens(spec),
        kl=recipe.kl,
        mismatch=recipe.mismatch,
        boosted_clip_high=None if recipe.experience is None else recipe.experience.boosted_clip_high,
    )


def _max_response_tokens(spec: RunSpec) -> int:
    return min(spec.model.context_tokens, spec.environment.max_turns * spec.environment.max_turn_tokens)
