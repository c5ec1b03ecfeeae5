"""A GPT model of Megatron that computes what transformers computes for the same weights.

One rank builds its part: some layers (pipeline), some of the heads, inner dimensions and vocabulary (tensor), some of
the experts.  Layers are Megatron's own local ones, without fused kernels, with attention from ``attention.py``; nothing
is drawn at random, since all weights are read from a folder.  The model ends with hidden states: what is made of
them is decided in ``outputs.py``, where logits never stand in memory all at once.

Shapes: R rows, S positions of this rank, E head dim.
"""

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.parallel_state import is_pipeline_first_stage, is_pipeline_last_stage
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor, nn
from torch.nn.functional import silu

from engine.models.rope import frequencies
from engine.spec.megatron import Megatron
from engine.spec.model import PretrainedModel
from engine.training.backends.megatron.attention import CausalAttention
from engine.training.backends.megatron.layout import Shape

if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # 0.16.1 asks for it also where Transformer Engine is not installed

__all__ = ["HiddenStates", "built", "config_of"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def config_of(shape: Shape, model: PretrainedModel, megatron: Megatron) -> TransformerConfig:
    """Megatron's description of the network and of its layout."""
    architecture, dtype = shape.architecture, DTYPES[model.dtype]
    return TransformerConfig(
        num_layers=architecture.layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.intermediate_size,
        num_attention_heads=architecture.heads,
        num_query_groups=architecture.kv_heads,
        kv_channels=architecture.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_eps,
        qk_layernorm=architecture.qk_norm,
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        **_UNFUSED,
        **_divided(megatron),
        **_recomputed(model, megatron, layers=architecture.layers),
        **_of_experts(shape),
    )


_UNFUSED: dict[str, Any] = {
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "use_cpu_initialization": True,
    "perform_initialization": False,
    "variable_seq_lengths": True,
    "moe_token_dispatcher_type": "alltoall",
    "calculate_per_token_loss": True,
}
"""No kernel of Transformer Engine or Apex; rows of any length; and gradients that are summed, never averaged."""


def _divided(megatron: Megatron) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": megatron.tensor,
        "pipeline_model_parallel_size": megatron.pipeline,
        "context_parallel_size": megatron.context,
        "expert_model_parallel_size": megatron.expert,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": megatron.sequence_parallel,
    }


def _recomputed(model: PretrainedModel, megatron: Megatron, *, layers: int) -> dict[str, Any]:
    of_layers = megatron.recompute == "layers" or (megatron.recompute == "as-model" and model.gradient_checkpointing)
    if of_layers:
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if megatron.recompute == "attention":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {}


def _of_experts(shape: Shape) -> dict[str, Any]:
    """The router's own losses are off: the gradient is that of the recipe's losses alone."""
    if shape.experts is None:
        return {}
    return {
        "num_moe_experts": shape.experts.count,
        "moe_router_topk": shape.experts.per_token,
        "moe_ffn_hidden_size": shape.experts.intermediate_size,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_pre_softmax": not shape.experts.weights_sum_to_one,
    }


def built(shape: Shape, config: TransformerConfig, *, context_tokens: int) -> "HiddenStates":
    """This rank's part of the network, its weights not yet read."""
    architecture = shape.architecture
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, qk_layernorm=architecture.qk_norm, normalization="RMSNorm"
    )
    layer: Any = spec.submodules
    attention = layer.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    attention.core_attention = CausalAttention
    if architecture.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    return HiddenStates(
        shape,
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules([spec] * get_num_layers_to_build(config), RmsNorm),
        vocab_size=architecture.vocab_size,
        max_sequence_length=context_tokens,
        pre_process=is_pipeline_first_stage(),
        post_process=is_pipeline_last_stage(),
        share_embeddings_and_output_weights=architecture.tied,
        position_embedding_type="rope",
    )


class HiddenStates(GPTModel):  # type: ignore[misc]
    """A stage of the network; the last one answers the normed hidden states [S, R, D]."""

    def __init__(self, shape: Shape, **given: Any) -> None:
        super().__init__(**given)
        turns, warmth = frequencies(shape.architecture.rope, shape.architecture.head_dim)
        assert warmth == 1.0  # the layout has refused what warms attention
        self.rotary_pos_emb = Positions(turns)

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states

    @property
    def head(self) -> Tensor:
        """This rank's part of the head [V / tensor, D], which may be the embedding's."""
        shared: Tensor | None = None
        if self.share_embeddings_and_output_weights:
            shared = self.shared_embedding_or_output_weight()
        return self.output_layer.weight if shared is None else shared


class Positions(nn.Module):
    """Rotary angles of the tokens of a micro-batch, which ``at`` is told before each pass.

    Angles are those of a token's own sequence, also where several share a row: at far positions float32 would round the
    difference of two angles.  In Megatron's place for this, which knows rows of one sequence alone.
    """

    def __init__(self, turns: Tensor) -> None:
        super().__init__()
        self.register_buffer("turns", turns, persistent=False)
        self.at: Tensor | None = None
        """int64 [R, S]."""

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        assert self.at is not None
        return self.at.shape[1]

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """Radians [S, R, 1, E], float32."""
        assert self.at is not None
        assert isinstance(self.turns, Tensor)
        angles_SRE = self.at.T.unsqueeze(-1).float() * self.turns
        return torch.cat((angles_SRE, angles_SRE), dim=-1).unsqueeze(2)


class RmsNorm(nn.RMSNorm):
    """torch's, built as Megatron builds the parts of its layers.

    With sequence parallelism each tensor rank has the gradient of its own positions alone, which Megatron is told.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_unused: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
