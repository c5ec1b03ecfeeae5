"""Folders of models in small, one for each chat template that the tests speak."""

import json
from pathlib import Path

from engine.models.tokenizer_training import TEMPLATES, Family, write_tokenizer

HERE = Path(__file__).with_name("chat_templates")
TEXTS = [
    "Žluťoučký kůň 日本語 🐎 naïve façade",
    'print("hello world")\nfor i in range(10):\n    print(i * i)\n',
    "\n\n\n  ",
]

_MISTRAL = """{{ bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 is even) %}
        {{- raise_exception('user and assistant take turns here') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""
"""The form of Mistral 7B Instruct 0.1, in our words: no header before a turn, no system, no tools."""

FAMILY_OF: dict[str, Family] = {
    "qwen2.5": "qwen2.5",
    "qwen3": "qwen3",
    "qwen3_instruct_2507": "qwen3",
    "llama3": "llama3",
    "llama3_1": "llama3",
}
_MARKS_OF = {
    "gemma": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    "gemma3": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]"),
    "gptoss": ("<|startoftext|>", "<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"),
    "deepseekv3": (
        "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    ),
}  # fmt: skip
"""Begin, end, and the others, of families that write_tokenizer does not make."""
NAMES = (*FAMILY_OF, *_MARKS_OF)


def write_folder(folder: Path, name: str) -> Path:
    """Raises KeyError for a name that is not in NAMES."""
    if name in FAMILY_OF:
        file = HERE / f"{name}.jinja"
        template = file.read_text("utf-8") if file.exists() else (TEMPLATES / f"{name}.jinja").read_text("utf-8")
        write_tokenizer(folder, family=FAMILY_OF[name], seed=7, texts=TEXTS, chat_template=template)
        return folder
    template = _MISTRAL if name == "mistral" else (HERE / f"{name}.jinja").read_text("utf-8")
    write_tokenizer(folder, family="llama3", seed=7, texts=TEXTS, chat_template=template)
    _rename_marks(folder, _MARKS_OF[name])
    return folder


def edit_json(file: Path, **entries: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | entries), "utf-8")


def _rename_marks(folder: Path, marks: tuple[str, ...]) -> None:
    """Other marks in place of those of Llama."""
    description = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    first = description["added_tokens"][0]
    added = [{**first, "id": first["id"] + number, "content": mark} for number, mark in enumerate(marks)]
    edit_json(folder / "tokenizer.json", added_tokens=added, post_processor=None)
    names = {"bos_token": marks[0], "eos_token": marks[1], "pad_token": marks[1]}
    edit_json(folder / "tokenizer_config.json", **names)
    edit_json(folder / "special_tokens_map.json", **names)
    edit_json(folder / "generation_config.json", eos_token_id=first["id"] + 1, pad_token_id=first["id"] + 1)
