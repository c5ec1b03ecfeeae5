"""What a pretrained model lacks is told before a start, with field, value and remedy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from engine.launch import model_check
from engine.loop import model_requirements
from engine.loop.requirements import lacking
from engine.models.folder import opened_folder
from engine.models.memory import TrainerMemory
from engine.spec.model import Model
from engine.spec.problems import Problem
from engine.spec.recipe import Recipe
from engine.spec.resources import Resources
from engine.spec.run import RunSpec
from tests.engine.models.folders import folder_of


def spec_of(folder: Path, recipe: dict[str, Any] | None = None, **model: Any) -> RunSpec:
    named = {"kind": "pretrained", "path": str(folder), "context_tokens": 512, "microbatch_tokens": 512} | model
    environment = {"id": "python-math", "levels": [1], "max_turn_tokens": 16}
    document = {"name": "x", "model": named, "environment": environment, "recipe": recipe or {}}
    return RunSpec.model_validate(document | {"resources": {"kv_slots": 2}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder_of("qwen3"), tmp_path / "model"))


def problem(spec: RunSpec) -> Problem:
    [found] = model_requirements.lacking_in_model(spec)
    return found


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_model_that_can_be_trained_lacks_nothing() -> None:
    assert model_requirements.lacking_in_model(spec_of(folder_of("qwen3"))) == []
    assert model_requirements.lacking_in_model(RunSpec(name="built in")) == []


def test_a_folder_that_is_none_is_the_only_thing_that_is_reported(tmp_path: Path) -> None:
    [found] = lacking(spec_of(tmp_path / "nothing"))
    assert found.field == "model.path"


def test_a_context_beyond_the_models_is_refused(folder: Path) -> None:
    found = problem(spec_of(folder, context_tokens=1025))
    assert (found.field, found.value, found.remedy) == ("model.context_tokens", 1025, "use at most 1024")


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused(folder: Path) -> None:
    change(folder / "config.json", vocab_size=100)
    assert "only 100" in problem(spec_of(folder)).message


def test_a_tokenizer_without_an_end_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    change(folder / "tokenizer_config.json", eos_token=None)
    change(folder / "special_tokens_map.json", eos_token=None)
    assert "no end token" in problem(spec_of(folder)).message


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('no') }}", "{% for a in range(10**9) %}{{ a }}{% endfor %}", "{{ 1 / 0 }}", "{% if %}"],
)
def test_a_template_that_raises_or_loops_is_refused(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    assert "template" in problem(spec_of(folder)).message


@pytest.mark.parametrize("targets", [["w_proj"], ["q_proj", "q"], ["embed"]])
def test_an_adapter_on_a_module_that_does_not_exist_is_refused_with_those_that_do(
    folder: Path, targets: list[str]
) -> None:
    found = problem(spec_of(folder, lora={"rank": 2, "targets": targets}))
    assert (found.field, found.value) == ("model.lora.targets", targets[-1])
    assert "q_proj" in found.remedy


def test_a_rank_beyond_the_smallest_matrix_is_refused(folder: Path) -> None:
    found = problem(spec_of(folder, lora={"rank": 17}))
    assert (found.field, found.remedy) == ("model.lora.rank", "use at most 16, or leave model.lora out")


def test_flash_attention_without_a_gpu_is_refused(folder: Path) -> None:
    assert problem(spec_of(folder, attention="flash")).field == "model.attention"


def test_a_family_that_the_generator_cannot_serve_is_refused(folder: Path) -> None:
    change(folder / "config.json", model_type="gemma3_text")
    assert "the torch generator cannot serve it" in problem(spec_of(folder)).message


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_requirements, "free_memory", lambda: 2**20)
    found = problem(spec_of(folder))
    assert "this machine has 1.0 MiB" in found.message
    assert "parameters, all weights, float32, 512 tokens of context: " in found.message


def test_the_estimate_counts_what_is_trained_and_what_the_recipe_adds(folder: Path) -> None:
    def parts(recipe: dict[str, Any] | None = None, **model: Any) -> dict[str, int]:
        spec = spec_of(folder, recipe, **model)
        return dict(
            model_requirements._trainer_memory(opened_folder(folder), spec.model, spec.recipe, Resources()).parts
        )  # type: ignore[arg-type]

    whole, lora = parts(), parts(lora={"rank": 2}, dtype="bfloat16")
    parameters = whole["weights"] // 4
    assert (whole["gradients"], whole["optimiser"]) == (4 * parameters, 8 * parameters)
    assert lora["weights"] - lora["gradients"] == 2 * parameters
    assert lora["optimiser"] == 2 * lora["gradients"] < whole["optimiser"]
    assert parts({"preset": "ppo"})["critic"] == 16 * parameters
    assert "critic" not in whole
    for recipe in ({"kl": {"beta": 0.1}}, {"preset": "cleaner-dpo"}, {"preset": "dpo-tool-calls"}):
        assert parts(recipe)["reference"] == 4 * parameters
    for recipe in ({}, {"kl": {"beta": 0.0}}, {"preset": "cleaner-dpo", "preference": {"weight": 0.0}}):
        assert "reference" not in parts(recipe)
    assert parts(gradient_checkpointing=True)["activations"] < whole["activations"]


def test_the_generators_copy_is_the_adapter_where_servers_get_that_alone(folder: Path) -> None:
    def copied(**sglang: Any) -> int:
        spec = spec_of(folder, lora={"rank": 2}, dtype="bfloat16")
        resources = Resources.model_validate({"generator": "sglang", "sglang": sglang})
        memory = model_requirements._trainer_memory(opened_folder(folder), spec.model, spec.recipe, resources)  # type: ignore[arg-type]
        assert memory.trained < memory.parameters
        return memory.parts["copy for the generator"] // (4 * memory.trained if not sglang else 2 * memory.parameters)

    assert (copied(), copied(lora="merged")) == (1, 1)


def test_the_estimate_is_for_each_rank_and_counts_what_is_whole_in_between(folder: Path) -> None:
    def memory(ranks: int, **model: Any) -> TrainerMemory:
        spec = spec_of(folder, {"preset": "ppo"}, **model)
        return model_requirements._trainer_memory(
            opened_folder(folder), spec.model, spec.recipe, Resources(trainer_ranks=ranks)
        )  # type: ignore[arg-type]

    one, four = memory(1), memory(4)
    for part in ("weights", "gradients", "optimiser", "critic"):
        assert one.parts[part] <= 4 * four.parts[part] < one.parts[part] + 4
    for part in ("activations", "copy for the generator"):
        assert four.parts[part] == one.parts[part]
    tensors = opened_folder(folder).tensors
    layer = sum(tensor.elements for name, tensor in tensors.items() if name.startswith("model.layers.0."))
    outside = sum(tensor.elements for name, tensor in tensors.items() if not name.startswith("model.layers."))
    assert four.parts["what is whole at once"] == 2 * 4 * (2 * layer + outside)
    assert "what is whole at once" not in one.parts
    assert one.on_one_machine == one.total
    alone = four.total - four.parts["copy for the generator"]
    assert four.on_one_machine == max(four.total, one.parts["weights"]) + 3 * max(alone, one.parts["weights"])


def parts_of(document: dict[str, Any]) -> tuple[Model, Recipe, Resources]:
    spec = RunSpec.model_validate(document)
    return spec.model, spec.recipe, spec.resources


@pytest.mark.parametrize(("device", "where"), [("cuda", "on each of 4 GPUs"), ("cpu", "in each of 4 processes")])
def test_the_estimate_says_on_how_many_gpus_or_processes(folder: Path, device: str, where: str) -> None:
    document = spec_of(folder).model_dump()
    document["resources"] |= {"device": device, "trainer_ranks": 4}
    words = model_requirements.memory_in_words(*parts_of(document))
    assert words is not None
    assert where in words
    document["resources"]["trainer_ranks"] = 1
    assert "each" not in str(model_requirements.memory_in_words(*parts_of(document)))


def rewritten(file: Path, **changes: Any) -> None:
    """``changes`` are what becomes of tensors by their names; None removes one."""
    tensors = load_file(file)
    for name, change_of in changes.items():
        if change_of is None:
            del tensors[name]
        else:
            tensors[name] = change_of(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("becomes", "reason"),
    [(None, f"lack {UP}"), (lambda held: held[:-8].contiguous(), f"{UP} has the shape [40, 32], and")],
)
def test_weights_that_are_not_those_of_the_config_are_refused_by_name(folder: Path, becomes: Any, reason: str) -> None:
    rewritten(folder / "model.safetensors", **{UP: becomes})
    found = problem(spec_of(folder))
    assert (found.field, found.value) == ("model.path", str(folder))
    assert reason in found.message
    assert "same model" in found.remedy
    report = model_check.checked(folder)
    assert report.problem is not None
    assert reason in report.problem.message


def test_weights_that_are_no_numbers_are_refused_before_they_are_trained(folder: Path) -> None:
    rewritten(folder / "model.safetensors", **{UP: lambda held: held * float("nan")})
    found = problem(spec_of(folder))
    assert (found.field, found.value) == ("model.path", str(folder))
    assert found.message == f"model.safetensors: {UP} holds NaN"
    assert found.remedy.startswith("download the file again")
    assert model_requirements.lacking_in_model(spec_of(folder), with_trainer=False) == []


def test_a_context_beyond_the_window_that_a_layer_looks_back_on_is_refused(folder: Path) -> None:
    change(folder / "config.json", model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=128)
    found = problem(spec_of(folder))
    assert (found.field, found.value) == ("model.context_tokens", 512)
    assert "128 tokens alone (sliding_window)" in found.message
    assert model_requirements.lacking_in_model(spec_of(folder, context_tokens=128)) == []
