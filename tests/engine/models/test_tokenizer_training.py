import json

import pytest
from transformers import AutoTokenizer

from engine.models.tokenizer_training import write_tokenizer

FAMILIES = ("qwen3", "qwen2.5", "llama3")


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_opens_the_folder_and_speaks_its_template(family, tmp_path):
    write_tokenizer(tmp_path, family=family, seed=3, texts=["some text of a task"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "What is 3 plus 4?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    text = tokenizer.decode(ids)
    assert "What is 3 plus 4?" in text
    assert text.rstrip().endswith("<|im_start|>assistant" if family != "llama3" else "<|end_header_id|>")
    assert tokenizer.eos_token_id in json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_arguments_write_equal_bytes_and_another_seed_does_not(family, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_tokenizer(tmp_path / name, family=family, seed=seed, texts=["text"], vocabulary=600)

    def content(name):
        return {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}

    assert content("a") == content("b")
    assert content("a") != content("c")


def test_any_text_survives_encoding_because_every_byte_is_in_the_vocabulary(tmp_path):
    write_tokenizer(tmp_path, family="qwen3", seed=0, vocabulary=300)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "žluťoučký 日本語 🐎\x00\t\r\n end"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_unknown_family_is_an_error(tmp_path):
    with pytest.raises(KeyError):
        write_tokenizer(tmp_path, family="gpt-9", seed=0)
