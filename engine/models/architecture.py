"""What a model folder's ``config.json`` says of the network, in the terms that the torch generator computes with.

One decoder serves what differs only in numbers and switches: Qwen2 and 2.5, Qwen3, Llama, Mistral.  Anything else is
refused here by the field that makes the difference; another generator may serve it.  Settings are read as transformers
5.23 reads them: from ``rope_parameters``, and from ``rope_theta`` and ``rope_scaling`` of older folders.

This module reads no file, makes no tensor and needs no torch; what positions do is computed in ``rope.py``.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from engine.spec.model import BuiltinModel
from engine.spec.problems import Problem

Family = Literal["qwen2", "qwen3", "llama", "mistral"]

BUILTIN_NORM_EPS = 1e-6
ELSEWHERE = 'choose a generator that serves it, e.g. resources.generator = "sglang"'
_HEAD_DIM_OF_QWEN3 = 128
_WINDOW_OF_MISTRAL = 4096
_WINDOW_OF_QWEN = 4096
_FIRST_WINDOWED_LAYER_OF_QWEN = 28


class UnsupportedArchitecture(ValueError):
    """The torch generator cannot serve this model, or its configuration makes no sense."""

    def __init__(self, field: str, value: object, message: str, remedy: str = ELSEWHERE) -> None:
        self.problem = Problem(field, value, message, remedy)
        super().__init__(str(self.problem))


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every frequency divided by ``factor`` (arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by ``factor``, short ones kept, those between mixed (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Slow dimensions interpolated, fast ones kept, a ramp between, and warmer attention (arXiv:2309.00071)."""

    factor: float
    original_positions: int
    beta_fast: float = 32
    beta_slow: float = 1
    whole_dimensions: bool = True
    """Whether the ramp begins and ends at whole dimensions."""
    attention_factor: float | None = None
    """The factor of cos and sin.  Absent: 0.1 ln(factor) + 1, or what ``mscale`` and ``mscale_all_dim`` make of it."""
    mscale: float = 0
    mscale_all_dim: float = 0


Scaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions turn queries and keys."""

    theta: float = 10_000.0
    scaling: Scaling | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with grouped-query attention, rotary positions, RMS norms and a SwiGLU MLP, and its switches."""

    family: Family
    vocab_size: int
    """Rows of the embedding; a tokenizer may know fewer."""
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    max_position_embeddings: int
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised per head before they are turned."""
    tied: bool = False
    """The head is the embedding."""
    sliding_window: int | None = None
    """Tokens that some layer looks back on, itself included; absent: all of them."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Architecture":
        """The network of a ``config.json``.  Raises UnsupportedArchitecture."""
        fields = _Fields(config)
        family = _family(config)
        heads, hidden_size = fields.count("num_attention_heads"), fields.count("hidden_size")
        kv_heads, head_dim = _kv_heads(fields, heads, family), _head_dim(fields, heads, hidden_size, family)
        layers = fields.count("num_hidden_layers")
        fields.refuse_unless("hidden_act", ("silu",), "silu")
        if config.get("quantization_config"):
            raise UnsupportedArchitecture(
                "quantization_config", "(given)", "quantised weights cannot be sampled from", "use the plain weights"
            )
        attention_bias = family in ("qwen3", "llama") and fields.switch("attention_bias")
        return cls(
            family=family,
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.count("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=_rope(config, fields),
            max_position_embeddings=fields.count("max_position_embeddings"),
            qkv_bias=family == "qwen2" or attention_bias,
            out_bias=attention_bias,
            mlp_bias=family == "llama" and fields.switch("mlp_bias"),
            qk_norm=family == "qwen3",
            tied=fields.switch("tie_word_embeddings"),
            sliding_window=_sliding_window(fields, family, layers),
        )

    @classmethod
    def of_builtin(cls, model: BuiltinModel, vocab_size: int) -> "Architecture":
        """The network of ``engine/models/qwen3.py``."""
        return cls(
            family="qwen3",
            vocab_size=vocab_size,
            hidden_size=model.hidden_size,
            intermediate_size=model.intermediate_size,
            layers=model.layers,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            norm_eps=BUILTIN_NORM_EPS,
            rope=Rope(),
            max_position_embeddings=model.context_tokens,
            qk_norm=True,
            tied=True,
        )

    @property
    def longest_context(self) -> int:
        """Tokens up to which every layer sees all of them at positions that the model knows."""
        return min(self.max_position_embeddings, self.sliding_window or self.max_position_embeddings)

    @property
    def parameters(self) -> int:
        embedding, layer = (
            self.vocab_size * self.hidden_size,
            sum(math.prod(shape) for _, shape in self._layer_weights()),
        )
        return embedding * (1 if self.tied else 2) + self.layers * layer + self.hidden_size

    def weights(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every weight's Hugging Face name and shape.  A tied head is not named a second time."""
        yield "model.embed_tokens.weight", (self.vocab_size, self.hidden_size)
        for layer in range(self.layers):
            for name, shape in self._layer_weights():
                yield f"model.layers.{layer}.{name}", shape
        yield "model.norm.weight", (self.hidden_size,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab_size, self.hidden_size)

    def _layer_weights(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        projections = (
            ("self_attn.q_proj", queries, self.hidden_size, self.qkv_bias),
            ("self_attn.k_proj", keys, self.hidden_size, self.qkv_bias),
            ("self_attn.v_proj", keys, self.hidden_size, self.qkv_bias),
            ("self_attn.o_proj", self.hidden_size, queries, self.out_bias),
            ("mlp.gate_proj", self.intermediate_size, self.hidden_size, self.mlp_bias),
            ("mlp.up_proj", self.intermediate_size, self.hidden_size, self.mlp_bias),
            ("mlp.down_proj", self.hidden_size, self.intermediate_size, self.mlp_bias),
        )
        for name, outputs, inputs, biased in projections:
            yield f"{name}.weight", (outputs, inputs)
            if biased:
                yield f"{name}.bias", (outputs,)
        for name in ("self_attn.q_norm", "self_attn.k_norm") if self.qk_norm else ():
            yield f"{name}.weight", (self.head_dim,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.weight", (self.hidden_size,)


@dataclass(frozen=True, slots=True)
class _Fields:
    """Values of a table of a configuration, refused by name where they make no sense."""

    table: Mapping[str, Any]
    path: str = ""

    def count(self, name: str, default: int | None = None) -> int:
        value = self._given(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._senseless(name, value, "a whole number of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._given(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._senseless(name, value, "a finite number greater than 0")
        return float(value)

    def switch(self, name: str, default: bool = False) -> bool:
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise self._senseless(name, value, "true or false")
        return value

    def refuse_unless(self, name: str, served: tuple[object, ...], default: object) -> None:
        value = self.table.get(name, default)
        if value not in served:
            raise UnsupportedArchitecture(self.path + name, value, f"the torch generator serves {served[0]!r} only")

    def _given(self, name: str, default: object) -> Any:
        value = self.table.get(name)
        if value is None and default is None:
            raise UnsupportedArchitecture(
                self.path + name, "(missing)", "the network cannot be built without it", "add it to config.json"
            )
        return default if value is None else value

    def _senseless(self, name: str, value: object, wanted: str) -> UnsupportedArchitecture:
        return UnsupportedArchitecture(self.path + name, value, f"must be {wanted}", "mend config.json")


def _family(config: Mapping[str, Any]) -> Family:
    family = config.get("model_type")
    for known in get_args(Family):
        if family == known:
            return known  # type: ignore[no-any-return]
    raise UnsupportedArchitecture(
        "model_type",
        "(missing)" if family is None else family,
        f"the torch generator serves {', '.join(get_args(Family))}",
    )


def _kv_heads(fields: _Fields, heads: int, family: Family) -> int:
    # An explicit null means one per head everywhere; a missing one only where transformers says so.
    absent_means_all = family == "llama" or "num_key_value_heads" in fields.table
    kv_heads = fields.count("num_key_value_heads", heads if absent_means_all else None)
    if heads % kv_heads:
        raise UnsupportedArchitecture(
            "num_key_value_heads", kv_heads, f"{heads} heads cannot share them evenly", "mend config.json"
        )
    return kv_heads


def _head_dim(fields: _Fields, heads: int, hidden_size: int, family: Family) -> int:
    head_dim = fields.count("head_dim", _HEAD_DIM_OF_QWEN3 if family == "qwen3" else max(hidden_size // heads, 1))
    if head_dim % 2:
        raise UnsupportedArchitecture("head_dim", head_dim, "rotary positions need an even one", "mend config.json")
    return head_dim


def _sliding_window(fields: _Fields, family: Family, layers: int) -> int | None:
    if family == "llama":
        return None
    if family == "mistral":
        given = "sliding_window" in fields.table
        if given and fields.table["sliding_window"] is None:
            return None
        return fields.count("sliding_window", _WINDOW_OF_MISTRAL)
    layer_types = fields.table.get("layer_types")
    windowed = fields.switch("use_sliding_window") and fields.table.get("sliding_window", _WINDOW_OF_QWEN) is not None
    if layer_types is not None:
        _check_layer_types(layer_types, layers, windowed)
        reaches_window = "sliding_attention" in layer_types
    else:
        first = fields.table.get("max_window_layers", _FIRST_WINDOWED_LAYER_OF_QWEN)
        reaches_window = not isinstance(first, int) or first < layers
    return fields.count("sliding_window", _WINDOW_OF_QWEN) if windowed and reaches_window else None


def _check_layer_types(layer_types: object, layers: int, windowed: bool) -> None:
    served = ("full_attention", "sliding_attention") if windowed else ("full_attention",)
    if not isinstance(layer_types, list) or len(layer_types) != layers:
        raise UnsupportedArchitecture(
            "layer_types", layer_types, f"must be a list of {layers}, one for each layer", "mend config.json"
        )
    for layer_type in layer_types:
        if layer_type not in served:
            raise UnsupportedArchitecture(
                "layer_types", layer_type, f"the torch generator serves {' and '.join(served)} here"
            )


def _rope(config: Mapping[str, Any], fields: _Fields) -> Rope:
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    path = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    if not isinstance(parameters, Mapping) or any(isinstance(value, Mapping) for value in parameters.values()):
        raise UnsupportedArchitecture(path, parameters, "the torch generator serves one table for all layers")
    merged = {**parameters}
    for name, default in (("rope_theta", 10_000.0), ("partial_rotary_factor", 1.0)):
        if merged.get(name) is None:
            merged[name] = default if config.get(name) is None else config[name]
    rope_fields = _Fields(merged, f"{path}.")
    rope_fields.refuse_unless("partial_rotary_factor", (1.0,), 1.0)
    theta = rope_fields.number("rope_theta")
    if theta <= 1:
        raise UnsupportedArchitecture(f"{path}.rope_theta", theta, "must be greater than 1", "mend config.json")
    return Rope(theta, _scaling(rope_fields, config, fields))


def _scaling(rope: _Fields, config: Mapping[str, Any], fields: _Fields) -> Scaling | None:
    kind = rope.table.get("rope_type", rope.table.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind not in ("llama3", "yarn"):
        raise UnsupportedArchitecture(
            f"{rope.path}rope_type", kind, "the torch generator serves default, linear, llama3 and yarn"
        )
    longest = fields.count("max_position_embeddings")
    given = config.get("original_max_position_embeddings")
    original = fields.count("original_max_position_embeddings") if given is not None else None
    original = original or rope.count("original_max_position_embeddings", longest)
    return _llama3(rope, original) if kind == "llama3" else _yarn(rope, original, longest)


def _llama3(rope: _Fields, original: int) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise UnsupportedArchitecture(
            f"{rope.path}high_freq_factor", high, f"must be greater than low_freq_factor, {low:g}", "mend config.json"
        )
    return Llama3Scaling(rope.number("factor"), low, high, original)


def _yarn(rope: _Fields, original: int, longest: int) -> YarnScaling:
    def optional(name: str) -> float | None:
        return None if rope.table.get(name) is None else rope.number(name)

    return YarnScaling(
        factor=rope.number("factor", longest / original),
        original_positions=original,
        beta_fast=rope.number("beta_fast", 32),
        beta_slow=rope.number("beta_slow", 1),
        whole_dimensions=rope.switch("truncate", True),
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale") or 0,
        mscale_all_dim=optional("mscale_all_dim") or 0,
    )
