"""How much memory a rank of a layout takes, before anything is loaded: an estimate from shapes alone, without torch.

Counted exactly are weights, gradients, moments and master weights of the rank that has most: of the layers an equal
part by tensor and pipeline ranks, of the experts by expert and pipeline ranks, and embedding and head beside them.
Activations are estimated as for one rank and divided over context and tensor ranks; the first stage of a pipeline keeps
those of as many micro-batches as there are stages, each for its part of the depth.
"""

from collections.abc import Mapping

from engine.models.folder import ModelFolder
from engine.models.memory import BYTES, EXPERTS, GRADIENT, LAYER, MASTER, MOMENTS, TrainerMemory
from engine.spec.megatron import Megatron
from engine.spec.model import PretrainedModel
from engine.training.backends.megatron.layout import Grid

__all__ = ["memory_of_rank"]

EMBEDDING, HEAD = "embed_tokens", "lm_head"


def memory_of_rank(
    folder: ModelFolder,
    model: PretrainedModel,
    megatron: Megatron,
    *,
    ranks: int,
    of_one: TrainerMemory,
    reference: bool,
) -> TrainerMemory:
    """``of_one`` is the estimate for a trainer of one rank; the answer is that of rank 0."""
    grid = Grid.of(megatron, ranks)
    held, elements = BYTES[model.dtype], _elements_on_rank(folder, grid)
    moved = elements * (MOMENTS + (MASTER if held != MASTER else 0))
    copies = grid.data * grid.context if megatron.distributed_optimizer else 1
    parts: Mapping[str, int] = {
        "weights": elements * held,
        "gradients": elements * GRADIENT,
        "optimiser": -(-moved // copies),
        **({"reference": elements * held} if reference else {}),
        "activations": of_one.parts.get("activations", 0) // (grid.context * grid.tensor),
        "copy for the generator": of_one.parts["copy for the generator"],
    }
    return TrainerMemory(of_one.parameters, of_one.trained, parts, ranks, elements * held)


def _elements_on_rank(folder: ModelFolder, grid: Grid) -> int:
    """Weights of the stage that has most: the first, with the embedding, or the last, with the head."""
    layers, experts, embedding, end = 0, 0, 0, 0
    for name, tensor in folder.tensors.items():
        if EXPERTS in name:
            experts += tensor.elements
        elif LAYER.match(name):
            layers += tensor.elements
        elif EMBEDDING in name:
            embedding += tensor.elements
        else:
            end += tensor.elements
    is_tied = not any(HEAD in name for name in folder.tensors)
    last = end + (embedding if is_tied else 0)  # a stage without the embedding holds a copy of it as its head
    outside = embedding + end if grid.pipeline == 1 else max(embedding, last)
    in_layers = layers // (grid.tensor * grid.pipeline) + experts // (grid.expert * grid.pipeline)
    return in_layers + outside // grid.tensor
