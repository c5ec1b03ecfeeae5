"""A torch generator for the model of a run, or for a model folder.

What the generator cannot serve, and what does not fit into a budget, is refused here before memory is taken.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.durable import read_back
from engine.inference.torch.decoder_messages import Begin
from engine.inference.torch.decoder_process import DecoderProcess
from engine.inference.torch.divided import DividedGenerator
from engine.inference.torch.generator import TorchGenerator
from engine.inference.torch.memory import Dtype, Layout, slots_within
from engine.models.adapted_weights import AdaptedWeights
from engine.models.architecture import Architecture, UnsupportedArchitecture
from engine.models.folder_weights import FolderWeights
from engine.models.memory import readable_bytes
from engine.models.origin import model_origin
from engine.models.qwen3 import Qwen3
from engine.models.tokenizer import tokenizer_for
from engine.spec.model import BuiltinModel, Model
from engine.spec.resources import Resources


def torch_generator(model: Model, resources: Resources, *, seed: int) -> TorchGenerator | DividedGenerator:
    """The generator of a run, with the weights that its model begins with until it is given others."""
    if resources.decoders == 1:
        return undivided_generator(model, resources, seed=seed)
    begin = Begin(model, share_of(resources), seed)
    return DividedGenerator(
        lambda number, ended: DecoderProcess(number, begin, ended),
        decoders=resources.decoders,
        slots=begin.resources.kv_slots,
    )


def share_of(resources: Resources) -> Resources:
    """One decoder's share: equal ones, since passes of another shape may come to other bits."""
    slots, threads = -(-resources.kv_slots // resources.decoders), max(1, resources.threads // resources.decoders)
    return resources.model_copy(update={"decoders": 1, "kv_slots": slots, "threads": threads})


def undivided_generator(model: Model, resources: Resources, *, seed: int) -> TorchGenerator:
    """All of it in this process."""
    origin, batch_delay_s = model_origin(model), resources.batch_delay_ms / 1000
    if not isinstance(origin.model, BuiltinModel):
        assert origin.weights is not None  # a pretrained model has a folder
        return generator_for_folder(
            origin.weights,
            context_tokens=origin.context_tokens,
            slots=resources.kv_slots,
            dtype=origin.model.dtype,
            threads=resources.threads,
            device=resources.device,
            adapter=origin.adapter,
            batch_delay_s=batch_delay_s,
        )
    return builtin_generator(
        origin.model,
        slots=resources.kv_slots,
        threads=resources.threads,
        device=resources.device,
        seed=seed,
        weights=origin.weights,
        batch_delay_s=batch_delay_s,
    )


def builtin_generator(
    model: BuiltinModel,
    *,
    slots: int,
    threads: int,
    device: str = "cpu",
    seed: int = 0,
    weights: Path | None = None,
    batch_delay_s: float = 0.0,
) -> TorchGenerator:
    """For a built-in model, with the weights of the folder ``weights``, or random ones of ``seed``."""
    vocab_size = len(tokenizer_for(model.vocabulary))
    initial = Qwen3(model, vocab_size, seed=seed).state_dict() if weights is None else FolderWeights(weights)
    return TorchGenerator(
        Architecture.of_builtin(model, vocab_size),
        context_tokens=model.context_tokens,
        slots=slots,
        threads=threads,
        initial=initial,
        device=device,
        batch_delay_s=batch_delay_s,
    )


def generator_for_folder(
    folder: Path,
    *,
    context_tokens: int,
    slots: int | None = None,
    kv_budget_bytes: int | None = None,
    dtype: Dtype = "float32",
    threads: int = 1,
    device: str = "cpu",
    adapter: Path | None = None,
    batch_delay_s: float = 0.0,
) -> TorchGenerator:
    """For a folder with ``config.json`` and safetensors, which are read one tensor at a time; ``adapter`` is added in.

    Give ``slots``, or ``kv_budget_bytes`` for as many as fit into it.  Raises UnsupportedArchitecture for what the
    torch generator cannot serve, DamagedFile for a file that cannot be read, ValueError for weights that do not
    belong to the configuration and for a budget into which no slot fits.
    """
    if (slots is None) == (kv_budget_bytes is None):
        raise ValueError("give either slots or kv_budget_bytes")
    architecture = architecture_of_folder(folder)
    if context_tokens > architecture.longest_context:
        raise UnsupportedArchitecture(
            "context_tokens",
            context_tokens,
            f"the model sees {architecture.longest_context} tokens at most",
            f"use at most {architecture.longest_context}, or a model with a longer context",
        )
    if slots is None:
        assert kv_budget_bytes is not None
        slots = _slots(architecture, context_tokens, dtype, kv_budget_bytes)
    weights = FolderWeights(folder)
    return TorchGenerator(
        architecture,
        context_tokens=context_tokens,
        slots=slots,
        threads=threads,
        initial=weights if adapter is None else AdaptedWeights(weights, adapter),
        device=device,
        dtype=dtype,
        batch_delay_s=batch_delay_s,
    )


def architecture_of_folder(folder: Path) -> Architecture:
    """Raises DamagedFile and UnsupportedArchitecture."""
    path = folder / "config.json"
    with read_back(path):
        config: Any = json.loads(path.read_text())
    if not isinstance(config, Mapping):
        raise UnsupportedArchitecture("config.json", config, "must be a table", "give a model folder's config.json")
    return Architecture.of_config(config)


def _slots(architecture: Architecture, context_tokens: int, dtype: Dtype, budget_bytes: int) -> int:
    slots = slots_within(architecture, context_tokens=context_tokens, dtype=dtype, budget_bytes=budget_bytes)
    if slots < 1:
        most = max(budget_bytes // Layout(architecture, context_tokens, 1, dtype).bytes_per_token - 8, 0)
        raise ValueError(
            f"kv_budget_bytes = {budget_bytes}: one slot of {context_tokens} tokens takes more than"
            f" {readable_bytes(budget_bytes)}; give more, or lower context_tokens to {most}"
        )
    return slots
