"""The policy network: Qwen3's architecture, for training and as the owner of the parameters' names.

Parameters carry the names of Hugging Face's ``Qwen3ForCausalLM``, and a folder written by
``save_pretrained`` loads there with equal logits.  Sampling with a KV cache lives in
``engine/inference/torch/decoder.py`` and shares the rotary tables (``engine/models/rope.py``).

Shapes: B sequences, T tokens, D hidden size, H query heads, K key-value heads, G = H / K,
E head dim, V vocabulary.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from engine.durable import read_back
from engine.models.architecture import BUILTIN_NORM_EPS, Rope
from engine.models.rope import rotary_tables
from engine.models.shards import laid_out_like, whole
from engine.models.tokenizer import Tokenizer
from engine.spec.model import BuiltinModel

INIT_STD = 0.05


class Qwen3(nn.Module):
    """Causal language model with tied embeddings, float32, random weights.

    Sequences are padded on the right: causal attention then keeps padding out of every real token,
    so there is no padding mask.  What stands at padded positions of the output means nothing.
    """

    def __init__(self, model: BuiltinModel, vocab_size: int, *, seed: int = 0) -> None:
        super().__init__()
        self.spec, self.vocab_size = model, vocab_size
        with torch.random.fork_rng(devices=[]):  # torch's modules draw weights that are overwritten below
            self.model = _Backbone(model, vocab_size)
        cos_TE, sin_TE = rotary_tables(model.context_tokens, model.head_dim)
        self.cos_TE: Tensor
        self.sin_TE: Tensor
        self.register_buffer("cos_TE", cos_TE, persistent=False)
        self.register_buffer("sin_TE", sin_TE, persistent=False)
        self._initialise(seed)

    def forward(self, token_ids_BT: Tensor) -> Tensor:
        """Logits [B, T, V]; those at position t predict token t + 1."""
        return self.logits(self.hidden(token_ids_BT))

    def hidden(
        self, token_ids_BT: Tensor, positions_BT: Tensor | None = None, seen_B1TT: Tensor | None = None
    ) -> Tensor:
        """Final hidden states [B, T, D], from which ``logits`` may be taken at chosen positions only.

        Rows with ``positions_BT`` hold several sequences, each of which begins at 0 and sees no other, unless
        ``seen_B1TT`` (bool) says what each token sees.
        """
        if positions_BT is None:
            tokens = token_ids_BT.shape[1]
            hidden_BTD: Tensor = self.model(token_ids_BT, self.cos_TE[:tokens], self.sin_TE[:tokens])
            return hidden_BTD
        turns_B1TE = (table[positions_BT].unsqueeze(1) for table in (self.cos_TE, self.sin_TE))
        seen_B1TT = seen_within_parts(positions_BT) if seen_B1TT is None else seen_B1TT
        packed_BTD: Tensor = self.model(token_ids_BT, *turns_B1TE, seen_B1TT)
        return packed_BTD

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.model.embed_tokens.weight)

    def _initialise(self, seed: int) -> None:
        """Normal matrices from ``seed`` alone, unit norms; the global generator is neither read nor moved."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, INIT_STD, generator=generator)


class _Backbone(nn.Module):
    def __init__(self, model: BuiltinModel, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, model.hidden_size)
        self.layers = nn.ModuleList(_Layer(model) for _ in range(model.layers))
        self.norm = _norm(model.hidden_size)

    def forward(self, token_ids_BT: Tensor, cos_TE: Tensor, sin_TE: Tensor, seen_B1TT: Tensor | None = None) -> Tensor:
        x_BTD = self.embed_tokens(token_ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TE, sin_TE, seen_B1TT)
        hidden_BTD: Tensor = self.norm(x_BTD)
        return hidden_BTD


class _Layer(nn.Module):
    def __init__(self, model: BuiltinModel) -> None:
        super().__init__()
        self.input_layernorm = _norm(model.hidden_size)
        self.self_attn = _Attention(model)
        self.post_attention_layernorm = _norm(model.hidden_size)
        self.mlp = _SwiGlu(model)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, seen_B1TT: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TE, sin_TE, seen_B1TT)
        y_BTD: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return y_BTD


class _Attention(nn.Module):
    """Grouped-query attention whose queries and keys are normalised per head, then rotated."""

    def __init__(self, model: BuiltinModel) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = model.heads, model.kv_heads, model.head_dim
        self.q_proj = _linear(model.hidden_size, model.heads * model.head_dim)
        self.k_proj = _linear(model.hidden_size, model.kv_heads * model.head_dim)
        self.v_proj = _linear(model.hidden_size, model.kv_heads * model.head_dim)
        self.o_proj = _linear(model.heads * model.head_dim, model.hidden_size)
        self.q_norm, self.k_norm = _norm(model.head_dim), _norm(model.head_dim)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor, seen_B1TT: Tensor | None) -> Tensor:
        """``seen_B1TT`` is True where a token (row) may look at another (column); None: at all up to itself."""
        q_BHTE = rotate(self.q_norm(self._split(self.q_proj(x_BTD))), cos_TE, sin_TE)
        k_BKTE = rotate(self.k_norm(self._split(self.k_proj(x_BTD))), cos_TE, sin_TE)
        v_BKTE = self._split(self.v_proj(x_BTD))
        groups = self.heads // self.kv_heads
        k_BHTE, v_BHTE = k_BKTE.repeat_interleave(groups, 1), v_BKTE.repeat_interleave(groups, 1)
        y_BHTE = functional.scaled_dot_product_attention(
            q_BHTE, k_BHTE, v_BHTE, attn_mask=seen_B1TT, is_causal=seen_B1TT is None
        )
        y_BTD: Tensor = self.o_proj(y_BHTE.transpose(1, 2).flatten(2))
        return y_BTD

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, heads * E] -> [B, heads, T, E]."""
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(1, 2)


class _SwiGlu(nn.Module):
    def __init__(self, model: BuiltinModel) -> None:
        super().__init__()
        self.gate_proj = _linear(model.hidden_size, model.intermediate_size)
        self.up_proj = _linear(model.hidden_size, model.intermediate_size)
        self.down_proj = _linear(model.intermediate_size, model.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _norm(size: int) -> nn.RMSNorm:
    return nn.RMSNorm(size, eps=BUILTIN_NORM_EPS)


def seen_within_parts(positions_BT: Tensor) -> Tensor:
    """bool [B, 1, T, T]: each token sees those of its own part up to itself; a part begins where positions do."""
    part_BT = (positions_BT == 0).cumsum(-1)
    tokens = positions_BT.shape[1]
    causal_TT = torch.ones(tokens, tokens, dtype=torch.bool, device=positions_BT.device).tril()
    same_BTT: Tensor = part_BT.unsqueeze(-1) == part_BT.unsqueeze(-2)
    return (same_BTT & causal_TT).unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the last dimension of ``x`` by its position's angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def save_pretrained(model: Qwen3, folder: Path | None, tokenizer: Tokenizer) -> None:
    """Write ``config.json``, ``model.safetensors`` and ``tokenizer.json``; transformers loads the folder as it is.

    None: another rank of a sharded model writes them.
    """
    weights = {name: whole(tensor).detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_hf_config(model, tokenizer), indent=2))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer.as_tokenizers_json(), indent=1))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load_pretrained(model: Qwen3, folder: Path) -> None:
    """Take over the weights of a folder that ``save_pretrained`` wrote.  Raises DamagedFile."""
    file, held = folder / "model.safetensors", model.state_dict()
    with read_back(file):
        read = load_file(file, device=str(model.model.embed_tokens.weight.device))
        placed = {name: laid_out_like(held[name], tensor) if name in held else tensor for name, tensor in read.items()}
        model.load_state_dict(placed)


def _hf_config(model: Qwen3, tokenizer: Tokenizer) -> dict[str, Any]:
    spec = model.spec
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": model.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.context_tokens,
        "rms_norm_eps": BUILTIN_NORM_EPS,
        "rope_theta": Rope().theta,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "bos_token_id": tokenizer.bos,
        "eos_token_id": tokenizer.eos,
        "pad_token_id": tokenizer.pad,
    }
