import pytest
import torch

from engine.models.qwen3 import Qwen3, save_pretrained
from engine.models.tokenizer import tokenizer_for
from engine.spec.model import BuiltinModel

SMALL = BuiltinModel(
    layers=2, hidden_size=32, heads=4, kv_heads=2, head_dim=12, intermediate_size=48, context_tokens=64
)


def _policy(spec: BuiltinModel = SMALL, seed: int = 3) -> Qwen3:
    """Weights as large as after training, so that attention is far from uniform."""
    model = Qwen3(spec, len(tokenizer_for("characters")), seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.3)
    return model


def _ids(rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(len(tokenizer_for("characters")), (rows, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("spec", [SMALL, BuiltinModel(), SMALL.model_copy(update={"kv_heads": 4})])
def test_transformers_loads_an_exported_folder_with_equal_logits(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM

    ours = _policy(spec)
    save_pretrained(ours, tmp_path, tokenizer_for("characters"))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    ids = _ids(3, spec.context_tokens)
    with torch.no_grad():
        difference = (ours(ids) - theirs(ids).logits).abs().max()
    assert difference < 5e-5  # float32 rounding


def test_state_has_exactly_the_names_of_transformers():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    theirs = Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=2, hidden_size=32, tie_word_embeddings=True))
    assert set(_policy().state_dict()) == set(theirs.state_dict()) - {"lm_head.weight"}


def test_a_token_is_blind_to_what_comes_after_it():
    model, ids = _policy(), _ids(2, 20)
    other = ids.clone()
    other[:, 12:] = (other[:, 12:] + 7) % 90
    with torch.no_grad():
        assert torch.equal(model(ids)[:, :12], model(other)[:, :12])


def test_padding_on_the_right_changes_nothing():
    model, ids = _policy(), _ids(2, 20)
    padded = torch.nn.functional.pad(ids, (0, 9), value=tokenizer_for("characters").pad)
    with torch.no_grad():
        torch.testing.assert_close(model(padded)[:, :20], model(ids), rtol=0, atol=1e-5)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(1)
    first = Qwen3(SMALL, 50, seed=7).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, other = Qwen3(SMALL, 50, seed=7).state_dict(), Qwen3(SMALL, 50, seed=8).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert torch.equal(torch.get_rng_state(), before)
