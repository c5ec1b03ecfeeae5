"""What is read of a config.json is held against what transformers makes of the same file."""

import json

import pytest
import torch

from engine.models.architecture import Architecture, UnsupportedArchitecture
from engine.models.qwen3 import Qwen3
from engine.models.rope import rotary_tables
from engine.spec.model import BuiltinModel

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
QWEN3 = {**SMALL, "model_type": "qwen3", "head_dim": 16}
LLAMA = {**SMALL, "model_type": "llama"}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 5e5,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e6},
    "yarn, every setting": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "rope_theta": 1e4,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.2,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "yarn, attention factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 2048,
        "rope_theta": 1e4,
        "attention_factor": 1.3,
    },
}


def saved_config(tmp_path, family: str, **settings):
    from transformers import AutoConfig

    AutoConfig.for_model(family, **{**SMALL, **settings}).save_pretrained(tmp_path)
    return json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral"])
def test_positions_turn_as_in_transformers_to_the_last_bit(tmp_path, family, name):
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = saved_config(tmp_path, family, head_dim=48, rope_parameters=ROPES[name])
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path))
    cos, sin = theirs(torch.zeros(1), torch.arange(4096).unsqueeze(0))
    architecture = Architecture.of_config(config)
    ours = rotary_tables(4096, architecture.head_dim, architecture.rope)
    assert torch.equal(ours[0], cos[0])
    assert torch.equal(ours[1], sin[0])


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn"])
def test_older_folders_with_rope_theta_and_rope_scaling_are_read_too(tmp_path, name):
    parameters = dict(ROPES[name])
    theta = parameters.pop("rope_theta")
    older = {**LLAMA, "rope_theta": theta, "rope_scaling": parameters}
    newer = saved_config(tmp_path, "llama", rope_parameters=ROPES[name])
    assert Architecture.of_config(older).rope == Architecture.of_config(newer).rope
    oldest = {**older, "rope_scaling": {("type" if key == "rope_type" else key): v for key, v in parameters.items()}}
    assert Architecture.of_config(oldest) == Architecture.of_config(older)
    assert Architecture.of_config(LLAMA).rope.theta == 10_000


VARIANTS = [
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3", {"head_dim": 24}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": None}),
    ("llama", {"tie_word_embeddings": True, "head_dim": 10}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"head_dim": 12}),
]


@pytest.mark.parametrize(("family", "settings"), VARIANTS)
def test_names_and_shapes_of_the_weights_are_those_of_transformers(tmp_path, family, settings):
    from transformers import AutoConfig, AutoModelForCausalLM

    architecture = Architecture.of_config(saved_config(tmp_path, family, **settings))
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    if architecture.tied:
        del shapes["lm_head.weight"]
    assert dict(architecture.weights()) == shapes
    assert architecture.parameters == theirs.num_parameters()


def test_the_builtin_model_is_one_of_them():
    model = BuiltinModel(layers=3, hidden_size=40)
    policy = Qwen3(model, 60)
    architecture = Architecture.of_builtin(model, 60)
    assert dict(architecture.weights()) == {name: tuple(t.shape) for name, t in policy.state_dict().items()}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "gemma3_text"}, "model_type"),
        ({"model_type": "qwen3_moe"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "1024"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"rope_theta": -1}, "rope_parameters.rope_theta"),
        ({"partial_rotary_factor": 0.5}, "rope_parameters.partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_parameters.rope_type"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {**ROPES["llama3"], "high_freq_factor": 1.0}}, "rope_scaling.high_freq_factor"),
        ({"rope_scaling": {**ROPES["yarn"], "factor": float("inf")}}, "rope_scaling.factor"),
    ],
)
def test_what_cannot_be_served_is_refused_by_field_with_a_remedy(changes, field):
    Architecture.of_config(QWEN3)
    with pytest.raises(UnsupportedArchitecture) as refused:
        Architecture.of_config({**QWEN3, **changes})
    assert refused.value.problem.field == field
    assert refused.value.problem.remedy


def test_another_family_is_pointed_to_a_generator_that_serves_it():
    with pytest.raises(UnsupportedArchitecture, match="sglang"):
        Architecture.of_config({**QWEN3, "model_type": "gemma3_text"})


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 4096),
        ({"sliding_window": 512}, 4096),  # of Qwen's folders, most of which name a window and do not use it
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 2}, 512),
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 3}, 4096),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, 4096),
        ({"sliding_window": 64, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 3}, 64),
        ({"model_type": "mistral", "sliding_window": 256}, 256),
        ({"model_type": "mistral", "sliding_window": None}, 4096),
        ({"model_type": "llama", "sliding_window": 256}, 4096),
    ],
)
def test_a_window_bounds_the_context_where_a_layer_uses_it(changes, longest):
    assert Architecture.of_config({**QWEN3, **changes}).longest_context == longest
