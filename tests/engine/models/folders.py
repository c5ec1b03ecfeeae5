"""Tiny model folders of real families, each made once for a session of tests."""

import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from engine.models.random_folder import write_random_model
from engine.models.tokenizer_training import Family

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
FAMILIES: tuple[Family, ...] = ("qwen2.5", "qwen3", "llama3")


@cache
def folder_of(family: Family, *, tied: bool = False) -> Path:
    """Read only: it is shared."""
    folder = Path(mkdtemp(prefix="palestra-model-", dir=os.environ["PALESTRA_HOME"]))
    shape = {name: value for name, value in SHAPE.items() if family != "qwen2.5" or name != "head_dim"}
    write_random_model(folder, family=family, seed=3, vocabulary=300, tie_word_embeddings=tied, **shape)
    return folder


Other = Literal["qwen3-moe", "gemma2", "gemma3"]
OTHERS: tuple[Other, ...] = ("qwen3-moe", "gemma2", "gemma3")
"""Families that only training knows: transformers computes them, and our generator does not."""


@cache
def other_folder(family: Other) -> Path:
    """Weights of the family beside a tokenizer and a template of Qwen3's.  Read only: it is shared."""
    source, folder = folder_of("qwen3"), Path(mkdtemp(prefix="palestra-model-", dir=os.environ["PALESTRA_HOME"]))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    small = {name: value for name, value in SHAPE.items() if name != "rope_parameters"}
    shape = small | {"vocab_size": AutoConfig.from_pretrained(source).vocab_size, "initializer_range": 0.05}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if family == "qwen3-moe":
            experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
            model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts, output_router_logits=False))
        elif family == "gemma2":
            model = Gemma2ForCausalLM(Gemma2Config(**shape, query_pre_attn_scalar=8, sliding_window=8))
        else:
            model = Gemma3ForCausalLM(Gemma3TextConfig(**shape, query_pre_attn_scalar=8, sliding_window=8))
    model.save_pretrained(folder)
    return folder
