"""How much memory training a pretrained model takes, before anything is loaded: an estimate from shapes alone.

What is counted exactly: weights, gradients, the two moments of Adam, the reference, the critic, the copy that goes to
the generator; on several ranks each rank's part of the first five, and what stands whole while it is computed.  What is
estimated: activations, by the sizes of a layer's intermediate results.  No torch.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from engine.models.folder import ModelFolder
from engine.spec.model import Lora, PretrainedModel

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GRADIENT, MOMENTS, MASTER = 4, 8, 4
"""Bytes of a trained parameter beside the network's own copy: everything that is moved is float32."""
CHUNKS_BYTES = 6 * 4 * 2**24
"""What log-probs hold of logits at most (``engine/training/policy.py``)."""
LAYER = re.compile(r".*?\.\d+\.")
"""How the names of a layer's weights begin, e.g. ``model.layers.7.``."""
HEADS = ("lm_head", "embed_out", "output")
EXPERTS, ROUTER = ".experts.", ".gate"


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    parameters: int
    trained: int
    parts: Mapping[str, int]
    """Bytes by what they hold, on rank 0."""
    ranks: int
    loading: int
    """Bytes of the host that each rank takes while it loads the model, which it then shards."""

    @property
    def total(self) -> int:
        """The memory of rank 0, which has the generator's copy beside what each rank has."""
        return sum(self.parts.values())

    @property
    def on_one_machine(self) -> int:
        """The most that all ranks take together, where they share their memory."""
        others = max(self.total - self.parts["copy for the generator"], self.loading)
        return max(self.total, self.loading) + (self.ranks - 1) * others


def trainer_memory(
    folder: ModelFolder,
    model: PretrainedModel,
    *,
    reference: bool,
    critic: bool,
    ranks: int = 1,
    trains: bool = True,
    sends_adapter: bool = False,
) -> TrainerMemory:
    """The memory of each of the trainer's processes, with a frozen reference and a critic where the recipe has them.

    One that trains nothing holds the weights and hands them on.  ``sends_adapter``: the generator gets that alone.
    """
    held = BYTES[model.dtype]
    parameters = folder.parameters
    trained = parameters if model.lora is None else adapter_parameters(folder, model.lora)
    moved = trained * (GRADIENT + MOMENTS)
    weights = parameters * MASTER if model.lora is None else parameters * held + trained * MASTER
    sharded = {
        "weights": weights,
        "gradients": trained * GRADIENT,
        "optimiser": trained * MOMENTS,
    }
    if reference:
        sharded["reference"] = trained * MASTER
    if critic:
        sharded["critic"] = weights + moved
    parts = {name: -(-size // ranks) for name, size in sharded.items()} | {
        "activations": _activations(folder, model)
        + min(CHUNKS_BYTES, 24 * model.microbatch_tokens * folder.vocab_size),
        "copy for the generator": trained * MASTER if sends_adapter else parameters * held,
    }
    if not trains:
        return TrainerMemory(
            parameters, 0, {part: parts[part] for part in ("weights", "copy for the generator")}, ranks, weights
        )
    if ranks > 1:
        parts["what is whole at once"] = _whole_at_once(folder, held)
    return TrainerMemory(parameters, trained, parts, ranks, weights)


def _whole_at_once(folder: ModelFolder, held: int) -> int:
    """Two layers, of which one is fetched ahead, and what stands outside of the layers; each with its gradient."""
    layers: Counter[str] = Counter()
    outside = 0
    for name, tensor in folder.tensors.items():
        layer = LAYER.match(name)
        if layer is None:
            outside += tensor.elements
        else:
            layers[layer[0]] += tensor.elements
    return 2 * (2 * held * max(layers.values(), default=0) + MASTER * outside)


def adapter_parameters(folder: ModelFolder, lora: Lora) -> int:
    """The parameters of A and B at every module that the adapter targets."""
    shapes = [folder.tensors[f"{module}.weight"].shape for module in adapted_modules(folder, lora)]
    return sum(lora.rank * (rows + columns) for rows, columns in shapes)


def adaptable_modules(folder: ModelFolder) -> list[str]:
    """The linear modules.  A mixture's experts and its router are none: the network holds each as one tensor."""
    names = [name for name in folder.linear_modules() if "embed" not in name.rpartition(".")[2]]
    mixed = is_mixture(folder)
    return [name for name in names if not (mixed and (EXPERTS in name or name.endswith(ROUTER)))]


def is_mixture(folder: ModelFolder) -> bool:
    """Return whether it has experts."""
    return any(EXPERTS in name for name in folder.tensors)


def adapted_modules(folder: ModelFolder, lora: Lora) -> list[str]:
    """The modules that get an adapter."""
    linear = adaptable_modules(folder)
    if lora.is_on_all_linear:
        return [name for name in linear if name.rpartition(".")[2] not in HEADS]
    return [name for name in linear if any(is_named(name, target) for target in lora.targets)]


def is_named(module: str, target: str) -> bool:
    """Return whether the module's name ends with the target, as peft has it."""
    return module == target or module.endswith(f".{target}")


def _activations(folder: ModelFolder, model: PretrainedModel) -> int:
    """What the layers keep for the backward pass of one micro-batch; with checkpointing, one layer at a time."""
    config, tokens = folder.text_config, max(model.microbatch_tokens, model.context_tokens)
    hidden, layers = _whole(config, "hidden_size"), _whole(config, "num_hidden_layers")
    inner = _whole(config, "intermediate_size") or 4 * hidden
    heads = _whole(config, "num_attention_heads")
    attention = heads * (_whole(config, "head_dim") or (hidden // heads if heads else 0))
    layer = 12 * hidden + 4 * attention + 4 * inner
    kept = hidden * layers + layer if model.gradient_checkpointing else layer * layers
    return tokens * kept * BYTES[model.dtype]


def _whole(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0


def readable_bytes(size: int) -> str:
    """A size for people: GiB, and MiB below a tenth of one."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"
