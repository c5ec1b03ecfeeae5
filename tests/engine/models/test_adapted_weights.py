"""An adapter added into weights as peft adds it, and refused where it is another thing."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from engine.launch.sample_model import make_sample_model
from engine.models.adapted_weights import AdaptedWeights
from engine.models.folder_weights import FolderWeights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_sample_model(tmp_path / "model", seed=0)
    return tmp_path / "model"


def test_the_weights_are_those_that_peft_merges(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=10, target_modules=["q_proj", "down_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    merged = adapted.merge_and_unload().state_dict()
    plain = FolderWeights(folder)
    weights = AdaptedWeights(plain, tmp_path / "adapter")
    assert set(weights) == set(plain)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, merged[name].to(tensor.dtype), rtol=1e-5, atol=1e-5)
    changed = {name.split(".")[-2] for name in plain if not torch.equal(plain[name], weights[name])}
    assert changed == {"q_proj", "down_proj"}
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    with pytest.raises(ValueError, match="only plain LoRA is read"):
        AdaptedWeights(plain, tmp_path / "adapter")
