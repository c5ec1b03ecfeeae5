"""A small tokenizer in the files of a real one, for samples and tests.

``write_tokenizer`` trains a byte-level BPE and writes what a model folder of its family holds besides weights:
tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json and the family's own chat
template (``chat_templates/``, from whom NOTICE says).  Marks have the family's names, and ids of their own behind the
text's.  Equal arguments write equal bytes.  No weights are written here, and no vocabulary that anybody ships.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

Family = Literal["qwen3", "qwen2.5", "llama3"]
TEMPLATES = Path(__file__).with_name("chat_templates")

_WORDS = (
    "the", "a", "sum", "of", "and", "is", "in", "to", "file", "line", "value", "error", "result", "print", "return",
    "number", "list", "text", "open", "answer",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Family:
    special: tuple[str, ...]
    """Marks that decoding for people may leave out."""
    plain: tuple[str, ...]
    """Marks that it keeps."""
    begin: str | None
    end: str
    pad: str
    stops: tuple[str, ...]
    digits: str
    """How many digits stand in one piece of text, as a regular expression."""
    normalized: bool


_QWEN_CALLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_STOPS = ("<|im_end|>", "<|endoftext|>")
_LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip
_FAMILIES: dict[Family, _Family] = {
    "qwen3": _Family(
        _QWEN, (*_QWEN_CALLS, "<think>", "</think>"), None, "<|im_end|>", "<|endoftext|>", _QWEN_STOPS, r"\p{N}", True
    ),
    "qwen2.5": _Family(_QWEN, _QWEN_CALLS, None, "<|im_end|>", "<|endoftext|>", _QWEN_STOPS, r"\p{N}", True),
    "llama3": _Family(
        _LLAMA,
        (),
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|finetune_right_pad_id|>",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        r"\p{N}{1,3}",
        False,
    ),
}


def write_tokenizer(
    folder: Path,
    *,
    family: Family,
    seed: int,
    texts: Iterable[str] = (),
    vocabulary: int = 2048,
    chat_template: str | None = None,
) -> None:
    """Train on ``texts`` and on text drawn from ``seed``; write into ``folder``, which is made if it is missing.

    ``vocabulary`` counts the ids of text: at least 256, and fewer than asked for where the text has no more pairs.
    Marks come behind them.  ``chat_template`` replaces the family's own.  Raises KeyError for an unknown family.
    """
    shape = _FAMILIES[family]
    tokenizer = _trained(shape, [*texts, *_drawn_texts(seed)], vocabulary)
    template = chat_template if chat_template is not None else (TEMPLATES / f"{family}.jinja").read_text("utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    names = {"eos_token": shape.end, "pad_token": shape.pad}
    if shape.begin is not None:
        names["bos_token"] = shape.begin
    _write_json(folder / "special_tokens_map.json", names)
    _write_json(folder / "tokenizer_config.json", _config(names))
    _write_json(folder / "generation_config.json", _generation(tokenizer, shape))
    (folder / "chat_template.jinja").write_text(template, "utf-8")


def _trained(shape: _Family, texts: list[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=not shape.normalized))
    if shape.normalized:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pieces(shape.digits)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in shape.special])
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in shape.plain])
    if shape.begin is not None:
        begin = (shape.begin, tokenizer.token_to_id(shape.begin))
        tokenizer.post_processor = processors.TemplateProcessing(f"{shape.begin} $A", special_tokens=[begin])
    return tokenizer


def _pieces(digits: str) -> str:
    """How byte-level tokenizers cut text before they merge: contractions, words, digits, signs, white space."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _drawn_texts(seed: int) -> Iterator[str]:
    """Sums, calls as JSON, and lines of common words: what a small agent reads and writes."""
    rng = Random(seed)
    for _ in range(400):
        left, right = rng.randrange(1000), rng.randrange(1000)
        words = " ".join(rng.choices(_WORDS, k=8))
        call = {"name": "python", "arguments": {"code": f"print({left} + {right})"}}
        yield f"{json.dumps(call)}\nWhat is {left} plus {right}? {left} + {right} = {left + right}\n{words}.\n"


def _config(names: dict[str, str]) -> dict[str, Any]:
    return {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }


def _generation(tokenizer: Tokenizer, shape: _Family) -> dict[str, Any]:
    generation: dict[str, Any] = {
        "eos_token_id": [tokenizer.token_to_id(stop) for stop in shape.stops],
        "pad_token_id": tokenizer.token_to_id(shape.pad),
    }
    if shape.begin is not None:
        generation["bos_token_id"] = tokenizer.token_to_id(shape.begin)
    return generation


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
