"""One rank of a Megatron trainer: its part of the network, of the optimiser, and of every call.

A call is made on all ranks at once (``ranks.py``).  Each gets the share of the batch of its data-parallel replica; the
ranks of one replica cut it into the same micro-batches and send them through Megatron's pipeline schedule.  The last
stage computes the loss, on all of its ranks alike; one of them answers (``Grid.speaker_of``).

The loss of a batch is the sum of the terms' sums over the sum of their weights, of all replicas.  Weights depend on
columns alone, so that each micro-batch is divided before its backward pass; gradients are summed over the replicas in
``step``, once, whatever number of batches came before it.

Shapes: B sequences, T tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import Tensor, nn

from engine.durable import read_back
from engine.models.folder import copy_texts, opened_folder, write_config
from engine.models.origin import model_origin
from engine.spec.generation import MODELS_OWN, Distribution
from engine.spec.model import Model, PretrainedModel
from engine.spec.resources import Resources
from engine.training.backends.interface import BatchLoss
from engine.training.backends.megatron import checkpoint
from engine.training.backends.megatron.cpu import on_cpu
from engine.training.backends.megatron.layout import Grid, Shape
from engine.training.backends.megatron.model import HiddenStates, built, config_of
from engine.training.backends.megatron.optimizer import MasterWeights
from engine.training.backends.megatron.outputs import Rows, rows_of, scored
from engine.training.backends.megatron.weights import Place, given_out, read_into, written_in_files
from engine.training.backends.sharding import SHARDS, Rank
from engine.training.batch import Sample
from engine.training.loss_terms.interface import LossTerm, PolicyOutputs
from engine.training.microbatch import Batch, MicroBatch, learned_length, microbatches, without_rows

__all__ = ["MegatronRank"]

OWNED, REFERENCE = "owned", "reference"
"""Names of a checkpoint's shards: of what the optimiser moves, and of what it does not."""
Report = Callable[[int, Tensor, Tensor], tuple[Tensor, Any]]
"""Makes the loss, and what is answered of it, from a micro-batch's number, its log-probs [B, T] and entropies."""


class MegatronRank:
    """What ``MegatronBackend`` asks of each rank.  A process has one at a time, as it has one process group."""

    def __init__(self, model: Model, resources: Resources, *, seed: int, rank: Rank) -> None:
        """``seed`` draws nothing: all weights are the folder's.  Raises ModelFolderRefused."""
        origin = model_origin(model)
        assert isinstance(origin.model, PretrainedModel)  # preflight has refused others
        assert origin.weights is not None
        self._spec, self._rank, self._threads = origin.model, rank, resources.threads
        self._device = torch.device(resources.device)
        self._megatron = resources.megatron
        self._grid = Grid.of(resources.megatron, resources.trainer_ranks)
        folder = opened_folder(origin.weights)
        self._place = Place(Shape.of_config(folder.config), self._grid, folder)
        with self._computing():
            self._build()
        self._reference: dict[str, Tensor] | None = None

    def _build(self) -> None:
        _divide_ranks(self._grid)
        config = config_of(self._place.shape, self._spec, self._megatron)
        self.network: HiddenStates = built(self._place.shape, config, context_tokens=self._spec.context_tokens)
        self.network.to(self._device)
        self._parameters: dict[str, nn.Parameter] = dict(self.network.named_parameters())
        self._place.mark_divided(self._parameters)
        read_into(self._held(), self._place)
        sums = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False)
        self._replica = DistributedDataParallel(config, sums, self.network)
        self._masters = self._new_masters()

    def _new_masters(self) -> MasterWeights:
        return MasterWeights(self._parameters, divided=self._megatron.distributed_optimizer)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        torch.set_num_threads(self._threads)
        place: AbstractContextManager[None] = on_cpu() if self._device.type == "cpu" else nullcontext()
        with place:
            yield

    def _held(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    # ---- passes ----

    def refuse_too_long(self, batch: Batch) -> None:
        """Raises ValueError where a sample does not fit into the context."""
        longest = max(map(learned_length, batch), default=0)
        if longest > self._spec.context_tokens:
            raise ValueError(f"a sample of {longest} tokens is longer than the context of {self._spec.context_tokens}")

    def logprobs(
        self, samples: Sequence[Sample], *, distribution: Distribution = MODELS_OWN
    ) -> list[list[float]] | None:
        """As the protocol has it, of this replica's share; None on the ranks that do not speak for it."""
        with self._computing():
            batches = self._microbatches(samples)
            logps = self._logps(batches, distribution)
        if not self._speaks:
            return None
        rows = [[0.0] * len(sample) for sample in samples]
        for batch, logp_BT in zip(batches, logps, strict=True):
            masked = logp_BT.where(batch.mask_BT, 0.0)[: len(batch.rows)].tolist()
            for row, logp_T in zip(batch.rows, masked, strict=True):
                count = min(len(logp_T), len(rows[row]))
                rows[row][:count] = logp_T[:count]
        return rows

    def forward_backward(
        self, batch: Batch, loss_terms: Sequence[LossTerm[PolicyOutputs]], *, distribution: Distribution = MODELS_OWN
    ) -> BatchLoss | None:
        """As the protocol has it; the mean is this replica's summand.  None on the ranks that do not speak for it."""
        with self._computing():
            batches = self._microbatches(batch)
            references = self._reference_logps(batches, loss_terms, distribution)
            weight = self._weight(batches, loss_terms)
            answers = self._passed(batches, distribution, _loss_of(batches, loss_terms, references, weight), weight > 0)
        if not self._speaks:
            return None
        observed = [answer[1] for part, answer in zip(batches, answers, strict=True) if part.rows]
        observations = [[of_batch[term] for of_batch in observed] for term in range(len(loss_terms))]
        return BatchLoss(sum(answer[0] for answer in answers), weight, observations)

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        with self._computing():
            finalize_model_grads([self._replica])
            try:
                return self._masters.step(learning_rate=learning_rate, grad_clip=grad_clip)
            finally:
                self._replica.zero_grad_buffer()

    def renew_optimizer(self, *, weight_decay: float) -> None:
        self._masters.renew(weight_decay=weight_decay)

    def set_weight_decay(self, weight_decay: float) -> None:
        self._masters.set_weight_decay(weight_decay)

    @property
    def _speaks(self) -> bool:
        return self._grid.speaks(self._rank.number)

    def _microbatches(self, batch: Batch) -> list[MicroBatch]:
        """Equally many on each replica, since the experts of one serve all: one that has fewer gets some without
        rows."""
        self.refuse_too_long(batch)
        made = microbatches(batch, device=self._device, max_tokens=self._spec.microbatch_tokens)
        return [*made, *[without_rows(self._device)] * (self._rank.most(len(made)) - len(made))]

    def _weight(self, batches: Sequence[MicroBatch], terms: Sequence[LossTerm[PolicyOutputs]]) -> float:
        """The weight of all replicas."""
        own = float(sum(term.weight(batch).item() for batch in batches if batch.rows for term in terms))
        return self._rank.total(own if self._speaks else 0.0)

    def _logps(self, batches: Sequence[MicroBatch], distribution: Distribution) -> list[Tensor]:
        """[B, T] for each micro-batch, on the last stage; elsewhere empty."""
        return self._passed(batches, distribution, lambda _, logp_BT, __: (logp_BT.sum(), logp_BT), learns=False)

    def _reference_logps(
        self, batches: Sequence[MicroBatch], terms: Sequence[LossTerm[PolicyOutputs]], distribution: Distribution
    ) -> Sequence[Tensor | None]:
        if not any(term.needs_reference for term in terms):
            return [None] * len(batches)
        if self._reference is None:
            raise RuntimeError("a loss compares the policy with its reference, and none was frozen")
        _exchange(self._held(), self._reference)
        try:
            return self._logps(batches, distribution)
        finally:
            _exchange(self._held(), self._reference)

    def _passed(
        self, batches: Sequence[MicroBatch], distribution: Distribution, report: Report, learns: bool
    ) -> list[Any]:
        """Send the micro-batches through the pipeline; what is answered of each, on the last stage.

        With ``learns`` the gradient of each loss is added to the buffers.
        """
        if not batches:
            return []
        self._replica.train(learns)
        rows = [rows_of(batch, packs=self._megatron.sequence_packing, multiple=self._multiple) for batch in batches]
        numbers = iter(range(len(batches)))

        def forward(_data: Any, replica: nn.Module) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Any]]]:
            number = next(numbers)
            output = self._computed(replica, rows[number])

            def loss(hidden_SRD: Tensor) -> tuple[Tensor, Tensor, Any]:
                logp_BT, entropy_N = scored(self.network, hidden_SRD, rows[number], distribution)
                total, answer = report(number, logp_BT, entropy_N)
                return total, torch.zeros((), dtype=torch.int, device=total.device), answer

            return output, loss

        with torch.set_grad_enabled(learns):
            answers: list[Any] = get_forward_backward_func()(
                forward_step_func=forward,
                data_iterator=None,
                model=self._replica,
                num_microbatches=len(batches),
                seq_length=1,  # this and the next are not looked at where rows are of any length
                micro_batch_size=1,
                forward_only=not learns,
            )
        return answers

    def _computed(self, replica: nn.Module, rows: Rows) -> Tensor:
        cast("Any", self.network.rotary_pos_emb).at = rows.positions_RS
        hidden: Tensor = replica(rows.token_ids_RS, rows.positions_RS, rows.segments_RW)
        return hidden

    @property
    def _multiple(self) -> int:
        """What a row's width must divide by."""
        pieces = 2 * self._grid.context if self._grid.context > 1 else 1
        return pieces * (self._grid.tensor if self._megatron.sequence_parallel else 1)

    # ---- weights and state ----

    def freeze_reference(self) -> None:
        self._reference = {name: held.clone() for name, held in self._held().items()}

    def weights_for_the_leader(self) -> dict[str, Tensor] | None:
        """The weights on the CPU; on the other ranks None, and their part in putting them together."""
        return self._whole(self._held())

    def _whole(self, held: dict[str, Tensor]) -> dict[str, Tensor] | None:
        is_leader = self._rank.number == 0
        kept: dict[str, Tensor] = {}
        with self._computing():
            for name, tensor in given_out(held, self._place):
                if is_leader:
                    kept[name] = tensor.to("cpu", copy=True).contiguous()
        return kept if is_leader else None

    def first_moments(self) -> dict[str, Tensor] | None:
        """The gradient's running mean, as ``weights_for_the_leader``: what comparisons between backends read."""
        return self._whole(self._masters.moments()["exp_avg"])

    def save_model(self, folder: Path | None) -> None:
        """This rank's part in the writing of ``model/``, which the first one writes."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_config(self._place.folder.path, folder, dtype=self._spec.dtype)
            copy_texts(self._place.folder.path, folder)
        with self._computing():
            written_in_files(given_out(self._held(), self._place), folder)

    def save_shards(self, folder: Path) -> dict[str, Any]:
        """Write this rank's part of weights, optimiser and reference; the answer is what is equal on all ranks."""
        described = self._masters.described()
        parts: dict[str, Mapping[str, Tensor]] = {"trained": self._masters.masters}
        if described["steps"]:
            parts |= self._masters.moments()
        with self._computing():
            self._write(folder / OWNED, parts, divided=self._megatron.distributed_optimizer)
            if self._reference is not None:
                self._write(folder / REFERENCE, {"reference": self._reference}, divided=False)
        return {"optimizer": described, "has_reference": self._reference is not None}

    def _write(self, folder: Path, parts: Mapping[str, Mapping[str, Tensor]], *, divided: bool) -> None:
        checkpoint.write(folder, self.network, parts, divided=divided)

    def load(self, folder: Path) -> dict[str, Any]:
        """Also in another layout than that which saved.  Raises DamagedFile."""
        rest = folder / "trainer.pt"
        with read_back(rest):
            state: dict[str, Any] = torch.load(rest, map_location="cpu", weights_only=True)
            described, has_reference = state.pop("optimizer"), state.pop("has_reference")
        with self._computing():
            self._load_owned(folder / SHARDS / OWNED, described)
            self._reference = self._loaded_reference(folder / SHARDS / REFERENCE) if has_reference else None
        return state

    @torch.no_grad()
    def _load_owned(self, folder: Path, described: Mapping[str, float]) -> None:
        parts: dict[str, Mapping[str, Tensor]] = {"trained": self._masters.masters}
        if described["steps"]:
            parts |= self._masters.blank_moments()
        loaded = checkpoint.read(folder, self.network, parts, divided=self._megatron.distributed_optimizer)
        self._masters.take_over(loaded.pop("trained"))
        self._masters.load(described, loaded)

    def _loaded_reference(self, folder: Path) -> dict[str, Tensor]:
        blank = {"reference": {name: torch.zeros_like(held) for name, held in self._held().items()}}
        return checkpoint.read(folder, self.network, blank, divided=False)["reference"]


def _divide_ranks(grid: Grid) -> None:
    """Megatron's process groups, in place of those of a trainer that this process had before."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=grid.tensor,
        pipeline_model_parallel_size=grid.pipeline,
        context_parallel_size=grid.context,
        expert_model_parallel_size=grid.expert,
        expert_tensor_parallel_size=1,
        create_gloo_process_groups=False,
    )
    # Nothing is drawn; Megatron's layers ask for the state that they would draw from.
    model_parallel_cuda_manual_seed(0)


def _loss_of(
    batches: Sequence[MicroBatch],
    terms: Sequence[LossTerm[PolicyOutputs]],
    references: Sequence[Tensor | None],
    weight: float,
) -> Report:
    """The loss of a micro-batch over the weight of the whole batch; answered are that and what terms observed."""

    def report(number: int, logp_BT: Tensor, entropy_N: Tensor) -> tuple[Tensor, tuple[float, list[Any]]]:
        batch = batches[number]
        if not batch.rows:
            return logp_BT.sum() * 0.0, (0.0, [])
        outputs = PolicyOutputs(logp_BT, entropy_N, references[number] if references else None)
        loss = logp_BT.sum() * 0.0
        if weight > 0:
            loss = sum((term.loss(batch, outputs) for term in terms[1:]), terms[0].loss(batch, outputs)) / weight
        return loss, (loss.item(), [term.observed(batch, outputs) for term in terms])

    return report


@torch.no_grad()
def _exchange(held: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Each of the two becomes what the other was; one parameter at a time is held twice."""
    for name, tensor in held.items():
        kept = tensor.clone()
        tensor.copy_(other[name])
        other[name].copy_(kept)
