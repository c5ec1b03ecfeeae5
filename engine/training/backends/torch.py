"""The trainer backend of one process: torch, on the CPU or on one GPU.

On the CPU with one thread, equal calls give bit-identical weights.  It keeps no random state: initial weights come from
the run's seed, and the dropout of adapters from the seed and the number of the pass.  ``resources.threads`` is set at
every call: torch keeps it partly per thread and partly per process, where a generator may have set its own.

What is trained are the parameters that require a gradient: all of them, or adapters.  The reference is a copy of those
alone, computed in the policy's own network: with adapters it costs no second model.

Shapes: B sequences, T tokens, N masked tokens, D hidden size.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from engine.durable import read_back, whole_folder, written
from engine.models.network import PolicyNetwork, network_for
from engine.models.origin import model_origin
from engine.seeds import derived_seed
from engine.spec.generation import MODELS_OWN, Distribution
from engine.spec.model import Model
from engine.spec.run import Resources
from engine.training import microbatch
from engine.training.backends.interface import BatchLoss
from engine.training.batch import Sample
from engine.training.gradients import adamw, descend, divide
from engine.training.loss_scale import LossScale
from engine.training.loss_terms.interface import LossTerm, PolicyOutputs, ValueOutputs
from engine.training.microbatch import Batch, MicroBatch, learned_length, microbatches
from engine.training.policy import Scoring

__all__ = ["TorchBackend", "TorchValueNetwork"]

OutputsT = TypeVar("OutputsT")


class TorchBackend:
    """Implements ``interface.TrainerBackend``."""

    def __init__(self, model: Model, resources: Resources, *, seed: int) -> None:
        self._cut = _Cut(resources, context_tokens=model_origin(model).context_tokens)
        self._cut.use_threads()
        self._seed = seed
        self.network = network_for(model, seed=seed, device=self._cut.device)
        self._cut.take_microbatches_of(self.network)
        self._scoring = Scoring(self.network)
        self._parameters = _trained(self.network.module)
        self._optimizer = adamw(self._parameters)
        self._passes = _Passes(self.network, self._parameters, seed=seed)
        self._reference: dict[str, Tensor] | None = None
        """The trained parameters of that moment, by the names that ``_scoring`` gives them."""

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], *, distribution: Distribution = MODELS_OWN) -> list[list[float]]:
        rows = [[0.0] * len(sample) for sample in samples]
        self._scoring.eval()
        for batch in self._cut.microbatches(samples):
            logp_BT, _ = self._scoring(batch.token_ids_BT, batch.scored_BT, distribution, batch.positions_BT)
            for i, logp_T in zip(batch.rows, logp_BT.where(batch.mask_BT, 0.0).tolist(), strict=True):
                count = min(len(logp_T), len(rows[i]))
                rows[i][:count] = logp_T[:count]
        return rows

    def forward_backward(
        self, batch: Batch, loss_terms: Sequence[LossTerm[PolicyOutputs]], *, distribution: Distribution = MODELS_OWN
    ) -> BatchLoss:
        needs_reference = any(term.needs_reference for term in loss_terms)

        def outputs(part: MicroBatch) -> PolicyOutputs:
            logp_BT, entropy_N = self._scoring(part.token_ids_BT, part.scored_BT, distribution, part.positions_BT)
            reference_BT = self._reference_logp_BT(part, distribution) if needs_reference else None
            return PolicyOutputs(logp_BT, entropy_N, reference_BT)

        return self._passes.accumulated(self._cut.microbatches(batch), loss_terms, outputs)

    @torch.no_grad()
    def _reference_logp_BT(self, batch: MicroBatch, distribution: Distribution) -> Tensor:
        if self._reference is None:
            raise RuntimeError("a loss compares the policy with its reference, and none was frozen")
        self._scoring.eval()
        arguments = (batch.token_ids_BT, batch.scored_BT, distribution, batch.positions_BT)
        logp_BT: Tensor = functional_call(self._scoring, self._reference, arguments)[0]
        self._scoring.train()
        return logp_BT

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        self._cut.use_threads()
        return descend(
            self._parameters, self._optimizer, learning_rate=learning_rate, grad_clip=grad_clip, whose="policy"
        )

    def renew_optimizer(self, *, weight_decay: float) -> None:
        self._optimizer = adamw(self._parameters, weight_decay=weight_decay)

    def freeze_reference(self) -> None:
        self._reference = {f"network.{name}": held.clone() for name, held in _state(self.network.module).items()}

    def value_network(self) -> "TorchValueNetwork":
        return TorchValueNetwork(self._cut, copy.deepcopy(self.network), seed=self._seed)

    def weights(self) -> dict[str, Tensor]:
        return self.network.exported()

    def save(self, folder: Path, beside: Mapping[str, Any]) -> None:
        """Write ``model/`` (loadable by transformers) and ``trainer.pt`` (everything else).

        Trained parameters stand in the second too where the first does not hold their every bit.
        """
        state = {
            **beside,
            "optimizer": self._optimizer.state_dict(),
            "reference": self._reference and {_plain(name): held for name, held in self._reference.items()},
            **self._passes.state(),
        }
        if not self.network.is_saved_exactly:
            state["trained"] = _state(self.network.module)
        with whole_folder(folder) as partial:
            with written(folder / "model"):
                self.network.save_folder(partial / "model")
            # Through a file of Python's, whose errors say what happened; torch's own say "iostream error".
            with written(folder / "trainer.pt"), (partial / "trainer.pt").open("wb") as file:
                torch.save(state, file)

    def load(self, folder: Path) -> dict[str, Any]:
        self._cut.use_threads()
        rest = Path(folder) / "trainer.pt"
        if self.network.is_saved_exactly:
            self.network.load_folder(Path(folder) / "model")
        with read_back(rest):
            state: dict[str, Any] = torch.load(rest, map_location=self._cut.device, weights_only=True)
        if not self.network.is_saved_exactly:
            with read_back(rest):
                _load_state(self.network.module, state.pop("trained"))
        self._optimizer = adamw(self._parameters)
        self._optimizer.load_state_dict(state.pop("optimizer"))
        reference = state.pop("reference", None)
        self._reference = reference and {f"network.{name}": held for name, held in reference.items()}
        self._passes.load(state)
        return {name: value for name, value in state.items() if name not in _Passes.STATE}


class TorchValueNetwork:
    """Implements ``interface.ValueNetwork``: a network of the policy's shape with one number as its head.

    The head is all zeros at first, so that the first values are exactly 0.
    """

    def __init__(self, cut: "_Cut", body: PolicyNetwork, *, seed: int) -> None:
        self._cut = cut
        self._body = body
        self._head = nn.Linear(body.hidden_size, 1).to(self._cut.device)
        with torch.no_grad():
            for parameter in self._head.parameters():
                parameter.zero_()
        self._parameters = [*_trained(self._body.module), *self._head.parameters()]
        self._optimizer = adamw(self._parameters)
        self._passes = _Passes(body, self._parameters, seed=seed)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        rows = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
        self._body.module.eval()
        for batch in self._cut.microbatches(samples):
            for i, values_T in zip(batch.rows, self._outputs(batch).values_BT.cpu().numpy(), strict=True):
                count = min(len(values_T), len(rows[i]))
                rows[i][:count] = values_T[:count]
        return rows

    def forward_backward(self, batch: Batch, loss_terms: Sequence[LossTerm[ValueOutputs]]) -> BatchLoss:
        return self._passes.accumulated(self._cut.microbatches(batch), loss_terms, self._outputs)

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        self._cut.use_threads()
        return descend(
            self._parameters, self._optimizer, learning_rate=learning_rate, grad_clip=grad_clip, whose="critic"
        )

    def _outputs(self, batch: MicroBatch) -> ValueOutputs:
        with self._body.computing():
            positions_BT = None if batch.positions_BT is None else batch.positions_BT[:, :-1]
            hidden_BTD = self._body.hidden(batch.token_ids_BT[:, :-1], positions_BT)
        values_N = self._head(hidden_BTD[batch.mask_BT[:, 1:]].float()).squeeze(-1)
        zeros_BT = torch.zeros(batch.token_ids_BT.shape, device=values_N.device)
        return ValueOutputs(zeros_BT.masked_scatter(batch.mask_BT, values_N))

    def state(self) -> dict[str, Any]:
        return {
            "body": dict(_state(self._body.module)),
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            **self._passes.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        _load_state(self._body.module, state["body"])
        self._head.load_state_dict(state["head"])
        self._optimizer = adamw(self._parameters)
        self._optimizer.load_state_dict(state["optimizer"])
        self._passes.load(state)


class _Passes:
    """Forward and backward over the micro-batches of a batch: dropout that repeats, and losses that are scaled."""

    STATE = ("passes", "loss_scale")

    def __init__(self, network: PolicyNetwork, parameters: Sequence[nn.Parameter], *, seed: int) -> None:
        self._module, self._parameters, self._seed = network.module, parameters, seed
        self._draws = any(isinstance(module, nn.Dropout) and module.p > 0 for module in network.module.modules())
        self._scale = LossScale() if network.scales_losses else None
        self._made = 0

    def accumulated(
        self,
        batches: Sequence[MicroBatch],
        terms: Sequence[LossTerm[OutputsT]],
        outputs_of: Callable[[MicroBatch], OutputsT],
    ) -> BatchLoss:
        """Add the gradient of the batch's mean to that of the parameters."""
        self._module.train()
        self._made += 1
        if self._scale is None:
            return self._drawn(lambda: _accumulated(self._parameters, batches, terms, outputs_of))
        return self._scale.accumulated(
            self._parameters,
            lambda scale: self._drawn(lambda: _accumulated(self._parameters, batches, terms, outputs_of, scale=scale)),
        )

    def _drawn(self, compute: Callable[[], BatchLoss]) -> BatchLoss:
        """What is dropped follows from the run's seed and the number of the pass, so a resumed run drops the same."""
        if not self._draws:
            return compute()
        with torch.random.fork_rng():
            torch.manual_seed(derived_seed("dropout", self._seed, self._made))
            return compute()

    def state(self) -> dict[str, Any]:
        """What later passes depend on, by the names of ``STATE``; empty where they depend on nothing."""
        state: dict[str, Any] = {"passes": self._made} if self._draws else {}
        return state if self._scale is None else state | {"loss_scale": self._scale.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave, among other things."""
        self._made = state.get("passes", 0)
        if self._scale is not None:
            self._scale.load(state["loss_scale"])


class _Cut:
    """Where and with how many threads a run computes, and the micro-batches of its batches."""

    def __init__(self, resources: Resources, *, context_tokens: int) -> None:
        self.device = torch.device(resources.device)
        self._threads = resources.threads
        self._context = context_tokens
        self._tokens: int | None = None

    def take_microbatches_of(self, network: PolicyNetwork) -> None:
        """From now on micro-batches are as large as the model's spec says."""
        self._tokens = network.microbatch_tokens

    def use_threads(self) -> None:
        torch.set_num_threads(self._threads)

    def microbatches(self, batch: Batch) -> list[MicroBatch]:
        """Raises ValueError where a sample does not fit into the context."""
        self.use_threads()
        longest = max(map(learned_length, batch), default=0)
        if longest > self._context:
            raise ValueError(f"a sample of {longest} tokens is longer than the context of {self._context}")
        return microbatches(batch, device=self.device, max_tokens=self._tokens or microbatch.MICROBATCH_TOKENS)


def _accumulated(
    parameters: Sequence[nn.Parameter],
    batches: Sequence[MicroBatch],
    terms: Sequence[LossTerm[OutputsT]],
    outputs_of: Callable[[MicroBatch], OutputsT],
    scale: float = 1.0,
) -> BatchLoss:
    """Add the gradient of the batch's mean, times ``scale``, to that of the parameters.

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
            scaled_sum = loss_sum if scale == 1 else loss_sum * scale
            (scaled_sum / weight if beside else scaled_sum).backward()
            total += loss_sum.item()
        for observed, term in zip(observations, terms, strict=True):
            observed.append(term.observed(batch, outputs))
    if weight > 0 and not beside:
        divide(parameters, weight)
    return BatchLoss(total / weight if weight > 0 else 0.0, weight, observations)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _state(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by their names, without a copy."""
    return {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def _load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raises KeyError and RuntimeError where ``state`` is of another network."""
    for name, parameter in _state(module).items():
        parameter.copy_(state[name])


def _plain(name: str) -> str:
    return name.removeprefix("network.")
