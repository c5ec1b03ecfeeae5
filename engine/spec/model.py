"""What a run trains: a built-in network, a pretrained model's folder, or what another run has made of one.

A document that does not say which is about the built-in one.  Nothing is read from disk here: whether a folder is one,
and whether the run fits it, is asked before a start (``engine/loop/model_requirements.py``).
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from engine.spec.environment import Vocabulary
from engine.spec.impossible import impossible
from engine.spec.model_files import CatalogVersion
from engine.spec.strict import MOST_STEPS, Strict

FolderPath = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f]+$")]
HubName = Annotated[str, StringConstraints(pattern=r"^[\w][\w.-]*/[\w][\w.-]*$", max_length=200)]
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.-]*$", max_length=200)]

Precision = Literal["float32", "bfloat16", "float16"]
Attention = Literal["sdpa", "flash", "eager"]
ToolCallFormat = Literal["auto", "hermes", "llama", "code-fence"]
Reasoning = Literal["auto", "on", "off"]

ALL_LINEAR = "all-linear"
"""In place of the names of modules, as peft has it."""

ContextTokens = Annotated[int, Field(ge=16, le=2**20)]
MicrobatchTokens = Annotated[int, Field(ge=16, le=2**24)]


class Lora(Strict):
    """Low-rank adapters (arXiv:2106.09685): the model's own weights stay, and W + (alpha / rank) B A is trained."""

    rank: int = Field(default=16, ge=1, le=4096)
    """The inner dimension of B A."""
    alpha: float = Field(default=32.0, gt=0, le=10**6)
    """B A counts alpha / rank times."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout of what A reads, in updates alone.  Above 0 the first ratios of an update are not exactly 1."""
    targets: list[ModuleName] = ["all-linear"]
    """The modules that get an adapter, by the ends of their names, e.g. ``q_proj``; ``all-linear`` alone means every
    linear one but the head."""
    export: Literal["merged", "adapter"] = "merged"
    """What ``model/`` of a checkpoint holds: the whole model with the adapter added in, or the adapter alone, in the
    form of peft, which needs the model that it began from."""

    @field_validator("targets", mode="before")
    @classmethod
    def _one_target_needs_no_list(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _has_a_target(self) -> Self:
        if not self.targets:
            raise impossible("targets", [], "without a target nothing would be trained", f'use ["{ALL_LINEAR}"]')
        if ALL_LINEAR in self.targets and not self.is_on_all_linear:
            raise impossible(
                "targets",
                self.targets,
                f"{ALL_LINEAR} names every linear module",
                f'use ["{ALL_LINEAR}"], or leave it out',
            )
        return self

    @property
    def is_on_all_linear(self) -> bool:
        return self.targets == [ALL_LINEAR]


class BuiltinModel(Strict):
    """A small transformer of the Qwen3 architecture with a built-in vocabulary, initialised at random."""

    kind: Literal["builtin"] = "builtin"
    architecture: Literal["qwen3"] = "qwen3"
    vocabulary: Vocabulary = "characters"
    """What its tokens are: single characters, or these and the words of a built-in world, each word one token.
    A run that does not say gets the words of its environment where that has some."""
    layers: int = Field(default=2, ge=1, le=64)
    hidden_size: int = Field(default=96, ge=8, le=65536)
    heads: int = Field(default=4, ge=1, le=1024)
    kv_heads: int = Field(default=2, ge=1, le=1024)
    head_dim: int = Field(default=24, ge=2, le=1024)
    intermediate_size: int = Field(default=256, ge=8, le=2**20)
    context_tokens: ContextTokens = 128
    """Prompt, sampled tokens and tool outputs of one episode must fit in here."""

    @model_validator(mode="after")
    def _heads_share_kv_heads(self) -> Self:
        if self.heads % self.kv_heads:
            raise impossible(
                "kv_heads",
                self.kv_heads,
                f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly",
                f"choose a divisor of {self.heads}",
            )
        if self.head_dim % 2:
            raise impossible(
                "head_dim", self.head_dim, "rotary embeddings need an even head_dim", f"use {self.head_dim + 1}"
            )
        return self


class PretrainedModel(Strict):
    """A model's folder in the form of Hugging Face: config, safetensors, tokenizer and chat template.

    Any decoder-only model that transformers knows by itself; code that comes with a model is never run.
    """

    kind: Literal["pretrained"] = "pretrained"
    path: FolderPath | None = None
    """The folder: below the models folder (``PALESTRA_MODELS``, by default ``models`` of the home), or, on the command
    line alone, anywhere by its absolute path."""
    catalog: CatalogVersion | None = None
    """A version of the team's catalog, as ``name@version``, in place of a path."""
    hub: HubName | None = None
    """A model of the Hugging Face hub, as ``org/name``, in place of a path."""
    revision: Annotated[str, StringConstraints(pattern=r"^[\w][\w./-]*$", max_length=200)] | None = None
    """The revision of the hub's model: a commit, a tag or a branch."""
    dtype: Precision = "float32"
    """In what the network computes and is sampled.  With ``bfloat16`` or ``float16`` trained weights are kept, and
    moved, in float32 (mixed precision); weights that LoRA leaves alone are held in it.  ``float16`` scales losses."""
    attention: Attention = "sdpa"
    """``sdpa`` is torch's own; ``flash`` needs the package flash-attn and a GPU; ``eager`` is for comparisons."""
    context_tokens: ContextTokens = 4096
    """Prompt, sampled tokens and tool outputs of one episode must fit in here; at most what the model was made for."""
    lora: Lora | None = None
    """Absent: all weights are trained."""
    gradient_checkpointing: bool = False
    """Whether a layer's activations are computed again in the backward pass in place of being kept."""
    microbatch_tokens: MicrobatchTokens = 16384
    """Padded tokens of a micro-batch at most; rows of like length stand together, and a longer one stands alone."""
    tool_calls: ToolCallFormat = "auto"
    """How the policy writes a tool call; ``auto`` asks the model's chat template."""
    reasoning: Reasoning = "auto"
    """Whether a turn may begin with a thought; ``auto`` asks the chat template and the environment."""

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Self:
        places = {name: getattr(self, name) for name in ("path", "catalog", "hub")}
        given = [name for name, value in places.items() if value is not None]
        if len(given) != 1:
            raise impossible(
                "path",
                self.path,
                f"a pretrained model comes from exactly one of path, catalog and hub, not {len(given)}",
                f"remove {' and '.join(given[1:])}" if given else 'set path = "a-folder-with-a-model"',
            )
        if self.revision is not None and self.hub is None:
            raise impossible("revision", self.revision, "only a model of the hub has revisions", "remove it")
        return self


class CheckpointModel(Strict):
    """What another run has made of its model: a warm start.

    Weights, tokenizer and template are those of the checkpoint; optimiser, buffers and counters begin anew.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    run: FolderPath
    """The run: its id or name below the home, or, on the command line alone, its folder."""
    step: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    """The step of the checkpoint; absent: the newest whole one when the run starts."""
    context_tokens: ContextTokens | None = None
    """This and what follows: absent, as the other run had it."""
    dtype: Precision | None = None
    attention: Attention | None = None
    lora: Lora | None = None
    """New adapters; those of the other run are added into its weights first."""
    gradient_checkpointing: bool | None = None
    microbatch_tokens: MicrobatchTokens | None = None


Model = BuiltinModel | PretrainedModel | CheckpointModel
