"""Models of nothing but weights: a judge that says the same of whatever it is asked, slowly enough to be interrupted,
and a policy that comes to an end."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.launch.sample_model import sample_texts
from engine.models.random_folder import write_random_model

VERDICT = "\nStep 1 Judgment: GOOD\nPOINTS: 7"
"""A token of its own, which turns and rubrics are both judged by."""
HESITATION = 60
"""Tokens that it says before."""
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
SURE = 40.0


@torch.no_grad()
def make_judging_model(folder: Path) -> None:
    """Its layers add nothing, so that each token says the next one: the last of the question begins a chain of tokens,
    which ends with ``VERDICT`` and the end of the turn."""
    write_random_model(
        folder, family="qwen3", seed=1, texts=sample_texts(0), vocabulary=320, tie_word_embeddings=False, **SHAPE
    )
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    tokenizer.add_tokens([VERDICT])
    model.resize_token_embeddings(-(-len(tokenizer) // 64) * 64)
    _silence_layers(model)
    model.get_output_embeddings().weight.zero_()
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "?"}], add_generation_prompt=True)
    last = (asked if isinstance(asked, list) else asked["input_ids"])[-1]
    words = [token for token in range(len(tokenizer)) if tokenizer.decode([token]).isalpha() and token != last]
    chain = [last, *words[:HESITATION], tokenizer.convert_tokens_to_ids(VERDICT), tokenizer.eos_token_id]
    embedded = model.get_input_embeddings().weight
    embedded.copy_(torch.nn.functional.normalize(embedded, dim=-1))
    for before, after in zip(chain, chain[1:], strict=False):
        model.get_output_embeddings().weight[after] = SURE * embedded[before]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _silence_layers(model: Any) -> None:
    """They add nothing to what the embedding says; training can make them."""
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()


@torch.no_grad()
def end_turns_soon(folder: Path, *, boost: float = 5.3) -> None:
    """The end of a turn becomes likelier than any other token, whatever stands before it; the weights are tied."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    _silence_layers(model)
    embedded = model.get_input_embeddings().weight
    common = torch.nn.functional.normalize(torch.ones(embedded.shape[1]), dim=0)
    embedded.add_(3.0 * common)  # which all hidden states have then, and which moves all logits alike
    embedded[tokenizer.eos_token_id] += boost / embedded.shape[1] ** 0.5 * common
    model.save_pretrained(folder)
