"""The generator over model folders that transformers wrote, held against a transformers forward pass."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.durable import DamagedFile
from engine.inference.torch.factory import generator_for_folder
from engine.inference.torch.generator import PREFILL_FROM
from engine.inference.torch.memory import PREFILL_TOKENS
from engine.models.architecture import UnsupportedArchitecture
from engine.models.folder_weights import FolderWeights
from engine.models.weights import StateDict
from tests.engine.inference.torch.cast import turn

VOCABULARY, CONTEXT = 300, 256
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 5e5,
}
FAMILIES = {
    "qwen2.5": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2.5 tied, yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 20, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3 tied, biased, yarn": (
        "qwen3",
        {"head_dim": 12, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN},
    ),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama tied, biased, linear": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR},
    ),
    "llama, a key head per head": ("llama", {"num_key_value_heads": None, "head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": CONTEXT}),
}


def written_folder(folder, family, settings, **how):
    """Random weights; biases and norms too, which transformers begins with at 0 and 1."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SMALL, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.eval().save_pretrained(folder, **how)
    return model


def logprobs_by_transformers(model, ids, tokens):
    """Log-probs of the last ``tokens`` of ``ids``, each given all before it."""
    with torch.no_grad():
        logp_TV = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return [logp_TV[t - 1, ids[t]].item() for t in range(len(ids) - tokens, len(ids))]


async def sessions_with_rewinds(generator, model):
    """Prompts around the borders of chunks, later turns read in chunks and in steps, and a turn taken back."""

    async def session(number, length):
        ids = [(number * 31 + 7 * i) % VOCABULARY for i in range(length)]
        answers = []
        for seed, observation in ((1, []), (2, [5, 6, 7]), (3, list(range(100, 100 + PREFILL_FROM + 5)))):
            ids += observation
            unread = ids if seed == 1 else observation
            answer = await generator.generate(turn(f"s{number}", unread, seed=seed, max_new_tokens=6))
            ids += answer.token_ids
            answers.append((list(ids), answer))
        kept = answers[0][0]
        await generator.rewind(f"s{number}", len(kept))
        again = await generator.generate(turn(f"s{number}", [9, 9], seed=4, max_new_tokens=6))
        answers.append(([*kept, 9, 9, *again.token_ids], again))
        await generator.release(f"s{number}")
        return answers

    lengths = (1, PREFILL_TOKENS, PREFILL_TOKENS + 1, PREFILL_TOKENS + 2, 5 * PREFILL_TOKENS + 1, 100)
    for answers in await asyncio.gather(*(session(number, length) for number, length in enumerate(lengths))):
        for ids, answer in answers:
            expected = logprobs_by_transformers(model, ids, len(answer.token_ids))
            assert list(answer.logprobs) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
async def test_logprobs_are_those_of_transformers(tmp_path, name):
    model = written_folder(tmp_path, *FAMILIES[name])
    generator = generator_for_folder(tmp_path, context_tokens=CONTEXT, slots=4)
    await sessions_with_rewinds(generator, model)
    generator.close()


@pytest.mark.parametrize(("dtype", "within"), [("bfloat16", 0.15), ("float16", 0.02)])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
async def test_half_precision_is_as_near_to_full_as_its_digits_are(tmp_path, family, dtype, within):
    model = written_folder(tmp_path, family, {"initializer_range": 0.1})
    generator = generator_for_folder(tmp_path, context_tokens=CONTEXT, slots=2, dtype=dtype)
    ids = [(7 * i) % VOCABULARY for i in range(50)]
    answer = await generator.generate(turn("s", ids, max_new_tokens=40))
    generator.close()
    expected = logprobs_by_transformers(model, [*ids, *answer.token_ids], 40)
    assert list(answer.logprobs) == pytest.approx(expected, abs=within)
    assert max(abs(a - b) for a, b in zip(answer.logprobs, expected, strict=True)) > 1e-5  # it was not float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["qwen2.5", "llama tied, biased, linear"])
async def test_company_changes_no_bit_of_any_family_or_dtype(tmp_path, name, dtype):
    written_folder(tmp_path, *FAMILIES[name])
    generator = generator_for_folder(tmp_path, context_tokens=CONTEXT, slots=5, dtype=dtype, threads=2)

    async def session(label, seed):
        ids = [(seed + 7 * i) % VOCABULARY for i in range(20 + seed)]
        first = await generator.generate(turn(label, ids, seed=seed, max_new_tokens=12))
        second = await generator.generate(turn(label, range(60), seed=seed, max_new_tokens=12))
        await generator.release(label)
        return first, second

    alone = await session("alone", 3)
    together = await asyncio.gather(*(session(f"s{n}", n) for n in range(9)))
    generator.close()
    assert together[3] == alone
    assert len(set(together)) == 9


async def test_shards_are_read_as_one_file_is(tmp_path):
    model = written_folder(tmp_path / "whole", "qwen2", {})
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    answers = []
    for name in ("whole", "shards"):
        generator = generator_for_folder(tmp_path / name, context_tokens=64, slots=1)
        answers.append(await generator.generate(turn("s", range(20, 40))))
        generator.close()
    assert answers[0] == answers[1]


async def test_new_weights_of_a_family_take_the_place_of_the_old(tmp_path):
    model = written_folder(tmp_path, "qwen2", {})
    generator = generator_for_folder(tmp_path, context_tokens=64, slots=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.8)
    await generator.load_weights(StateDict(model.state_dict()), version=7)
    answer = await generator.generate(turn("s", range(20, 40)))
    generator.close()
    assert set(answer.policy_versions) == {7}
    expected = logprobs_by_transformers(model, [*range(20, 40), *answer.token_ids], 12)
    assert list(answer.logprobs) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("damage", ["missing", "shape", "unknown"])
async def test_weights_of_another_architecture_are_refused_and_the_old_ones_stay(tmp_path, damage):
    model = written_folder(tmp_path, "qwen2", {})
    generator = generator_for_folder(tmp_path, context_tokens=64, slots=1)
    before = await generator.generate(turn("before", range(20, 40)))
    state = {name: tensor * 2 for name, tensor in model.state_dict().items()}
    if damage == "missing":
        del state["model.layers.1.self_attn.q_proj.bias"]
    elif damage == "shape":
        state["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 3)
    else:
        state["model.layers.1.self_attn.q_norm.weight"] = torch.ones(12)
    with pytest.raises(ValueError, match=r"model\.layers\.1"):
        await generator.load_weights(StateDict(state), version=2)
    await generator.release("before")
    assert await generator.generate(turn("after", range(20, 40))) == before
    generator.close()


def test_a_file_that_was_cut_is_named(tmp_path):
    written_folder(tmp_path, "qwen2", {}, max_shard_size="50KB")
    cut = sorted(tmp_path.glob("*.safetensors"))[1]
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(DamagedFile, match=cut.name):
        generator_for_folder(tmp_path, context_tokens=64, slots=1)


def test_a_shard_that_is_gone_or_lacks_a_tensor_is_named(tmp_path):
    written_folder(tmp_path, "qwen2", {}, max_shard_size="50KB")
    first, second = sorted(tmp_path.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    lacking = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != lacking}, first)
    with pytest.raises(DamagedFile, match=lacking):
        FolderWeights(tmp_path)
    second.unlink()
    save_file(tensors, first)
    with pytest.raises(DamagedFile, match=second.name):
        FolderWeights(tmp_path)


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", ""])
def test_an_index_cannot_point_out_of_the_folder(tmp_path, name):
    (tmp_path / "inner").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "elsewhere.safetensors")
    (tmp_path / "inner" / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{name}"}}}}')
    with pytest.raises(DamagedFile):
        FolderWeights(tmp_path / "inner")


def test_pickled_weights_are_never_read(tmp_path):
    written_folder(tmp_path, "qwen2", {})
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(DamagedFile, match="safetensors"):
        generator_for_folder(tmp_path, context_tokens=64, slots=1)


@pytest.mark.parametrize("config", ["", "[]", "{", '"text"', '{"model_type": "gemma3_text"}'])
def test_a_config_that_is_none_or_not_served_is_refused(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises((DamagedFile, UnsupportedArchitecture)):
        generator_for_folder(tmp_path, context_tokens=64, slots=1)


def test_a_context_beyond_the_models_is_refused(tmp_path):
    written_folder(tmp_path, "mistral", {"sliding_window": 100})
    with pytest.raises(UnsupportedArchitecture, match="100"):
        generator_for_folder(tmp_path, context_tokens=101, slots=1)
