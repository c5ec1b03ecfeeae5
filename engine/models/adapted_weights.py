"""A model's weights with an adapter (LoRA, in the form of peft) added in, read one tensor at a time."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from engine.durable import read_back
from engine.models.folder_weights import FolderWeights

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_OUTSIDE = "base_model.model."


class AdaptedWeights(Mapping[str, Tensor]):
    """W + (alpha / rank) B A (arXiv:2106.09685) for each module with an adapter.

    Raises DamagedFile for a file that cannot be read, ValueError for an adapter of another form or another model.
    """

    def __init__(self, weights: FolderWeights, adapter: Path) -> None:
        self._weights = weights
        with read_back(adapter / CONFIG):
            config = json.loads((adapter / CONFIG).read_text())
        unusual = [name for name in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern") if config.get(name)]
        if config.get("peft_type") != "LORA" or unusual:
            raise ValueError(f"{adapter / CONFIG}: only plain LoRA is read, not {unusual or config.get('peft_type')}")
        self._scale = float(config["lora_alpha"]) / int(config["r"])
        self._deltas = FolderWeights.of_file(adapter / WEIGHTS)
        self._modules = {name.removesuffix(".lora_A.weight") for name in self._deltas if ".lora_A." in name}
        for module in sorted(self._modules):
            if f"{module.removeprefix(_OUTSIDE)}.weight" not in weights:
                raise ValueError(f"{adapter / WEIGHTS}: the model has no module {module.removeprefix(_OUTSIDE)}")

    def __getitem__(self, name: str) -> Tensor:
        weight = self._weights[name]
        module = f"{_OUTSIDE}{name.removesuffix('.weight')}"
        if module not in self._modules:
            return weight
        down, up = self._deltas[f"{module}.lora_A.weight"], self._deltas[f"{module}.lora_B.weight"]
        return (weight.float() + (up.float() @ down.float()) * self._scale).to(weight.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
