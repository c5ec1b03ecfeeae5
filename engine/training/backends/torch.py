"""The trainer backend of one process: torch, on the CPU or on one GPU.

On the CPU with one thread, equal calls give bit-identical weights.  It keeps no random state: initial weights come from
the run's seed.  ``resources.threads`` is set at every call: torch keeps it partly per thread and partly per process,
where a generator may have set its own.

Shapes: B sequences, T tokens, N masked tokens, D hidden size.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.durable import read_back, whole_folder, written
from engine.models.qwen3 import Qwen3, save_pretrained
from engine.models.tokenizer import tokenizer_for
from engine.spec.run import RunSpec
from engine.training import microbatch
from engine.training.backends.interface import BatchLoss
from engine.training.batch import Sample
from engine.training.gradients import adamw, descend, divide
from engine.training.loss_terms.interface import LossTerm, PolicyOutputs, ValueOutputs
from engine.training.microbatch import Batch, MicroBatch, learned_length, microbatches
from engine.training.policy import token_logprobs

__all__ = ["TorchBackend", "TorchValueNetwork"]

OutputsT = TypeVar("OutputsT")


class TorchBackend:
    """Implements ``interface.TrainerBackend``."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._cut = _Cut(spec)
        self._cut.use_threads()
        self.model = Qwen3(spec.model, len(tokenizer_for(spec.model.vocabulary)), seed=spec.seed).to(self._cut.device)
        self._parameters = list(self.model.parameters())
        self._optimizer = adamw(self._parameters)
        self._reference: Qwen3 | None = None

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], *, temperature: float = 1.0) -> list[list[float]]:
        rows = [[0.0] * len(sample) for sample in samples]
        for batch in self._cut.microbatches(samples):
            logp_BT, _ = token_logprobs(self.model, batch.token_ids_BT, batch.scored_BT, temperature=temperature)
            for i, logp_T in zip(batch.rows, logp_BT.where(batch.mask_BT, 0.0).tolist(), strict=True):
                count = min(len(logp_T), len(rows[i]))
                rows[i][:count] = logp_T[:count]
        return rows

    def forward_backward(
        self, batch: Batch, loss_terms: Sequence[LossTerm[PolicyOutputs]], *, temperature: float = 1.0
    ) -> BatchLoss:
        needs_reference = any(term.needs_reference for term in loss_terms)

        def outputs(part: MicroBatch) -> PolicyOutputs:
            logp_BT, entropy_N = token_logprobs(self.model, part.token_ids_BT, part.scored_BT, temperature=temperature)
            reference_BT = self._reference_logp_BT(part, temperature) if needs_reference else None
            return PolicyOutputs(logp_BT, entropy_N, reference_BT)

        return _accumulated(self._parameters, self._cut.microbatches(batch), loss_terms, outputs)

    @torch.no_grad()
    def _reference_logp_BT(self, batch: MicroBatch, temperature: float) -> Tensor:
        if self._reference is None:
            raise RuntimeError("a loss compares the policy with its reference, and none was frozen")
        return token_logprobs(self._reference, batch.token_ids_BT, batch.scored_BT, temperature=temperature)[0]

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        self._cut.use_threads()
        return descend(
            self._parameters, self._optimizer, learning_rate=learning_rate, grad_clip=grad_clip, whose="policy"
        )

    def renew_optimizer(self, *, weight_decay: float) -> None:
        self._optimizer = adamw(self._parameters, weight_decay=weight_decay)

    def freeze_reference(self) -> None:
        self._reference = _frozen_copy(self.model)

    def value_network(self) -> "TorchValueNetwork":
        return TorchValueNetwork(self._spec, copy.deepcopy(self.model))

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.model.state_dict().items()}

    def save(self, folder: Path, beside: Mapping[str, Any]) -> None:
        """Write ``model/`` (loadable by transformers) and ``trainer.pt`` (everything else)."""
        state = {
            **beside,
            "optimizer": self._optimizer.state_dict(),
            "reference": None if self._reference is None else self._reference.state_dict(),
        }
        with whole_folder(folder) as partial:
            with written(folder / "model"):
                save_pretrained(self.model, partial / "model", tokenizer_for(self._spec.model.vocabulary))
            # Through a file of Python's, whose errors say what happened; torch's own say "iostream error".
            with written(folder / "trainer.pt"), (partial / "trainer.pt").open("wb") as file:
                torch.save(state, file)

    def load(self, folder: Path) -> dict[str, Any]:
        self._cut.use_threads()
        weights, rest = Path(folder) / "model" / "model.safetensors", Path(folder) / "trainer.pt"
        with read_back(weights):
            self.model.load_state_dict(load_file(weights, device=str(self._cut.device)))
        with read_back(rest):
            state: dict[str, Any] = torch.load(rest, map_location=self._cut.device, weights_only=True)
        self._optimizer = adamw(self._parameters)
        self._optimizer.load_state_dict(state.pop("optimizer"))
        reference = state.pop("reference", None)
        self._reference = None if reference is None else _frozen_copy(self.model)
        if self._reference is not None:
            self._reference.load_state_dict(reference)
        return state


class TorchValueNetwork:
    """Implements ``interface.ValueNetwork``: a network of the policy's shape with one number as its head.

    The head is all zeros at first, so that the first values are exactly 0.
    """

    def __init__(self, spec: RunSpec, body: Qwen3) -> None:
        self._cut = _Cut(spec)
        self._body = body
        self._head = nn.Linear(spec.model.hidden_size, 1).to(self._cut.device)
        with torch.no_grad():
            for parameter in self._head.parameters():
                parameter.zero_()
        self._parameters = [*self._body.parameters(), *self._head.parameters()]
        self._optimizer = adamw(self._parameters)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        rows = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
        for batch in self._cut.microbatches(samples):
            for i, values_T in zip(batch.rows, self._outputs(batch).values_BT.cpu().numpy(), strict=True):
                count = min(len(values_T), len(rows[i]))
                rows[i][:count] = values_T[:count]
        return rows

    def forward_backward(self, batch: Batch, loss_terms: Sequence[LossTerm[ValueOutputs]]) -> BatchLoss:
        return _accumulated(self._parameters, self._cut.microbatches(batch), loss_terms, self._outputs)

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        self._cut.use_threads()
        return descend(
            self._parameters, self._optimizer, learning_rate=learning_rate, grad_clip=grad_clip, whose="critic"
        )

    def _outputs(self, batch: MicroBatch) -> ValueOutputs:
        hidden_BTD = self._body.hidden(batch.token_ids_BT[:, :-1])
        values_N = self._head(hidden_BTD[batch.mask_BT[:, 1:]]).squeeze(-1)
        zeros_BT = torch.zeros(batch.token_ids_BT.shape, device=values_N.device)
        return ValueOutputs(zeros_BT.masked_scatter(batch.mask_BT, values_N))

    def state(self) -> dict[str, Any]:
        return {
            "body": self._body.state_dict(),
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._body.load_state_dict(state["body"])
        self._head.load_state_dict(state["head"])
        self._optimizer = adamw(self._parameters)
        self._optimizer.load_state_dict(state["optimizer"])


class _Cut:
    """Where and with how many threads a run computes, and the micro-batches of its batches."""

    def __init__(self, spec: RunSpec) -> None:
        self.device = torch.device(spec.resources.device)
        self._threads = spec.resources.threads
        self._context = spec.model.context_tokens

    def use_threads(self) -> None:
        torch.set_num_threads(self._threads)

    def microbatches(self, batch: Batch) -> list[MicroBatch]:
        """Raises ValueError where a sample does not fit into the context."""
        self.use_threads()
        longest = max(map(learned_length, batch), default=0)
        if longest > self._context:
            raise ValueError(f"a sample of {longest} tokens is longer than the context of {self._context}")
        return microbatches(batch, device=self.device, max_tokens=microbatch.MICROBATCH_TOKENS)


def _accumulated(
    parameters: Sequence[nn.Parameter],
    batches: Sequence[MicroBatch],
    terms: Sequence[LossTerm[OutputsT]],
    outputs_of: Callable[[MicroBatch], OutputsT],
) -> BatchLoss:
    """Add the gradient of the batch's mean to that of the parameters.

    A gradient that stands alone is summed first and divided once, which rounds once per weight.  Beside one that is a
    mean already, each micro-batch is divided before it is added.
    """
    weight = float(sum(term.weight(batch).item() for batch in batches for term in terms))
    beside = any(parameter.grad is not None for parameter in parameters)
    total = 0.0
    observations: list[list[Any]] = [[] for _ in terms]
    for batch in batches:
        with torch.set_grad_enabled(weight > 0):
            outputs = outputs_of(batch)
        if weight > 0:
            loss_sum = sum((term.loss(batch, outputs) for term in terms[1:]), terms[0].loss(batch, outputs))
            (loss_sum / weight if beside else loss_sum).backward()
            total += loss_sum.item()
        for observed, term in zip(observations, terms, strict=True):
            observed.append(term.observed(batch, outputs))
    if weight > 0 and not beside:
        divide(parameters, weight)
    return BatchLoss(total / weight if weight > 0 else 0.0, weight, observations)


def _frozen_copy(model: Qwen3) -> Qwen3:
    return copy.deepcopy(model).requires_grad_(False)
