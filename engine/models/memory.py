"""How much memory training a pretrained model takes, before anything is loaded: an estimate from shapes alone.

What is counted exactly: weights, gradients, the two moments of Adam, the reference, the critic, the copy that goes to
the generator.  What is estimated: activations, by the sizes of a layer's intermediate results.  No torch.
"""

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
HEADS = ("lm_head", "embed_out", "output")


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    parameters: int
    trained: int
    parts: Mapping[str, int]
    """Bytes by what they hold."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def trainer_memory(folder: ModelFolder, model: PretrainedModel, *, reference: bool, critic: bool) -> TrainerMemory:
    """Of the trainer's process, with a frozen reference and a critic where the recipe has them."""
    held = BYTES[model.dtype]
    parameters = folder.parameters
    trained = parameters if model.lora is None else adapter_parameters(folder, model.lora)
    moved = trained * (GRADIENT + MOMENTS)
    weights = parameters * MASTER if model.lora is None else parameters * held + trained * MASTER
    parts = {
        "weights": weights,
        "gradients": trained * GRADIENT,
        "optimiser": trained * MOMENTS,
        "activations": _activations(folder, model)
        + min(CHUNKS_BYTES, 24 * model.microbatch_tokens * folder.vocab_size),
        "copy for the generator": parameters * held,
    }
    if reference:
        parts["reference"] = trained * MASTER
    if critic:
        parts["critic"] = weights + moved
    return TrainerMemory(parameters, trained, parts)


def adapter_parameters(folder: ModelFolder, lora: Lora) -> int:
    """Of A and B at every module that the adapter targets."""
    shapes = [folder.tensors[f"{module}.weight"].shape for module in adapted_modules(folder, lora)]
    return sum(lora.rank * (rows + columns) for rows, columns in shapes)


def adapted_modules(folder: ModelFolder, lora: Lora) -> list[str]:
    """The modules that get an adapter."""
    linear = [name for name in folder.linear_modules() if "embed" not in name.rpartition(".")[2]]
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


def in_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
