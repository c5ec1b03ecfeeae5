"""The trainer backend of one process: torch, on the CPU or on one GPU; and a rank of one that is sharded.

As a rank it holds its part of every weight, and is given its part of every batch (``sharded.py``); it adds up with the
others what the loss is divided by, and goes through as many micro-batches as the rank that has most.

On the CPU with one thread, equal calls give bit-identical weights.  It keeps no random state: initial weights come from
the run's seed, and the dropout of adapters from the seed and the number of the pass.  ``resources.threads`` is set at
every call: torch keeps it partly per thread and partly per process, where a generator may have set its own.

What is trained are the parameters that require a gradient: all of them, or adapters.  The reference is a copy of those
alone, put in their place while it is computed: with adapters it costs no second model.

Shapes: B sequences, T tokens, N masked tokens, D hidden size.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from engine.durable import read_back, whole_folder, written
from engine.models.network import PolicyNetwork, even_attention, network_for
from engine.models.origin import model_origin
from engine.models.shards import laid_out_like, whole
from engine.models.weights import LoraAdapter
from engine.seeds import derived_seed
from engine.spec.generation import MODELS_OWN, Distribution
from engine.spec.model import Model
from engine.spec.resources import Resources
from engine.training import microbatch
from engine.training.adamw import AdamW
from engine.training.backends.interface import BatchLoss
from engine.training.backends.sharding import ALONE, SHARDS, Rank
from engine.training.backends.threads import Threads
from engine.training.batch import Sample
from engine.training.gradients import descend, divide
from engine.training.loss_scale import LossScale
from engine.training.loss_terms.interface import LossTerm, PolicyOutputs, ValueOutputs
from engine.training.microbatch import Batch, MicroBatch, learned_length, microbatches, without_rows
from engine.training.policy import Scoring

__all__ = ["TorchBackend", "TorchValueNetwork"]

OutputsT = TypeVar("OutputsT", PolicyOutputs, ValueOutputs)
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps of a parameter."""


class TorchBackend:
    """Implements ``interface.TrainerBackend``; as one of several ranks, what ``ShardedBackend`` asks of each."""

    def __init__(self, model: Model, resources: Resources, *, seed: int, rank: Rank = ALONE) -> None:
        self._cut = _Cut(resources, rank, context_tokens=model_origin(model).context_tokens, seed=seed)
        self._cut.use_threads()
        self._begin: Callable[[], PolicyNetwork] = lambda: network_for(model, seed=seed, device=self._cut.loads_on)
        self.network = self._begin()
        self._cut.take_microbatches_of(self.network)
        self._scoring = Scoring(self.network)
        rank.shard(self._scoring, self.network.layers, self.network.computed_in)
        self._parameters = _trained(self.network.module)
        self._optimizer = AdamW(self._parameters)
        self._passes = _Passes(self.network, self._parameters, self._scoring, self._cut)
        self._reference: dict[str, Tensor] | None = None
        """The trained parameters of that moment, by their names."""

    def logprobs(self, samples: Sequence[Sample], *, distribution: Distribution = MODELS_OWN) -> list[list[float]]:
        rows = [[0.0] * len(sample) for sample in samples]
        self._scoring.eval()
        batches = self._cut.microbatches(samples)

        def score(numbers: list[int]) -> None:
            """Each sample is in one micro-batch, so threads write different rows."""
            with torch.no_grad():
                for batch in (batches[number] for number in numbers):
                    logp_BT, _ = self._scored(batch, distribution)
                    logp_BT = logp_BT.where(batch.mask_BT, 0.0)[: len(batch.rows)]
                    for i, logp_T in zip(batch.rows, logp_BT.tolist(), strict=True):
                        count = min(len(logp_T), len(rows[i]))
                        rows[i][:count] = logp_T[:count]

        self._cut.threads.each(batches, score)
        self._cut.rank.rest(self._scoring)
        return rows

    def forward_backward(
        self, batch: Batch, loss_terms: Sequence[LossTerm[PolicyOutputs]], *, distribution: Distribution = MODELS_OWN
    ) -> BatchLoss:
        batches = self._cut.microbatches(batch)
        references: Sequence[Tensor | None] = [None] * len(batches)
        if any(term.needs_reference for term in loss_terms):
            references = self._reference_logps(batches, distribution)

        def outputs(number: int) -> PolicyOutputs:
            part = batches[number]
            logp_BT, entropy_N = self._scored(part, distribution)
            return PolicyOutputs(logp_BT, entropy_N, references[number])

        return self._passes.accumulated(batches, loss_terms, outputs)

    @torch.no_grad()
    def _reference_logps(self, batches: Sequence[MicroBatch], distribution: Distribution) -> list[Tensor]:
        """[B, T] for each micro-batch."""
        if self._reference is None:
            raise RuntimeError("a loss compares the policy with its reference, and none was frozen")
        self._scoring.eval()
        _exchange(_state(self.network.module), self._reference)
        try:
            return [self._scored(batch, distribution)[0] for batch in batches]
        finally:
            self._cut.rank.rest(self._scoring)
            _exchange(_state(self.network.module), self._reference)

    def _scored(self, batch: MicroBatch, distribution: Distribution) -> tuple[Tensor, Tensor]:
        """As ``token_logprobs``."""
        return self._scoring(  # type: ignore[no-any-return]
            batch.token_ids_BT, batch.scored_BT, distribution, batch.positions_BT, batch.trees
        )

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        self._cut.use_threads()
        return descend(
            self._parameters, self._optimizer, learning_rate=learning_rate, grad_clip=grad_clip, whose="policy"
        )

    def renew_optimizer(self, *, weight_decay: float) -> None:
        self._optimizer = AdamW(self._parameters, weight_decay=weight_decay)

    def set_weight_decay(self, weight_decay: float) -> None:
        for group in self._optimizer.param_groups:
            group["weight_decay"] = weight_decay

    def freeze_reference(self) -> None:
        self._reference = {name: held.clone() for name, held in _state(self.network.module).items()}

    def value_network(self) -> "TorchValueNetwork":
        """On several ranks the body is begun anew, since what is sharded is not copied as a whole."""
        if self._cut.rank is ALONE:
            return TorchValueNetwork(self._cut, copy.deepcopy(self.network))
        critic = TorchValueNetwork(self._cut, self._begin())
        critic.begin_as(_state(self.network.module))
        return critic

    def weights(self) -> dict[str, Tensor]:
        return self.network.exported()

    def adapter(self) -> LoraAdapter:
        return self.network.exported_adapter()

    def save(self, folder: Path, beside: Mapping[str, Any]) -> None:
        """Write ``model/`` (loadable by transformers) and ``trainer.pt`` (everything else).

        Trained parameters stand in the second too where the first does not hold their every bit.
        """
        state = {
            **beside,
            "optimizer": self._optimizer.state_dict(),
            "reference": self._reference,
            **self._passes.state(),
        }
        if not self.network.is_saved_exactly:
            state["trained"] = _state(self.network.module)
        with whole_folder(folder) as partial:
            with written(folder / "model"):
                self.network.save_folder(partial / "model")
            write_rest(partial, folder, state)

    def load(self, folder: Path) -> dict[str, Any]:
        """Also on other ranks than those that saved: on more, on fewer, on one."""
        self._cut.use_threads()
        rest = Path(folder) / "trainer.pt"
        with read_back(rest):
            state: dict[str, Any] = torch.load(rest, map_location=self._cut.loads_on, weights_only=True)
        if (Path(folder) / SHARDS).is_dir():
            self._load_shards(Path(folder) / SHARDS, state.pop("param_groups"))
        else:
            self._load_whole(Path(folder) / "model", rest, state)
        self._passes.load(state)
        return {name: value for name, value in state.items() if name not in _Passes.STATE}

    def _load_whole(self, model: Path, rest: Path, state: dict[str, Any]) -> None:
        if self.network.is_saved_exactly:
            self.network.load_folder(model)
        else:
            with read_back(rest):
                _load_state(self.network.module, state.pop("trained"))
        self._take_optimizer(state.pop("optimizer"))
        reference = state.pop("reference", None)
        held = _state(self.network.module)
        self._reference = reference and {name: laid_out_like(held[name], of) for name, of in reference.items()}

    def _load_shards(self, folder: Path, param_groups: list[dict[str, Any]]) -> None:
        trained = _state(self.network.module)

        def like(name: str) -> Tensor:
            part, _, parameter = name.partition("/")
            return torch.zeros(()) if part == "step" else trained[parameter]

        from engine.training.backends.sharded_rank import read_shards

        tensors = read_shards(folder, like, self._cut.rank)
        moments: dict[int, dict[str, Tensor]] = {}
        for number, name in enumerate(trained):
            of = {part: tensors.get(f"{part}/{name}") for part in MOMENTS}
            if held := {part: tensor for part, tensor in of.items() if tensor is not None}:
                moments[number] = held
        with read_back(folder):
            _load_state(self.network.module, _below("trained", tensors))
        self._take_optimizer({"state": moments, "param_groups": param_groups})
        self._reference = _below("reference", tensors) or None

    def _take_optimizer(self, state: Mapping[str, Any]) -> None:
        self._optimizer = AdamW(self._parameters)
        self._optimizer.load_state_dict(_moments_like(self._parameters, state))

    # ---- as one of several ranks ----

    def refuse_too_long(self, batch: Batch) -> None:
        """Raises ValueError where a sample does not fit into the context."""
        self._cut.refuse_too_long(batch)

    def make_critic(self) -> None:
        """From now on ``critic`` is this rank's part of a critic."""
        self.critic = self.value_network()

    def weights_for_the_leader(self) -> dict[str, Tensor] | None:
        """The weights; on the other ranks None, and their part in putting them together."""
        weights = self.weights()
        return weights if self._cut.rank.number == 0 else None

    def adapter_for_the_leader(self) -> LoraAdapter | None:
        """The adapter; on the other ranks None, as for ``weights_for_the_leader``."""
        adapter = self.adapter()
        return adapter if self._cut.rank.number == 0 else None

    def save_model(self, folder: Path | None) -> None:
        """This rank's part in the writing of ``model/``, which the first one writes."""
        self.network.save_folder(folder)

    def save_shards(self, folder: Path) -> dict[str, Any]:
        """Write this rank's part of weights, optimiser and reference; the answer is what is equal on all ranks."""
        trained, moments = _state(self.network.module), self._optimizer.state_dict()
        tensors = {f"trained/{name}": held for name, held in trained.items()}
        for number, name in enumerate(trained):
            tensors |= {f"{moment}/{name}": held for moment, held in moments["state"].get(number, {}).items()}
        tensors |= {f"reference/{name}": held for name, held in (self._reference or {}).items()}
        from engine.training.backends.sharded_rank import write_shards

        write_shards(folder, tensors)
        return {"param_groups": moments["param_groups"], **self._passes.state()}

    def critic_for_the_leader(self) -> dict[str, Any] | None:
        """The critic's state; on the other ranks None, and their part in putting it together."""
        state = self.critic.state()
        return state if self._cut.rank.number == 0 else None


class TorchValueNetwork:
    """Implements ``interface.ValueNetwork``: a network of the policy's shape with one number as its head.

    The head is all zeros at first, so that the first values are exactly 0.  Every row is computed in whole, also where
    the policy's share their beginnings.
    """

    def __init__(self, cut: "_Cut", body: PolicyNetwork) -> None:
        self._cut = cut
        self._body = body
        head = nn.Linear(body.hidden_size, 1).to(cut.loads_on)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.zero_()
        self._valuing = Valuing(body, head)
        cut.rank.shard(self._valuing, body.layers, body.computed_in)
        self._parameters = [*_trained(body.module), *head.parameters()]
        self._optimizer = AdamW(self._parameters)
        self._passes = _Passes(body, self._parameters, self._valuing, cut)

    def begin_as(self, policy: Mapping[str, Tensor]) -> None:
        """Take over the policy's trained parameters, sharded as the body's are."""
        _load_state(self._body.module, policy)

    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        rows = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
        self._valuing.eval()
        batches = self._cut.microbatches(samples, in_whole_rows=True)

        def value(numbers: list[int]) -> None:
            """Each sample is in one micro-batch, so threads write different rows."""
            with torch.no_grad():
                for batch in (batches[number] for number in numbers):
                    values_BT = self._outputs(batch).values_BT.cpu().numpy()
                    for i, values_T in zip(batch.rows, values_BT[: len(batch.rows)], strict=True):
                        count = min(len(values_T), len(rows[i]))
                        rows[i][:count] = values_T[:count]

        self._cut.threads.each(batches, value)
        self._cut.rank.rest(self._valuing)
        return rows

    def forward_backward(self, batch: Batch, loss_terms: Sequence[LossTerm[ValueOutputs]]) -> BatchLoss:
        batches = self._cut.microbatches(batch, in_whole_rows=True)
        return self._passes.accumulated(batches, loss_terms, lambda number: self._outputs(batches[number]))

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        self._cut.use_threads()
        return descend(
            self._parameters, self._optimizer, learning_rate=learning_rate, grad_clip=grad_clip, whose="critic"
        )

    def _outputs(self, batch: MicroBatch) -> ValueOutputs:
        return ValueOutputs(self._valuing(batch.token_ids_BT, batch.mask_BT, batch.positions_BT))

    def state(self) -> dict[str, Any]:
        """Whole, on however many ranks."""
        optimizer = self._optimizer.state_dict()
        moments = {
            number: {part: whole(tensor) for part, tensor in of.items()} for number, of in optimizer["state"].items()
        }
        return {
            "body": {name: whole(tensor) for name, tensor in _state(self._body.module).items()},
            "head": {name: whole(tensor) for name, tensor in self._valuing.head.state_dict().items()},
            "optimizer": {"state": moments, "param_groups": optimizer["param_groups"]},
            **self._passes.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        _load_state(self._body.module, state["body"])
        _load_state(self._valuing.head, state["head"])
        self._optimizer = AdamW(self._parameters)
        self._optimizer.load_state_dict(_moments_like(self._parameters, state["optimizer"]))
        self._passes.load(state)


class Valuing(nn.Module):
    """What a critic computes, as a module: the root of what is sharded."""

    def __init__(self, body: PolicyNetwork, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body.module, head
        self._body = (body,)  # in a tuple, or it would be registered a second time

    def forward(self, token_ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        """The value [B, T] before each token of the mask; 0 elsewhere."""
        (body,) = self._body
        with body.computing():
            hidden_BTD = body.hidden(token_ids_BT[:, :-1], None if positions_BT is None else positions_BT[:, :-1])
        values_N = self.head(hidden_BTD[mask_BT[:, 1:]].float()).squeeze(-1)
        return torch.zeros(token_ids_BT.shape, device=values_N.device).masked_scatter(mask_BT, values_N)


class _Passes:
    """Forward and backward over the micro-batches of a batch: dropout that repeats, and losses that are scaled."""

    STATE = ("passes", "loss_scale")

    def __init__(
        self, network: PolicyNetwork, parameters: Sequence[nn.Parameter], root: nn.Module, cut: "_Cut"
    ) -> None:
        """``root`` is what computes the outputs, the network in it."""
        self._root, self._parameters, self._seed, self._rank = root, parameters, cut.seed, cut.rank
        self._threads = cut.threads
        self._draws = any(isinstance(module, nn.Dropout) and module.p > 0 for module in network.module.modules())
        self._scale = LossScale(cut.rank) if network.scales_losses else None
        self._made = 0

    def accumulated(
        self,
        batches: Sequence[MicroBatch],
        terms: Sequence[LossTerm[OutputsT]],
        outputs_of: Callable[[int], OutputsT],
    ) -> BatchLoss:
        """Add the gradient of the batch's mean to that of the parameters.  ``outputs_of`` takes a batch's number."""
        self._root.train()
        self._made += 1

        def accumulate(scale: float) -> BatchLoss:
            if self._threads.sharing > 1 and not self._draws:  # what is dropped follows from the order of the passes
                return self._shared_out(batches, terms, outputs_of, scale)
            return self._drawn(
                lambda: _accumulated(self._rank, self._parameters, batches, terms, outputs_of, scale=scale)
            )

        loss = accumulate(1.0) if self._scale is None else self._scale.accumulated(self._parameters, accumulate)
        self._rank.rest(self._root)
        return loss

    def _shared_out(
        self,
        batches: Sequence[MicroBatch],
        terms: Sequence[LossTerm[OutputsT]],
        outputs_of: Callable[[int], OutputsT],
        scale: float,
    ) -> BatchLoss:
        """As ``_accumulated``: threads compute gradients of sums, which are added up, and divided before they are added
        to what stands there."""
        weight = float(sum(term.weight(batch).item() for batch in batches for term in terms))

        def compute(numbers: list[int]) -> _Share:
            share = _Share([None] * len(self._parameters))
            for number in numbers:
                with torch.set_grad_enabled(weight > 0):
                    outputs = outputs_of(number)
                if weight > 0:
                    share.add(_loss_sum(batches[number], terms, outputs), self._parameters, scale)
                share.observed[number] = [term.observed(batches[number], outputs) for term in terms]
            return share

        shares = self._threads.each(batches, compute)
        for place, parameter in enumerate(self._parameters):
            known = [held for share in shares if (held := share.gradients[place]) is not None]
            if known:
                mean = sum(known[1:], known[0]) / weight
                parameter.grad = mean if parameter.grad is None else parameter.grad + mean
        observed = {number: entry for share in shares for number, entry in share.observed.items()}
        of_terms = [[observed[number][term] for number in range(len(batches))] for term in range(len(terms))]
        total = sum(share.loss for share in shares)
        return BatchLoss(total / weight if weight > 0 else 0.0, weight, of_terms)

    def _drawn(self, compute: Callable[[], BatchLoss]) -> BatchLoss:
        """What is dropped follows from the run's seed, the number of the pass and the rank, so that a resumed run drops
        the same."""
        if not self._draws:
            return compute()
        with torch.random.fork_rng():
            rank = [self._rank.number] if self._rank.number else []
            torch.manual_seed(derived_seed("dropout", self._seed, self._made, *rank))
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


@dataclass
class _Share:
    """What one thread has come to."""

    gradients: list[Tensor | None]
    """The gradient of the sum of its micro-batches' losses by each parameter; None where they do not reach it."""
    loss: float = 0.0
    observed: dict[int, list[Any]] = field(default_factory=dict)
    """By the number of the micro-batch: what each term observed."""

    def add(self, loss_sum: Tensor, parameters: Sequence[nn.Parameter], scale: float) -> None:
        self.loss += loss_sum.item()
        of_sum = torch.autograd.grad(loss_sum if scale == 1 else loss_sum * scale, parameters, allow_unused=True)
        for place, gradient in enumerate(of_sum):
            if gradient is not None:
                held = self.gradients[place]
                self.gradients[place] = gradient if held is None else held + gradient


class _Cut:
    """Where and with how many threads a run computes, and the micro-batches of its batches."""

    def __init__(self, resources: Resources, rank: Rank, *, context_tokens: int, seed: int) -> None:
        self.device = torch.device(resources.device)
        self.rank, self.seed = rank, seed
        self.threads, self._shares_prefixes = Threads(resources), resources.share_prefixes
        self._context = context_tokens
        self._tokens: int | None = None
        self._even_attention: float | None = None

    @property
    def loads_on(self) -> torch.device:
        """Where a network is put together: what is to be sharded may not fit on one device as a whole."""
        return self.device if self.rank is ALONE else torch.device("cpu")

    def take_microbatches_of(self, network: PolicyNetwork) -> None:
        """From now on micro-batches are as large as the model's spec says, and shared as its size makes it worth it."""
        self._tokens = network.microbatch_tokens
        self._even_attention = even_attention(network) if self._shares_prefixes else None

    def use_threads(self) -> None:
        self.threads.use()

    def refuse_too_long(self, batch: Batch) -> None:
        """Raises ValueError where a sample does not fit into the context."""
        longest = max(map(learned_length, batch), default=0)
        if longest > self._context:
            raise ValueError(f"a sample of {longest} tokens is longer than the context of {self._context}")

    def microbatches(self, batch: Batch, *, in_whole_rows: bool = False) -> list[MicroBatch]:
        """Equally many on each rank: one that has fewer gets some without rows.  As many tokens stand in memory at once
        where several threads compute one each.  ``in_whole_rows``: nothing is shared, whatever the run says.

        Raises ValueError where a sample does not fit into the context.
        """
        self.use_threads()
        self.refuse_too_long(batch)
        tokens = max((self._tokens or microbatch.MICROBATCH_TOKENS) // self.threads.sharing, 1)
        even = None if in_whole_rows else self._even_attention
        made = microbatches(batch, device=self.device, max_tokens=tokens, even_attention=even)
        return [*made, *[without_rows(self.device)] * (self.rank.most(len(made)) - len(made))]


def _accumulated(
    rank: Rank,
    parameters: Sequence[nn.Parameter],
    batches: Sequence[MicroBatch],
    terms: Sequence[LossTerm[OutputsT]],
    outputs_of: Callable[[int], OutputsT],
    *,
    scale: float,
) -> BatchLoss:
    """Add the gradient of the batch's mean, times ``scale``, to that of the parameters.

    A gradient that stands alone is summed first and divided once, which rounds once per weight.  Beside one that is a
    mean already, each micro-batch is divided before it is added.  The weight is that of all ranks, the mean this rank's
    summand of it.
    """
    weight = rank.total(float(sum(term.weight(batch).item() for batch in batches if batch.rows for term in terms)))
    beside = any(parameter.grad is not None for parameter in parameters)
    total = 0.0
    observations: list[list[Any]] = [[] for _ in terms]
    for number, batch in enumerate(batches):
        with torch.set_grad_enabled(weight > 0):
            outputs = outputs_of(number)
        if weight > 0:
            loss_sum = _loss_sum(batch, terms, outputs)
            scaled_sum = loss_sum if scale == 1 else loss_sum * scale
            (scaled_sum / weight if beside else scaled_sum).backward()
            total += loss_sum.item()
        if batch.rows:
            for observed, term in zip(observations, terms, strict=True):
                observed.append(term.observed(batch, outputs))
    if weight > 0 and not beside:
        divide(parameters, weight)
    return BatchLoss(total / weight if weight > 0 else 0.0, weight, observations)


def _loss_sum(batch: MicroBatch, terms: Sequence[LossTerm[OutputsT]], outputs: OutputsT) -> Tensor:
    """0, with a gradient of 0, for a micro-batch without rows: the other ranks wait for it."""
    if not batch.rows:
        numbers_BT = outputs.logp_BT if isinstance(outputs, PolicyOutputs) else outputs.values_BT
        return numbers_BT.sum() * 0.0
    return sum((term.loss(batch, outputs) for term in terms[1:]), terms[0].loss(batch, outputs))


def write_rest(partial: Path, folder: Path, state: Mapping[str, Any]) -> None:
    """Write ``trainer.pt`` of the checkpoint ``folder``.  Raises OSError."""
    # Through a file of Python's, whose errors say what happened; torch's own say "iostream error".
    with written(folder / "trainer.pt"), (partial / "trainer.pt").open("wb") as file:
        torch.save(dict(state), file)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _state(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by their names, without a copy."""
    return {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def _load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raises KeyError and RuntimeError where ``state`` is of another network."""
    for name, parameter in _state(module).items():
        given = state[name]
        parameter.copy_(given if type(given) is type(parameter) else laid_out_like(parameter, given))


@torch.no_grad()
def _exchange(held: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Each of the two becomes what the other was; one parameter at a time is held twice."""
    for name, tensor in held.items():
        kept = tensor.clone()
        tensor.copy_(other[name])
        other[name].copy_(kept)


def _moments_like(parameters: Sequence[nn.Parameter], state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an optimiser, its moments laid out as the parameters are."""
    moments = {
        number: {
            part: tensor if part == "step" or type(tensor) is not Tensor else laid_out_like(parameters[number], tensor)
            for part, tensor in of.items()
        }
        for number, of in state["state"].items()
    }
    return {"state": moments, "param_groups": state["param_groups"]}


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}/"): held for name, held in tensors.items() if name.startswith(f"{part}/")}
