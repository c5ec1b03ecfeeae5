"""Updates of the policy: the supervised cold start, then reinforcement learning.

Algorithm-blind: it sees token ids, masks, log-probs, per-token advantages and a loss that gives
``(sum, weight)``.  It makes no rollout and reads no reward.

On the CPU with one thread, equal calls give bit-identical weights.  It keeps no random state: initial
weights come from the run's seed, the cold start's batches from (seed, step).
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.algorithms.objectives import PolicyTokens, objective_for
from engine.algorithms.schedules import linear_warmup, warmup_then_cosine
from engine.models.qwen3 import Qwen3, save_pretrained
from engine.models.tokenizer import default_tokenizer
from engine.spec.run import RunSpec
from engine.training.batch import Sample
from engine.training.metrics import UpdateMetrics
from engine.training.microbatch import MICROBATCH_TOKENS, MicroBatch, microbatches
from engine.training.policy import token_logprobs

ADAM_BETAS = (0.9, 0.95)
COLD_START_WARMUP = 0.05
"""Share of the cold start's steps over which its learning rate rises."""
COLD_START_FLOOR = 0.1
"""Share of its peak at which the cold start's learning rate ends."""

Stage = Literal["cold-start", "reinforcement"]


class NothingToTrain(ValueError):
    """No sample of the batch has a token to learn from."""


class Trainer:
    """The weights, their optimiser and their counters.

    ``resources.threads`` is set at every call: torch keeps it partly per thread and partly per process,
    where a generator may have set its own.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._use_threads()
        self._device = torch.device(spec.resources.device)
        self.model = Qwen3(spec.model, len(default_tokenizer()), seed=spec.seed).to(self._device)
        self._objective = objective_for(spec.recipe.objective, max_response_tokens=_max_response_tokens(spec))
        self._stage: Stage = "cold-start"
        self._optimizer = self._fresh_optimizer(weight_decay=0.0)
        self._updates = 0

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
        self._use_threads()
        if self._stage != "cold-start":
            raise RuntimeError("the cold start comes before reinforcement learning")
        history = []
        for step in range(first_step, first_step + steps):
            metrics = self._supervised_step([samples[i] for i in self._cold_start_batch(len(samples), step)], step)
            history.append(metrics)
            if on_progress is not None:
                on_progress(step, metrics)
        return history

    def _supervised_step(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        recipe = self._spec.recipe.cold_start
        assert recipe is not None
        total, weight = 0.0, sum(int(sample.loss_mask.sum()) for sample in samples)
        for batch in self._microbatches(samples):
            logp_BT, _ = token_logprobs(self.model, batch.token_ids_BT, batch.mask_BT)
            loss = -logp_BT.sum()
            loss.backward()
            total += loss.item()
        warmup = int(COLD_START_WARMUP * recipe.steps)
        factor = warmup_then_cosine(step, recipe.steps, warmup_updates=warmup, floor=COLD_START_FLOOR)
        grad_norm = self._apply_gradient(weight, recipe.learning_rate * factor)
        return {
            "loss": total / weight,
            "grad_norm": grad_norm,
            "learning_rate": recipe.learning_rate * factor,
            "tokens": float(weight),
        }

    def _cold_start_batch(self, count: int, step: int) -> list[int]:
        """Epoch after epoch, each in its own order drawn from (seed, epoch)."""
        recipe = self._spec.recipe.cold_start
        if recipe is None:
            raise RuntimeError("this recipe has no cold start")
        size = min(recipe.batch_size, count)
        epochs, picked = count // size, step  # full batches of an epoch
        epoch, part = divmod(picked, epochs)
        order = np.random.Generator(np.random.Philox(key=[self._spec.seed, epoch])).permutation(count)
        return order[part * size : (part + 1) * size].tolist()

    # ---- reinforcement learning ----

    @torch.no_grad()
    def old_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Log-probs under the present weights, aligned with each sample's tokens; 0 outside its mask.

        Cut into the same minibatches and micro-batches as ``update``, so the first ratios there are exactly 1.
        """
        self._use_threads()
        answers: list[list[float]] = []
        for minibatch in self._minibatches(samples):
            rows = [[0.0] * len(sample) for sample in minibatch]
            for batch in self._microbatches(minibatch):
                logp_BT, _ = token_logprobs(self.model, batch.token_ids_BT, batch.mask_BT)
                for i, logp_T in zip(batch.rows, logp_BT.tolist(), strict=True):
                    count = min(len(logp_T), len(minibatch[i]))
                    rows[i][:count] = logp_T[:count]
            answers += rows
        return answers

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One pass over the samples in their order, one optimiser update per minibatch of the schedule.

        Metrics: loss and grad_norm (means over the updates), learning_rate (the last); over the sampled
        tokens: entropy, clip_fraction, ratio_mean, ratio_max, kl_to_old (k3), mismatch_kl (k3) and
        mismatch_max (largest absolute difference of log-probs) of old against rollout; tokens.
        Raises NothingToTrain if every token is masked.
        """
        self._use_threads()
        trained = [
            minibatch for minibatch in self._minibatches(samples) if any(sample.loss_mask.any() for sample in minibatch)
        ]
        if not trained:
            raise NothingToTrain(f"none of {len(samples)} samples has a token to learn from")
        self._enter_reinforcement()
        metrics = UpdateMetrics()
        reports = [self._policy_step(minibatch, metrics) for minibatch in trained]
        means = {name: sum(report[name] for report in reports) / len(reports) for name in ("loss", "grad_norm")}
        return {**means, "learning_rate": reports[-1]["learning_rate"], **metrics.values()}

    def _policy_step(self, samples: Sequence[Sample], metrics: UpdateMetrics) -> dict[str, float]:
        total, weight = 0.0, 0.0
        for batch in self._microbatches(samples):
            logp_BT, entropy_N = token_logprobs(self.model, batch.token_ids_BT, batch.mask_BT)
            tokens = PolicyTokens(logp_BT, batch.old_logp_BT, batch.advantages_BT, batch.mask_BT)
            loss_sum, loss_weight = self._objective.loss(tokens)
            loss_sum.backward()
            total, weight = total + loss_sum.item(), weight + loss_weight.item()
            metrics.add(self._objective, tokens, batch.rollout_logp_BT, entropy_N)
        optimizer = self._spec.recipe.optimizer
        learning_rate = optimizer.learning_rate * linear_warmup(self._updates, optimizer.warmup_steps)
        grad_norm = self._apply_gradient(weight, learning_rate)
        self._updates += 1
        return {"loss": total / weight, "grad_norm": grad_norm, "learning_rate": learning_rate}

    def _enter_reinforcement(self) -> None:
        """The optimiser starts fresh: moments of the cold start say nothing about rewards."""
        if self._stage == "cold-start":
            self._stage = "reinforcement"
            self._optimizer = self._fresh_optimizer(weight_decay=self._spec.recipe.optimizer.weight_decay)

    # ---- weights and state ----

    def weights(self) -> dict[str, Tensor]:
        """Copies on the CPU, by their Hugging Face names."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.model.state_dict().items()}

    def save(self, folder: Path) -> None:
        """Write ``model/`` (loadable by transformers) and ``trainer.pt`` (optimiser and counters).

        All or nothing: written beside ``folder``, fsynced, then renamed.  Raises OSError if
        ``folder`` exists and is not empty.
        """
        folder = Path(folder)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        save_pretrained(self.model, partial / "model", default_tokenizer())
        state = {"stage": self._stage, "updates": self._updates, "optimizer": self._optimizer.state_dict()}
        torch.save(state, partial / "trainer.pt")
        for path in [*partial.rglob("*"), partial]:
            _fsync(path)
        partial.rename(folder)
        _fsync(folder.parent)

    def load(self, folder: Path) -> None:
        """Take over what ``save`` wrote; what follows is bit-identical to never having stopped."""
        self._use_threads()
        folder = Path(folder)
        self.model.load_state_dict(load_file(folder / "model" / "model.safetensors", device=str(self._device)))
        state: dict[str, Any] = torch.load(folder / "trainer.pt", map_location=self._device, weights_only=True)
        self._stage, self._updates = state["stage"], state["updates"]
        self._optimizer = self._fresh_optimizer(weight_decay=0.0)
        self._optimizer.load_state_dict(state["optimizer"])

    # ---- shared ----

    def _use_threads(self) -> None:
        torch.set_num_threads(self._spec.resources.threads)

    def _minibatches(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        size = self._spec.schedule.minibatch_trajectories
        return [samples[start : start + size] for start in range(0, len(samples), size)]

    def _microbatches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        longest = max((sample.learned_length for sample in samples), default=0)
        if longest > self._spec.model.context_tokens:
            raise ValueError(
                f"a sample of {longest} tokens is longer than the context of {self._spec.model.context_tokens}"
            )
        return microbatches(samples, device=self._device, max_tokens=MICROBATCH_TOKENS)

    def _fresh_optimizer(self, *, weight_decay: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(self.model.parameters(), betas=ADAM_BETAS, weight_decay=weight_decay, foreach=True)

    def _apply_gradient(self, weight: float, learning_rate: float) -> float:
        """Divide the summed gradient by its weight, clip it, step; the norm before clipping."""
        parameters = list(self.model.parameters())
        for parameter in parameters:
            assert parameter.grad is not None  # every parameter of the model takes part in every token
            parameter.grad.div_(weight)
        grad_norm = nn.utils.clip_grad_norm_(parameters, self._spec.recipe.optimizer.grad_clip, error_if_nonfinite=True)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return grad_norm.item()


def _max_response_tokens(spec: RunSpec) -> int:
    return min(spec.model.context_tokens, spec.environment.max_turns * spec.environment.max_turn_tokens)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
