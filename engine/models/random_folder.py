"""A small model's folder with random weights: tokenizer, template and network of a real family, without a download.

For samples and tests.  Equal arguments write equal bytes.  The weights say nothing: a run teaches them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from engine.models.tokenizer_training import Family, write_tokenizer

__all__ = ["write_random_model"]

INIT_STD = 0.05
"""As the built-in model has it: small networks learn slowly from the usual 0.02."""


def write_random_model(
    folder: Path,
    *,
    family: Family,
    seed: int,
    texts: Iterable[str] = (),
    vocabulary: int = 2048,
    **shape: Any,
) -> None:
    """Write a model of the family into ``folder``, whose tokenizer is trained on ``texts``.

    ``shape`` are fields of transformers' config, e.g. ``hidden_size``; biases are drawn too, where the family has any.
    """
    from transformers import (
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    classes: dict[Family, tuple[Any, Any]] = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "qwen2.5": (Qwen2Config, Qwen2ForCausalLM),
        "llama3": (LlamaConfig, LlamaForCausalLM),
    }
    write_tokenizer(folder, family=family, seed=seed, texts=texts, vocabulary=vocabulary)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config_class, model_class = classes[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(
            config_class(
                vocab_size=-(-len(tokenizer) // 64) * 64,
                initializer_range=INIT_STD,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                **shape,
            )
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(".bias"):
                    parameter.normal_(0.0, INIT_STD)
    kept = (folder / "generation_config.json").read_bytes()  # the tokenizer's stop ids; transformers writes its own
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_bytes(kept)
