"""Folders of models in small whose tokenizers cut a text by what stands beside it."""

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = ["What is the sum of 3 and 4? It is 7. system user assistant", "Hello world, print it [INST] [/INST]"] * 20
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CHATML = (
    "{{ bos_token }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_OF_MARKS = MISTRAL.replace(" [/INST]", "[/INST]")
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
PHI = ZEPHYR.replace("eos_token", "'<|end|>'")
IM, INST = ("<|im_start|>", "<|im_end|>"), ("[INST]", "[/INST]")


def sentence_pieces(pre_tokenizer=None, normalizer=None) -> Tokenizer:
    """Spaces are letters, and what is no letter is its bytes, as SentencePiece has it."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>", *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"added_tokens": []}))
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    unspaced = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), unspaced]
    )
    return tokenizer


def prepending() -> Tokenizer:
    return sentence_pieces(normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))


def metaspace(scheme: str, *, split: bool = False) -> Tokenizer:
    return sentence_pieces(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split))


def byte_level(normalizer=None, *, prefix: bool = False, pieces: bool = True, texts=TEXTS) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pieces)
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


Kind = tuple[Callable[[], Tokenizer], str, tuple[str, ...], dict[str, bool]]
KINDS: dict[str, Kind] = {
    "prepend-chatml": (prepending, CHATML, IM, {}),
    "prepend-mistral": (prepending, MISTRAL, (), {}),
    "prepend-mistral-of-marks": (prepending, MISTRAL_OF_MARKS, INST, {}),
    "prepend-zephyr": (prepending, ZEPHYR, (), {}),
    "prepend-phi": (prepending, PHI, ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), {"rstrip": True}),
    "first-chatml": (lambda: metaspace("first"), CHATML, IM, {}),
    "first-mistral-of-marks": (lambda: metaspace("first"), MISTRAL_OF_MARKS, INST, {}),
    "first-zephyr": (lambda: metaspace("first"), ZEPHYR, (), {}),
    "first-split-chatml": (lambda: metaspace("first", split=True), CHATML, IM, {}),
    "always-chatml": (lambda: metaspace("always"), CHATML, IM, {}),
    "always-split-mistral-of-marks": (lambda: metaspace("always", split=True), MISTRAL_OF_MARKS, INST, {}),
    "never-chatml": (lambda: metaspace("never"), CHATML, IM, {}),
    "bytes-prefixed-chatml": (lambda: byte_level(prefix=True), CHATML, IM, {}),
    "bytes-rstrip-chatml": (byte_level, CHATML, IM, {"rstrip": True}),
    "bytes-rstrip-phi": (byte_level, PHI, ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), {"rstrip": True}),
    "bytes-lstrip-chatml": (byte_level, CHATML, IM, {"lstrip": True}),
    "bytes-normalized-chatml": (lambda: byte_level(normalizers.NFC()), CHATML, IM, {"normalized": True}),
    "bytes-stripped-chatml": (lambda: byte_level(normalizers.Strip()), CHATML, IM, {}),
}
"""By name: a tokenizer without marks, a template, its marks besides those of the text's ends, and their flags."""
UNCUT: dict[str, Kind] = {
    "bytes-word-chatml": (byte_level, CHATML, IM, {"single_word": True}),
    "bytes-joined-chatml": (lambda: byte_level(pieces=False, texts=["assistant\n7"] * 9), CHATML, IM, {}),
    "prepend-normalized-chatml": (prepending, CHATML, IM, {"normalized": True}),
}
"""Such as cannot be cut where turns begin or end."""


def write_placed_folder(
    folder: Path, tokenizer: Tokenizer, template: str, marks: tuple[str, ...], flags: dict[str, bool]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.add_special_tokens(
        [
            *(AddedToken(mark, special=True, normalized=False) for mark in ("<unk>", "<s>", "</s>")),
            *(AddedToken(mark, special=True, **{"normalized": False, **flags}) for mark in marks),
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    end = next((mark for mark in marks if "end" in mark), "</s>")
    names = {"bos_token": "<s>", "eos_token": end, "clean_up_tokenization_spaces": False}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    return folder
