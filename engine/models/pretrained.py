"""A pretrained model as a network to train: transformers' own, from safetensors, with or without adapters.

transformers and peft are imported here and nowhere else in the product.  Nothing is fetched, no code of a model's is
run, and weights are never unpickled (``folder.py`` refuses the folder before).

What is held in which precision:

    float32              everything
    bfloat16, float16    full training: weights, gradients and optimiser in float32, the network under torch's autocast
                         LoRA: the model's own weights in that dtype, adapters in float32
    float16              the loss is scaled besides (``engine/training/loss_scale.py``)

The model's own dropout is off: the ratio of an update to the policy before it begins at 1.  LoRA's is on in ``train``.
A mixture of experts is trained by the losses of the recipe alone: the auxiliary loss that balances its router is no
part of any, so that the gradient is that of the policy's objective.  Its experts and its router get no adapters.

Shapes: B sequences, T tokens, D hidden size, N positions, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D
from transformers.utils.logging import disable_progress_bar

from engine.durable import read_back
from engine.failures import RunFailed
from engine.models.folder import INDEX, WEIGHTS, copy_texts, opened_folder, write_config
from engine.models.memory import EXPERTS
from engine.models.origin import ModelOrigin
from engine.models.refusal import ModelFolderRefused
from engine.models.shards import laid_out_like, whole
from engine.models.weights import LoraAdapter
from engine.spec.model import Lora, PretrainedModel
from engine.spec.problems import Problem

__all__ = ["PretrainedNetwork"]

disable_progress_bar()  # a run's output is its own

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
SHARD = "5GB"
"""Weights beyond this are split into files."""
ADAPTER = "default"
HEAD_TOLERANCE = 1e-3
"""By which logits may differ from transformers' own, relative to the largest of them, in any precision of a load."""
HALF_TOLERANCE = 3e-2
"""By which hidden states of packed rows may differ, relative to the largest, where halves are computed with."""


class PretrainedNetwork(nn.Module):
    """Implements ``network.PolicyNetwork``.

    Rows are padded on the right and positions count from 0, so causal attention keeps padding out of every real token.
    """

    def __init__(self, model: PretrainedModel, lm: PreTrainedModel, source: Path, lora: LoraConfig | None) -> None:
        super().__init__()
        self.spec, self.lm = model, lm
        self._source, self._lora = source, lora
        self._packs = self._shares = False
        """Whether packed rows, and such with a common beginning, are known to be computed as their parts alone."""

    @classmethod
    def loaded(cls, origin: ModelOrigin, *, seed: int, device: torch.device) -> "PretrainedNetwork":
        """Raises ModelFolderRefused for a folder whose weights are not those of the architecture that it names."""
        model, source = origin.model, origin.weights
        assert isinstance(model, PretrainedModel)
        assert source is not None  # a pretrained model has a folder
        held = torch.float32 if model.lora is None else DTYPES[model.dtype]
        lm: Any = _loaded(source, model, held)
        if origin.adapter is not None:
            lm = PeftModel.from_pretrained(lm, str(origin.adapter)).merge_and_unload()
        lora = None if model.lora is None else _adapted(lm, model.lora, source, seed)
        if model.gradient_checkpointing:
            lm.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
            lm.enable_input_require_grads()
        network = cls(model, lm.to(device), source, lora)
        network._check_head()
        return network

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def layers(self) -> Sequence[nn.Module]:
        repeated = set(self.lm._no_split_modules or ())
        return [module for module in self.lm.modules() if type(module).__name__ in repeated]

    @property
    def hidden_size(self) -> int:
        return int(self.lm.config.get_text_config().hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self._head_weight.shape[0])

    @property
    def scales_losses(self) -> bool:
        return self.spec.dtype == "float16"

    @property
    def microbatch_tokens(self) -> int:
        return self.spec.microbatch_tokens

    @property
    def is_saved_exactly(self) -> bool:
        return self.spec.dtype == "float32" and self._lora is None and not self._is_converted

    @property
    def _is_converted(self) -> bool:
        """Whether a folder has its weights by other names than this network."""
        return bool(getattr(self.lm, "_weight_conversions", None))

    @property
    def _head(self) -> nn.Module:
        head: nn.Module = self.lm.get_output_embeddings()
        return head

    @property
    def _head_weight(self) -> Tensor:
        weight: Any = self._head.weight
        return torch.as_tensor(weight)

    def hidden(
        self, token_ids_BT: Tensor, positions_BT: Tensor | None = None, seen_B1TT: Tensor | None = None
    ) -> Tensor:
        body = self.lm.base_model
        if positions_BT is None:
            hidden_BTD: Tensor = body(input_ids=token_ids_BT, use_cache=False, return_dict=True).last_hidden_state
            return hidden_BTD
        if seen_B1TT is not None:
            self._check_sharing()
            return self._seeing(token_ids_BT, positions_BT, seen_B1TT)
        self._check_packing()
        packed_BTD: Tensor = body(
            input_ids=token_ids_BT, position_ids=positions_BT, use_cache=False, return_dict=True
        ).last_hidden_state
        return packed_BTD

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """With what some families do to them after the head: a scale (Cohere, Granite), a soft cap (Gemma)."""
        config = self.lm.config.get_text_config()
        logits_NV: Tensor = self._head(hidden_ND)
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits_NV = logits_NV * scale
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits_NV = logits_NV / divisor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits_NV = cap * torch.tanh(logits_NV / cap)
        return logits_NV

    @property
    def computed_in(self) -> torch.dtype | None:
        return None if self._lora is not None or self.spec.dtype == "float32" else DTYPES[self.spec.dtype]

    def computing(self) -> AbstractContextManager[object]:
        if self.computed_in is None:
            return nullcontext()
        return torch.autocast(self._head_weight.device.type, self.computed_in)

    def _seeing(self, token_ids_BT: Tensor, positions_BT: Tensor, seen_B1TT: Tensor) -> Tensor:
        dtype = self.computed_in or self._head_weight.dtype
        none = torch.zeros((), dtype=dtype, device=seen_B1TT.device)
        hidden_BTD: Tensor = self.lm.base_model(
            input_ids=token_ids_BT,
            position_ids=positions_BT,
            attention_mask=torch.where(seen_B1TT, none, torch.finfo(dtype).min),
            use_cache=False,
            return_dict=True,
        ).last_hidden_state
        return hidden_BTD

    @torch.no_grad()
    def _check_sharing(self) -> None:
        """Two rows that begin alike are computed from one beginning as they are alone: no family on a guess.  Asked
        once.  Raises RunFailed.
        """
        if self._shares:
            return
        if self.spec.attention == "flash":
            raise self._cannot_share("its flash attention takes no mask")
        window = getattr(self.lm.config.get_text_config(), "sliding_window", None)
        if isinstance(window, int) and window < self.spec.context_tokens:
            raise self._cannot_share(f"it sees {window} tokens of a context of {self.spec.context_tokens}")
        was_training = self.training
        self.eval()
        device = self._head_weight.device
        ids_BT = torch.arange(7, device=device).unsqueeze(0) % self.vocab_size
        places_BT = torch.tensor([[0, 1, 2, 3, 4, 3, 4]], device=device)
        parts_T = torch.tensor([0, 0, 0, 1, 1, 2, 2], device=device)
        own_TT = (parts_T.unsqueeze(1) == parts_T) | (parts_T == 0)
        seen_B1TT = own_TT.tril().unsqueeze(0).unsqueeze(0)
        try:
            together_TD = self._seeing(ids_BT, places_BT, seen_B1TT)[0].float()
            first_TD, second_TD = (
                self.hidden(ids_BT[:, kept])[0].float() for kept in ([0, 1, 2, 3, 4], [0, 1, 2, 5, 6])
            )
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._cannot_share(f"its attention takes no such mask ({error})") from error
        finally:
            self.train(was_training)
        apart = (together_TD - torch.cat([first_TD, second_TD[3:]])).abs().max() / first_TD.abs().max()
        if not apart.item() <= (HEAD_TOLERANCE if self.spec.dtype == "float32" else HALF_TOLERANCE):
            raise self._cannot_share("it computes rows that share a beginning otherwise than alone")
        self._shares = True

    def _cannot_share(self, why: str) -> RunFailed:
        return RunFailed(f"resources.share_prefixes = true: {self._family}: {why}; set it to false")

    @torch.no_grad()
    def _check_packing(self) -> None:
        """Two sequences in a row are computed as they are alone: no family is packed on a guess.  Asked once.

        transformers finds where a sequence begins in the position ids; a family that reads none would mix them.
        Raises RunFailed.
        """
        if self._packs:
            return
        was_training = self.training
        self.eval()
        ids_BT = torch.arange(7, device=self._head_weight.device).unsqueeze(0) % self.vocab_size
        body, positions_BT = self.lm.base_model, torch.tensor([[0, 1, 2, 0, 1, 2, 3]], device=ids_BT.device)

        def computed(**given: Tensor) -> Tensor:
            hidden_BTD: Tensor = body(**given, use_cache=False, return_dict=True).last_hidden_state
            return hidden_BTD.float()

        try:
            together_BTD = computed(input_ids=ids_BT, position_ids=positions_BT)
            alone_BTD = torch.cat([computed(input_ids=part_BT) for part_BT in ids_BT.split([3, 4], dim=1)], dim=1)
        except (TypeError, ValueError) as error:
            raise RunFailed(f"recipe.stages: packing = true: {self._family} reads no position ids ({error})") from error
        finally:
            self.train(was_training)
        apart = ((together_BTD - alone_BTD).abs().max() / alone_BTD.abs().max()).item()
        if not apart <= (HEAD_TOLERANCE if self.spec.dtype == "float32" else HALF_TOLERANCE):
            problem = f"packing = true: {self._family} mixes packed sequences; set packing = false"
            raise RunFailed(f"recipe.stages: {problem}")
        self._packs = True

    @property
    def _family(self) -> str:
        return str(self.lm.config.get_text_config().model_type)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Transformers' own logits are those of ``hidden`` and ``logits``: no family is trained on a guess."""
        ids_BT = torch.arange(4, device=self._head_weight.device).unsqueeze(0) % self.vocab_size
        self.eval()
        ours = self.logits(self.hidden(ids_BT)[0]).float()
        theirs = self.lm(input_ids=ids_BT, use_cache=False).logits[0].float()
        if not theirs.isfinite().all():
            problem = f"{type(self.lm).__name__} computes NaN or Inf with its weights in {self.spec.dtype}"
            raise _unusable(self._source, problem, 'use model.dtype = "float32", or download the model again')
        if not torch.allclose(ours, theirs, rtol=0, atol=HEAD_TOLERANCE * max(1.0, theirs.abs().max().item())):
            raise _unusable(
                self._source,
                f"the head of {type(self.lm).__name__} does more than this trainer knows",
                "use a model of another family",
            )

    # ---- weights out and in ----

    @torch.no_grad()
    def _merged(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's weights by their plain names, adapters added in; of tied weights the first name alone."""
        adapted: dict[str, Any] = {
            name: module for name, module in self.lm.named_modules() if isinstance(module, LoraLayer)
        }
        seen: set[int] = set()
        for name, parameter in self.lm.state_dict(keep_vars=True).items():
            if ".lora_" in name or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            plain, tensor = name.replace(".base_layer.", "."), whole(parameter.detach())
            layer = adapted.get(plain.removesuffix(".weight"))
            if layer is not None and name.endswith(".base_layer.weight"):
                tensor = tensor.float() + _delta(layer)
            yield plain, tensor

    def exported(self) -> dict[str, Tensor]:
        exported: dict[str, Tensor] = revert_weight_conversion(self.lm, self._copied())
        return exported

    def _copied(self) -> dict[str, Tensor]:
        """By the names of this network, which holds a mixture's experts as one tensor."""
        dtype = DTYPES[self.spec.dtype]
        return {name: tensor.to("cpu", dtype, copy=True) for name, tensor in self._merged()}

    def exported_adapter(self) -> LoraAdapter:
        if self._lora is None:
            raise ValueError(f"{self._family}: the network has no adapter")
        peft_config: Any = self._lora
        written = {
            name: sorted(value) if isinstance(value, set) else value for name, value in peft_config.to_dict().items()
        }
        return LoraAdapter(written, {name: factor.clone() for name, factor in self._adapter().items()})

    def save_folder(self, folder: Path | None) -> None:
        """The merged model, or the adapter apart where LoRA says so, with tokenizer and template as they came."""
        apart = self.spec.lora is not None and self.spec.lora.export == "adapter"
        weights = self._adapter() if apart else self._copied()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if apart:
            assert self._lora is not None  # an adapter is saved where there is one
            self._lora.save_pretrained(str(folder))
            save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        else:
            self.lm.save_pretrained(folder, state_dict=weights, max_shard_size=SHARD)
            # As it came: what was switched off for training is not switched off for good.
            write_config(self._source, folder, dtype=self.spec.dtype)
        copy_texts(self._source, folder)

    def _adapter(self) -> dict[str, Tensor]:
        """By the names of peft."""
        return {
            f"base_model.model.{name.replace(f'.{ADAPTER}', '')}": whole(parameter.detach()).cpu().contiguous()
            for name, parameter in self.lm.named_parameters()
            if ".lora_" in name
        }

    def load_folder(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors")) if (folder / INDEX).is_file() else [folder / WEIGHTS]
        state: dict[str, Tensor] = {}
        for file in files:
            with read_back(file):
                state |= load_file(file)
        with read_back(folder):
            held = self.lm.state_dict()
            names = {name for name, _ in self._merged()}
            if state.keys() != names:
                raise ValueError(f"it holds other weights: {sorted(state.keys() ^ names)[:3]}")
            self.lm.load_state_dict({name: laid_out_like(held[name], state[name]) for name in state}, strict=False)


@torch.no_grad()
def _delta(layer: Any) -> Tensor:
    """(alpha / rank) B A, what the adapter adds to the weight of its layer, in float32."""
    a, b = (whole(factors[ADAPTER].weight.detach()).float() for factors in (layer.lora_A, layer.lora_B))
    product: Tensor = b @ a
    scaling: float = layer.scaling[ADAPTER]
    return (product.T if getattr(layer, "fan_in_fan_out", False) else product) * scaling


def check_loading(source: Path) -> None:
    """Build the network and compare it with the names and shapes of the weights, none of which is read.

    Raises ModelFolderRefused for what ``PretrainedNetwork.loaded`` would refuse.
    """
    _loaded(source, PretrainedModel(path=str(source)), torch.float32, device_map="meta")


def _loaded(source: Path, model: PretrainedModel, held: torch.dtype, **places: str) -> PreTrainedModel:
    opened_folder(source)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=held,
            attn_implementation=ATTENTION[model.attention],
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **places,
        )
    except Exception as error:  # of what a folder says, transformers raises classes of many packages
        first_line = (str(error).splitlines() or [""])[0][:300]
        if "attn_implementation" in str(error):
            problem = f"{source.name} cannot be computed with it: {first_line[:120]}"
            remedy = 'use model.attention = "eager"'
            raise ModelFolderRefused(Problem("model.attention", model.attention, problem, remedy)) from error
        raise _unusable(
            source, f"transformers cannot load it: {first_line}", "give a decoder-only language model"
        ) from error
    lm, report = loaded
    for what in ("missing_keys", "mismatched_keys"):
        if found := sorted(map(str, report[what])):
            raise _unusable(
                source, f"{len(found)} weights of its architecture are {what.split('_')[0]}, {found[0]} first",
                "download the model again",
            )  # fmt: skip
    _switch_dropout_off(lm)
    whole: PreTrainedModel = lm
    return whole


def _switch_dropout_off(lm: nn.Module) -> None:
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _adapted(lm: PreTrainedModel, lora: Lora, source: Path, seed: int) -> LoraConfig:
    """Put adapters into the model, drawn from ``seed`` alone; everything else stops being trained."""
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft multiplies with it, whole or not
        lora_dropout=lora.dropout,
        target_modules=_linear_modules(lm) if lora.is_on_all_linear else lora.targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(source),
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, lm, ADAPTER)
    except ValueError as error:
        raise ModelFolderRefused(
            Problem("model.lora.targets", lora.targets, str(error)[:300], "name linear modules of the model")
        ) from error
    for name, parameter in lm.named_parameters():
        if ".lora_" in name and EXPERTS in name:
            problem = "a mixture's experts get no adapters, which would not be exported"
            raise ModelFolderRefused(Problem("model.lora.targets", lora.targets, problem, "name other modules"))
        parameter.requires_grad_(".lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return config


def _linear_modules(lm: PreTrainedModel) -> list[str]:
    """All but the head.  By their names: peft would take a mixture's experts too, which are exported as they began."""
    head = lm.get_output_embeddings()
    return [
        name for name, module in lm.named_modules() if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]


def _unusable(source: Path, message: str, remedy: str) -> ModelFolderRefused:
    value: Any = str(source)
    return ModelFolderRefused(Problem("model.path", value, message, remedy))
