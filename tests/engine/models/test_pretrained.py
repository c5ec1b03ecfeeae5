"""A model folder as a network to train: what it computes, exports and saves is what transformers makes of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.models.adapted_weights import AdaptedWeights
from engine.models.folder import opened_folder
from engine.models.folder_weights import FolderWeights
from engine.models.memory import adapted_modules, adapter_parameters
from engine.models.network import network_for
from engine.models.pretrained import PretrainedNetwork
from engine.models.refusal import ModelFolderRefused
from engine.models.tokenizer_training import Family
from engine.spec.model import Lora, PretrainedModel
from tests.engine.models.folders import FAMILIES, OTHERS, Other, folder_of, other_folder

CPU = torch.device("cpu")
IDS = torch.randint(300, (3, 17), generator=torch.Generator().manual_seed(1))


def network(family: Family = "qwen3", *, tied: bool = False, seed: int = 0, **changes: Any) -> PretrainedNetwork:
    model = PretrainedModel(path=str(folder_of(family, tied=tied)), context_tokens=128, **changes)
    made = network_for(model, seed=seed, device=CPU)
    assert isinstance(made, PretrainedNetwork)
    return made


def moved(made: PretrainedNetwork) -> PretrainedNetwork:
    """As if an update had moved the adapters, which begin as nothing."""
    draws = torch.Generator().manual_seed(5)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0.0, 0.1, generator=draws)
    return made


def logits(made: PretrainedNetwork, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return made.logits(made.hidden(ids))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_transformers(family: Family, tied: bool) -> None:
    ours, theirs = network(family, tied=tied), AutoModelForCausalLM.from_pretrained(folder_of(family, tied=tied))
    torch.testing.assert_close(logits(ours), theirs(IDS).logits, rtol=0, atol=1e-5)
    ours.logits(ours.hidden(IDS)).log_softmax(-1)[:, :-1].gather(-1, IDS[:, 1:, None]).sum().backward()
    theirs(IDS).logits.log_softmax(-1)[:, :-1].gather(-1, IDS[:, 1:, None]).sum().backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.lm.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_right_changes_nothing_before_it(family: Family) -> None:
    made = network(family)
    padded = torch.nn.functional.pad(IDS, (0, 9))
    torch.testing.assert_close(logits(made, padded)[:, :17], logits(made), rtol=0, atol=1e-5)


@pytest.mark.parametrize("export", ["merged", "adapter"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_adapter_opens_in_transformers_merged_or_apart(family: Family, export: str, tmp_path: Path) -> None:
    made = moved(network(family, lora=Lora(rank=4, export=export)))
    made.save_folder(tmp_path)
    torch.testing.assert_close(
        AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits, logits(made), rtol=0, atol=1e-5
    )
    assert (tmp_path / "adapter_model.safetensors").exists() == (export == "adapter")
    if export == "adapter":
        base = AutoModelForCausalLM.from_pretrained(folder_of(family))
        with torch.no_grad():
            apart = PeftModel.from_pretrained(base, str(tmp_path))(IDS).logits
        torch.testing.assert_close(apart, logits(made), rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"lora": Lora(rank=2)}])
def test_the_weights_that_are_sampled_are_the_trained_ones_under_plain_names(changes: dict[str, Any]) -> None:
    made = moved(network(**changes))
    theirs = AutoModelForCausalLM.from_pretrained(folder_of("qwen3"))
    assert made.exported().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(made.exported())
    torch.testing.assert_close(theirs(IDS).logits, logits(made), rtol=0, atol=1e-5)


def test_of_tied_weights_one_name_is_exported() -> None:
    assert "lm_head.weight" not in network(tied=True).exported()


def test_an_adapter_begins_as_nothing_and_trains_nothing_else() -> None:
    made = network(lora=Lora(rank=2))
    torch.testing.assert_close(logits(made), logits(network()), rtol=0, atol=1e-6)
    assert {name for name, parameter in made.named_parameters() if parameter.requires_grad} == {
        name for name, _ in made.named_parameters() if ".lora_" in name
    }


def test_adapters_are_drawn_from_the_seed_alone() -> None:
    first = network(lora=Lora(rank=2), seed=1).state_dict()
    torch.manual_seed(99)
    again, other = network(lora=Lora(rank=2), seed=1).state_dict(), network(lora=Lora(rank=2), seed=2).state_dict()
    name = next(name for name in first if "lora_A" in name)
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_an_adapter_alone_is_what_the_whole_export_adds(tmp_path: Path) -> None:
    made = moved(network(lora=Lora(rank=2, alpha=8)))
    adapter, whole = made.exported_adapter(), made.exported()
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter.config))
    save_file(dict(adapter.factors), tmp_path / "adapter_model.safetensors")
    added_in = AdaptedWeights(FolderWeights(folder_of("qwen3")), tmp_path)
    for name, tensor in whole.items():
        torch.testing.assert_close(added_in[name], tensor)
    kept = {name: factor.clone() for name, factor in adapter.factors.items()}
    moved(made)
    assert all(torch.equal(kept[name], factor) for name, factor in adapter.factors.items()), "it is a copy"
    with pytest.raises(ValueError, match="no adapter"):
        network().exported_adapter()


def test_only_the_modules_that_are_named_get_an_adapter() -> None:
    made = network(lora=Lora(rank=2, targets=["q_proj", "v_proj"]))
    assert {name.split(".")[-4] for name, _ in made.named_parameters() if ".lora_" in name} == {"q_proj", "v_proj"}


def test_a_target_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ModelFolderRefused, match=r"model\.lora\.targets"):
        network(lora=Lora(rank=2, targets=["w_proj"]))


def test_a_saved_folder_keeps_config_tokenizer_and_template_as_they_came(tmp_path: Path) -> None:
    network("llama3").save_folder(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (folder_of("llama3") / name).read_bytes()
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder_of("llama3"), tmp_path))
    assert after == before | {"dtype": "float32"}


def test_what_is_saved_in_full_precision_is_read_back_to_the_bit(tmp_path: Path) -> None:
    made, other = network(), network()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.01)
    made.save_folder(tmp_path)
    other.load_folder(tmp_path)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(made.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_full_training_moves_float32_and_samples_halves(dtype: str) -> None:
    made = network(dtype=dtype)
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}
    assert {tensor.dtype for tensor in made.exported().values()} == {getattr(torch, dtype)}
    with made.computing():
        assert made.hidden(IDS).dtype in (torch.float32, getattr(torch, dtype))
        assert made.logits(made.hidden(IDS)[0]).dtype == getattr(torch, dtype)


def test_in_half_precision_lora_holds_halves_and_moves_float32() -> None:
    made = network(dtype="bfloat16", lora=Lora(rank=2))
    held = {parameter.requires_grad: parameter.dtype for parameter in made.parameters()}
    assert held == {False: torch.bfloat16, True: torch.float32}
    assert {tensor.dtype for tensor in made.exported().values()} == {torch.bfloat16}


def test_gradient_checkpointing_changes_no_gradient() -> None:
    gradients = []
    for switch in (False, True):
        made = network(gradient_checkpointing=switch)
        made.train()
        made.logits(made.hidden(IDS)).log_softmax(-1)[..., 7].sum().backward()
        gradients.append([parameter.grad for parameter in made.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=1e-5, atol=1e-6)


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    source = folder_of("llama3")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelFolderRefused, match="missing"):
        network_for(PretrainedModel(path=str(tmp_path)), seed=0, device=CPU)


def test_a_family_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    for file in folder_of("qwen3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen99"}))
    with pytest.raises(ModelFolderRefused, match="transformers cannot load it"):
        network_for(PretrainedModel(path=str(tmp_path)), seed=0, device=CPU)


def test_a_head_that_does_more_than_is_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = network()
    real = type(made.lm).forward

    def scaled(self: Any, *given: Any, **named: Any) -> Any:
        out = real(self, *given, **named)
        out.logits = out.logits * 1.1
        return out

    monkeypatch.setattr(type(made.lm), "forward", scaled)
    with pytest.raises(ModelFolderRefused, match="does more than this trainer knows"):
        network()


def test_weights_with_which_nothing_can_be_computed_are_not_taken_for_another_head(tmp_path: Path) -> None:
    shutil.copytree(folder_of("qwen3"), tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"].fill_(3e38)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFolderRefused, match=r"computes NaN or Inf with its weights in float32; use model\.dtype"):
        network_for(PretrainedModel(path=str(tmp_path)), seed=0, device=CPU)


def other_network(family: Other, path: Path | None = None, **changes: Any) -> PretrainedNetwork:
    attention = "eager" if family == "gemma2" else "sdpa"  # transformers' own cannot cap scores otherwise
    named = {"path": str(path or other_folder(family)), "context_tokens": 128, "attention": attention} | changes
    made = network_for(PretrainedModel.model_validate(named), seed=0, device=CPU)
    assert isinstance(made, PretrainedNetwork)
    return made


def likelihood(made: Any) -> torch.Tensor:
    return made(IDS).logits.log_softmax(-1)[:, :-1].gather(-1, IDS[:, 1:, None]).sum()


@pytest.mark.parametrize("family", OTHERS)
def test_mixtures_and_other_families_learn_and_are_saved_as_transformers_has_them(
    family: Other, tmp_path: Path
) -> None:
    ours = other_network(family)
    theirs = AutoModelForCausalLM.from_pretrained(other_folder(family), attn_implementation=ours.spec.attention)
    for _ in range(2):
        torch.testing.assert_close(logits(ours), theirs(IDS).logits, rtol=0, atol=1e-5)
        loss = ours.logits(ours.hidden(IDS)).log_softmax(-1)[:, :-1].gather(-1, IDS[:, 1:, None]).sum()
        loss.backward()
        likelihood(theirs).backward()
        for (name, parameter), other in zip(ours.lm.named_parameters(), theirs.parameters(), strict=True):
            assert parameter.grad is not None, name
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-4)
        for made in (ours, theirs):
            torch.optim.SGD(made.parameters(), lr=1e-3).step()
            made.zero_grad(set_to_none=True)
    ours.save_folder(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=ours.spec.attention)
    torch.testing.assert_close(opened(IDS).logits, logits(ours), rtol=0, atol=1e-5)
    assert not torch.allclose(logits(ours), logits(other_network(family)), atol=1e-3)
    torch.testing.assert_close(logits(other_network(family, tmp_path)), logits(ours), rtol=0, atol=1e-5)
    names = set(opened_folder(other_folder(family)).tensors) - ({"lm_head.weight"} if family != "qwen3-moe" else set())
    assert set(ours.exported()) == names, "by the names of the folder, each expert's apart"


def test_the_loss_that_balances_a_router_is_no_part_of_ours(tmp_path: Path) -> None:
    folder = other_folder("qwen3-moe")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"output_router_logits": True}
    (tmp_path / "config.json").write_text(json.dumps(config | {"router_aux_loss_coef": 10.0}))
    gradients = []
    for path in (folder, tmp_path):
        made = other_network("qwen3-moe", path)
        made.logits(made.hidden(IDS)).log_softmax(-1)[..., 7].sum().backward()
        gradients.append(made.lm.get_parameter("model.layers.0.mlp.gate.weight").grad)
    assert torch.equal(*gradients)


def test_an_attention_that_a_family_cannot_have_is_refused_with_one_that_it_can() -> None:
    with pytest.raises(ModelFolderRefused, match=r'model\.attention = .sdpa.*use model\.attention = "eager"'):
        other_network("gemma2", attention="sdpa")


def test_adapters_on_experts_are_refused() -> None:
    with pytest.raises(ModelFolderRefused, match=r"model\.lora\.targets"):
        other_network("qwen3-moe", lora={"rank": 2, "targets": ["q_proj", "gate_proj"]})


def test_adapters_on_a_mixture_are_counted_as_they_are_put_on() -> None:
    made, folder = other_network("qwen3-moe", lora={"rank": 2}), opened_folder(other_folder("qwen3-moe"))
    adapted = {name.partition(".lora_")[0] for name, _ in made.lm.named_parameters() if ".lora_" in name}
    assert adapted == set(adapted_modules(folder, Lora(rank=2)))
    assert adapter_parameters(folder, Lora(rank=2)) == sum(
        parameter.numel() for parameter in made.parameters() if parameter.requires_grad
    )
