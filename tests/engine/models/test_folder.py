"""What is wrong with a model's folder is said before anything of it is loaded, with the file's name."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.models.folder import opened_folder
from engine.models.memory import adapted_modules, adapter_parameters
from engine.models.refusal import ModelFolderRefused
from engine.spec.model import Lora
from tests.engine.models.folders import FAMILIES, folder_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder_of("qwen3"), tmp_path / "model"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_that_transformers_wrote_is_read(family: Any) -> None:
    found = opened_folder(folder_of(family))
    assert found.vocab_size == 320
    assert found.longest_context == 1024
    assert found.parameters == sum(tensor.elements for tensor in found.tensors.values()) > 10_000
    assert "model.layers.1.self_attn.q_proj" in found.linear_modules()


def config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": 1}))


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def longer(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"more")


def header(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(content)) + content)


def index(folder: Path, **weight_map: str) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "is no model folder"),
    "config no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json.*is not JSON"),
    "config a list": (lambda folder: (folder / "config.json").write_text("[]"), "no JSON object"),
    "config nested": (lambda folder: (folder / "config.json").write_text('{"a":' * 9999), "is not JSON"),
    "config in latin-1": (lambda folder: (folder / "config.json").write_bytes(b'{"\xe9": 1}'), "is not JSON"),
    "remote code": (lambda folder: config(folder, auto_map={"AutoModel": "m.M"}), "code of its own"),
    "code beside it": (lambda folder: (folder / "modeling_x.py").write_text(""), "code of its own"),
    "no type": (lambda folder: config(folder, model_type=None), "no model_type"),
    "no vocabulary": (lambda folder: config(folder, vocab_size="many"), "no vocab_size"),
    "quantised": (lambda folder: config(folder, quantization_config={"bits": 4}), "quantised"),
    "pickled": (pickled, "pytorch_model.bin.*pickled"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    "cut": (cut, "model.safetensors.*is damaged"),
    "longer": (longer, "model.safetensors.*is damaged"),
    "empty file": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "is damaged"),
    "header of a petabyte": (
        lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**50) + b"{}"),
        "is damaged",
    ),
    "header no JSON": (lambda folder: header(folder, b"{{{{"), "no safetensors header"),
    "header a list": (lambda folder: header(folder, b"[1,2]"), "no safetensors header"),
    "header nested": (lambda folder: header(folder, b'{"a":' * 9999), "no safetensors header"),
    "header without shape": (lambda folder: header(folder, b'{"w":{"dtype":"F32"}}'), "no safetensors header"),
    "shape that lies": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[7],"data_offsets":[0,0]}}'),
        "w is not the F32",
    ),
    "three offsets": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0,0]}}'),
        "no safetensors header",
    ),
    "negative shape": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[-1,0],"data_offsets":[0,0]}}'),
        "no safetensors header",
    ),
    "infinite shape": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,0]}}'),
        "no safetensors header",
    ),
    "offset beyond floats": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,1e999]}}'),
        "no safetensors header",
    ),
    "size of 4000 digits": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[0,1%s],"data_offsets":[0,0]}}' % (b"0" * 4000)),
        "no whole number from 0 to",
    ),
    "65 dimensions": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[%s0],"data_offsets":[0,0]}}' % (b"1," * 64)),
        "64 sizes at most",
    ),
    "config of a terabyte": (lambda folder: os.truncate(folder / "config.json", 2**40), "config.json.*bytes long"),
    "tensors that share bytes": (
        lambda folder: (
            header(
                folder,
                b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                b'"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            ),
            (folder / "model.safetensors").open("ab").write(b"abcd"),
        )[0],
        "w does not begin where the tensor before it ends",
    ),
    "negative offsets": (
        lambda folder: header(folder, b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[-4,0]}}'),
        "is damaged",
    ),
    "whole numbers": (
        lambda folder: (
            header(folder, b'{"w":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}'),
            (folder / "model.safetensors").open("ab").write(b"ab"),
        )[0],
        "w is I8",
    ),
    "a shard is missing": (lambda folder: index(folder, w="model-1-of-2.safetensors"), "is named by .* and missing"),
    "a shard without what it should hold": (
        lambda folder: (
            (folder / "model.safetensors").rename(folder / "model-1-of-1.safetensors"),
            index(folder, w="model-1-of-1.safetensors"),
        )[0],
        "model-1-of-1.safetensors: lacks w, which",
    ),
    "a shard outside": (lambda folder: index(folder, w="../other/model.safetensors"), "outside of the folder"),
    "an index without a map": (
        lambda folder: (index(folder), (folder / "model.safetensors.index.json").write_text("{}"))[0],
        "no weight_map",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_trusted_or_trained_is_refused(folder: Path, what: str) -> None:
    spoil, reported = BAD[what]
    spoil(folder)
    with pytest.raises(ModelFolderRefused, match=reported) as refused:
        opened_folder(folder)
    assert refused.value.problem.field == "model.path"
    assert refused.value.problem.remedy


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderRefused, match="no such folder"):
        opened_folder(tmp_path / "nothing")


def test_shards_are_read_as_one_model(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: whole[name] for name in held}, folder / file)
    (folder / "model.safetensors").unlink()
    index(folder, **{name: file for file, held in parts.items() for name in held})
    assert opened_folder(folder).parameters == opened_folder(folder_of("qwen3")).parameters
    index(folder, **{name: file for file, held in parts.items() for name in held if name != names[0]})
    assert names[0] not in opened_folder(folder).tensors, "nothing loads what the index leaves out"


def test_what_is_looked_at_is_what_is_loaded(folder: Path) -> None:
    """Beside whole weights an index counts for nobody: neither here nor for transformers and the generator."""
    other = shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    content = {"weight_map": dict.fromkeys(opened_folder(folder).tensors, other.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    cut(folder)
    with pytest.raises(ModelFolderRefused, match=r"model\.safetensors: is damaged"):
        opened_folder(folder)


def test_the_modules_and_parameters_of_an_adapter_are_those_of_peft() -> None:
    import torch

    from engine.models.network import network_for
    from engine.spec.model import PretrainedModel

    for targets in (["all-linear"], ["q_proj", "down_proj"]):
        lora = Lora(rank=3, targets=targets)
        model = PretrainedModel(path=str(folder_of("qwen3")), lora=lora)
        made = network_for(model, seed=0, device=torch.device("cpu")).module
        trained = {name: p.numel() for name, p in made.named_parameters() if p.requires_grad}
        found = opened_folder(folder_of("qwen3"))
        assert adapter_parameters(found, lora) == sum(trained.values())
        assert {f"lm.{name}" for name in adapted_modules(found, lora)} == {name.split(".lora_")[0] for name in trained}
