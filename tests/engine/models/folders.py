"""Tiny model folders of real families, each made once for a session of tests."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

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
    folder = Path(mkdtemp(prefix="palestra-model-"))
    shape = {name: value for name, value in SHAPE.items() if family != "qwen2.5" or name != "head_dim"}
    write_random_model(folder, family=family, seed=3, vocabulary=300, tie_word_embeddings=tied, **shape)
    return folder
